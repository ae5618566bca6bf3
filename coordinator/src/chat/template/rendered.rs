//! A rendered prompt, and which of its control tokens the template wrote.
//!
//! The tokenizer turns `</assistant>` into id 24 wherever it stands, so a user who quotes it would end the turn. The
//! text can't be changed (it is what the model must read), so each token is attributed instead: the conversation is
//! rendered once more with a private mark beside every control token inside it, and a token that comes out marked
//! belongs to the content. The marked text is only compared; where marks changed what the template did (it may look at
//! how a string begins or ends), another place for the mark is tried, and tokens in doubt count as content.

use std::ops::Range;

use super::thinking::Thinking;
use crate::chat::marker::{ASSISTANT, ControlTokens, END_ASSISTANT, END_THINK, THINK};

/// Who wrote a stretch of the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The template: the token is meant as control.
    Template,
    /// A message, a tool or a document: the token is text.
    Content,
}

/// A control token's spelling in the prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Bytes of [`Rendered::text`].
    pub range: Range<usize>,
    /// Who wrote it.
    pub owner: Owner,
}

/// A stretch of the prompt to tokenise on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The stretch.
    pub text: &'a str,
    /// Encode without the tokenizer's added tokens: control spellings in it are a user's.
    pub verbatim: bool,
}

/// A prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The text, as transformers renders it.
    pub text: String,
    /// Every control token in the text, in order.
    pub spans: Vec<Span>,
}

impl Rendered {
    /// The text in pieces for the tokenizer; joined they are the text. No message with control spellings, one piece.
    ///
    /// Around a user's token the text is cut at the template's nearest tokens, where the tokenizer cuts it anyway, so
    /// ids of everything else stay what they are without the cut.
    pub fn pieces(&self) -> Vec<Piece<'_>> {
        let (mut pieces, mut start) = (Vec::new(), 0);
        let mut push = |range: Range<usize>, verbatim| {
            if !range.is_empty() {
                pieces.push(Piece { text: &self.text[range], verbatim });
            }
        };
        let mut spans = self.spans.iter().peekable();
        let mut last_template = 0;
        while let Some(span) = spans.next() {
            if span.owner == Owner::Template {
                last_template = span.range.end;
                continue;
            }
            while spans.next_if(|next| next.owner == Owner::Content).is_some() {}
            let end = spans.peek().map_or(self.text.len(), |next| next.range.start);
            push(start..last_template, false);
            push(last_template..end, true);
            start = end;
        }
        push(start..self.text.len(), false);
        pieces
    }

    /// The thinking state at the end, from the template's tokens alone.
    pub fn thinking(&self) -> Thinking {
        let own = self.spans.iter().rev().filter(|span| span.owner == Owner::Template);
        let mut state = Thinking::Unstated;
        for span in own {
            match &self.text[span.range.clone()] {
                ASSISTANT => return state,
                END_ASSISTANT => return Thinking::Unstated,
                THINK if state == Thinking::Unstated => state = Thinking::Open,
                END_THINK if state == Thinking::Unstated => state = Thinking::Closed,
                _ => {}
            }
        }
        Thinking::Unstated
    }

    /// Whether the template pads its tags with newlines (XS.2's dialect): one follows the opening of the last turn.
    pub fn is_padded(&self) -> bool {
        let own = |span: &&Span| span.owner == Owner::Template && &self.text[span.range.clone()] == ASSISTANT;
        let last = self.spans.iter().rev().find(own);
        last.is_some_and(|span| self.text[span.range.end..].starts_with('\n'))
    }

    /// A prompt whose tokens are all the template's.
    pub(super) fn unmarked(text: String, tokens: &ControlTokens) -> Self {
        let owned = |range| Span { range, owner: Owner::Template };
        let spans = tokens.find(&text).into_iter().map(owned).collect();
        Self { text, spans }
    }

    /// Attributes tokens by `marked`, the same prompt with marks: one that is marked there becomes content's. Whether
    /// the two had the same tokens in order; if not, what has no twin becomes content's too.
    pub(super) fn attribute(&mut self, marked: &str, mark: Mark, tokens: &ControlTokens) -> bool {
        let found = tokens.find(marked);
        let mut exact = found.len() == self.spans.len();
        let mut candidates = found.into_iter();
        let owners = self.spans.iter().map(|span| {
            let spelling = &self.text[span.range.clone()];
            let twin = candidates.clone().take(LOOK_AHEAD).position(|range| &marked[range] == spelling);
            exact &= twin == Some(0);
            match twin.and_then(|index| candidates.nth(index)) {
                Some(range) if !mark.is_beside(marked, &range) => Owner::Template,
                _ => Owner::Content,
            }
        });
        let owners: Vec<Owner> = owners.collect();
        for (span, owner) in self.spans.iter_mut().zip(owners) {
            // An earlier, inexact attempt may have found content that this one missed, and may have been wrong.
            if exact || owner == Owner::Content {
                span.owner = owner;
            }
        }
        exact
    }
}

/// A character that neither the prompt nor the conversation contains, and where it stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    character: char,
    /// Behind the token, or else before it.
    behind: bool,
}

impl Mark {
    /// Marks to try, in order: behind a token `startswith` still finds it, before a token `endswith` does.
    pub(super) fn choose(text: &str) -> [Self; 2] {
        // The private area holds 6,400 characters; a text that uses all of them gets an ambiguous mark, no more.
        let character = ('\u{e000}'..='\u{f8ff}').find(|c| !text.contains(*c)).unwrap_or('\u{e000}');
        [true, false].map(|behind| Self { character, behind })
    }

    /// `text` with a mark beside every token.
    pub(super) fn apply(self, text: &str, tokens: &ControlTokens) -> String {
        let mut out = String::with_capacity(text.len() + 8);
        let mut at = 0;
        for range in tokens.find(text) {
            let cut = if self.behind { range.end } else { range.start };
            out.push_str(&text[at..cut]);
            out.push(self.character);
            at = cut;
        }
        out.push_str(&text[at..]);
        out
    }

    /// Whether a mark stands beside `range`, itself or as `tojson(ensure_ascii=true)` escapes it.
    fn is_beside(self, text: &str, range: &Range<usize>) -> bool {
        let escaped = format!("\\u{:04x}", u32::from(self.character));
        if self.behind {
            let rest = &text[range.end..];
            rest.starts_with(self.character) || rest.starts_with(&escaped)
        } else {
            let rest = &text[..range.start];
            rest.ends_with(self.character) || rest.ends_with(&escaped)
        }
    }
}

/// Tokens to skip in search of a twin: more than a template drops or adds in one place.
const LOOK_AHEAD: usize = 64;
