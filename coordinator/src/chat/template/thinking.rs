//! Whether the model's turn begins inside its reasoning: read from the end of the prompt, not from any flag.

use crate::chat::marker::{ASSISTANT, END_ASSISTANT, END_THINK, THINK};

/// What the prompt says about reasoning in the turn it opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thinking {
    /// The prompt ends inside `<think>`: output begins with reasoning.
    Open,
    /// The prompt has closed reasoning: output begins with content.
    Closed,
    /// The prompt says nothing, or opens no turn; output may open reasoning itself.
    Unstated,
}

/// The thinking state at the end of a prompt: the last `<think>` or `</think>` after the last `<assistant>`.
///
/// Earlier turns are not looked at, they hold `</think>` whatever this turn does. Where the prompt was rendered here,
/// [`Rendered::thinking`](super::Rendered::thinking) is the safer question: it can't be misled by user text.
pub fn prompt_tail(text: &str) -> Thinking {
    let Some(turn) = text.rfind(ASSISTANT) else { return Thinking::Unstated };
    let turn = &text[turn..];
    if turn.contains(END_ASSISTANT) {
        return Thinking::Unstated;
    }
    match (turn.rfind(THINK), turn.rfind(END_THINK)) {
        (None, None) => Thinking::Unstated,
        (open, close) if open > close => Thinking::Open,
        _ => Thinking::Closed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_turn_counts() {
        for (prompt, state) in [
            ("<assistant></think>a</assistant>\n<user>b</user>\n<assistant><think>", Thinking::Open),
            (
                "<assistant><think>a</think>b</assistant>\n<user>c</user>\n<assistant></think>",
                Thinking::Closed,
            ),
            ("<assistant>\n<think>\n", Thinking::Open),
            ("<assistant><think></think>", Thinking::Closed),
            ("<assistant>\n</think>a</assistant>\n<user>b</user>\n<assistant>\n", Thinking::Unstated),
            ("<assistant></think>a</assistant>\n", Thinking::Unstated),
            ("def f():", Thinking::Unstated),
            ("<think>", Thinking::Unstated),
        ] {
            assert_eq!(prompt_tail(prompt), state, "{prompt}");
        }
    }
}
