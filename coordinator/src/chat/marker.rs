//! The spelling of Laguna's control tokens, and how to find them in text.
//!
//! They are ordinary text to everything but the tokenizer, which turns each spelling into one id wherever it stands.
//! That is why this room must know which spellings came from the template and which from a user.

use std::ops::Range;

/// Opens reasoning.
pub const THINK: &str = "<think>";
/// Ends reasoning.
pub const END_THINK: &str = "</think>";
/// Opens the model's turn.
pub const ASSISTANT: &str = "<assistant>";
/// Ends the model's turn. One token, a stop id, and not special: decoding shows it.
pub const END_ASSISTANT: &str = "</assistant>";
/// Opens a call; the tool's name follows.
pub const TOOL_CALL: &str = "<tool_call>";
/// Ends a call.
pub const END_TOOL_CALL: &str = "</tool_call>";
/// Opens an argument's name.
pub const ARG_KEY: &str = "<arg_key>";
/// Ends an argument's name.
pub const END_ARG_KEY: &str = "</arg_key>";
/// Opens an argument's value.
pub const ARG_VALUE: &str = "<arg_value>";
/// Ends an argument's value.
pub const END_ARG_VALUE: &str = "</arg_value>";
/// Opens every sequence and ends every document.
pub const EOS: &str = "〈|EOS|〉";

/// Every spelling that the tokenizer turns into one id, longest first.
#[derive(Clone, Debug)]
pub struct ControlTokens(Vec<String>);

impl ControlTokens {
    /// Laguna's own tokens and `extra` (the tokenizer's added tokens). Blank ones are left out: white space inside a
    /// message controls nothing.
    pub fn new(extra: impl IntoIterator<Item = String>) -> Self {
        let own = [THINK, END_THINK, ASSISTANT, END_ASSISTANT, TOOL_CALL, END_TOOL_CALL, EOS];
        let mut tokens: Vec<String> = own.into_iter().map(str::to_owned).chain(extra).collect();
        tokens.retain(|token| !token.trim().is_empty());
        tokens.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        tokens.dedup();
        Self(tokens)
    }

    /// The spellings, longest first.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// The token that `text` begins with, the longest if several do.
    pub fn at_start(&self, text: &str) -> Option<&str> {
        self.iter().find(|token| text.starts_with(token))
    }

    /// Byte ranges of the tokens in `text`: leftmost first, longest first, none overlapping.
    pub fn find(&self, text: &str) -> Vec<Range<usize>> {
        let mut first = [false; 256];
        for token in self.iter() {
            first[usize::from(token.as_bytes()[0])] = true;
        }
        let bytes = text.as_bytes();
        let (mut found, mut at) = (Vec::new(), 0);
        while at < bytes.len() {
            // A token's first byte begins a character, so `at` is a boundary whenever it matches.
            match first[usize::from(bytes[at])].then(|| self.at_start(&text[at..])).flatten() {
                Some(token) => {
                    found.push(at..at + token.len());
                    at += token.len();
                }
                None => at += 1,
            }
        }
        found
    }
}

impl Default for ControlTokens {
    /// Laguna's own tokens only.
    fn default() -> Self {
        Self::new([])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftmost_longest_and_blank_ones_dropped() {
        let tokens =
            ControlTokens::new(["<user>".to_owned(), "<user>x".to_owned(), "\n\n".to_owned(), String::new()]);
        let text = "ü<user>x〈|EOS|〉</think>\n\n<user> <user";
        let found: Vec<&str> = tokens.find(text).into_iter().map(|range| &text[range]).collect();
        assert_eq!(found, ["<user>x", EOS, END_THINK, "<user>"]);
    }
}
