//! How a chat sounds: the answer on stdout and nothing else; reasoning, progress and what it took on stderr, and only
//! where somebody looks at it.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use super::stream::{Delta, Usage};
use crate::cli::failure::Failure;
use crate::cli::output;

/// Where a chat is heard.
#[derive(Clone, Copy, Debug)]
pub struct Voice {
    /// The answer goes to a terminal: its control characters are shown, not obeyed.
    pub guarded: bool,
    /// Somebody looks at stderr.
    pub seen: bool,
    /// Reasoning and figures are dimmed.
    pub color: bool,
}

/// One answer as it is told.
#[derive(Debug)]
pub struct Telling {
    voice: Voice,
    began: Instant,
    first: Option<Instant>,
    last: Instant,
    /// Something stands in stderr's present line.
    progress: bool,
    thinking: bool,
    /// The newest character of the answer.
    newest: Option<char>,
    /// What was said.
    pub content: String,
    /// What was thought.
    pub reasoning: String,
    usage: Option<Usage>,
    cut: bool,
}

impl Voice {
    /// As this process's streams are.
    pub fn of_process() -> Self {
        let seen = std::io::stderr().is_terminal();
        Self {
            guarded: std::io::stdout().is_terminal(),
            seen,
            color: seen && std::env::var_os("NO_COLOR").is_none(),
        }
    }

    /// Something about the talk, not of it.
    pub fn note(self, text: &str) {
        if self.seen {
            let (dim, plain) = self.dim();
            output::say(format_args!("{dim}{text}{plain}"));
        }
    }

    const fn dim(self) -> (&'static str, &'static str) {
        if self.color { ("\x1b[2m", "\x1b[0m") } else { ("", "") }
    }
}

impl Telling {
    /// Begins.
    pub fn new(voice: Voice) -> Self {
        let now = Instant::now();
        Self {
            voice,
            began: now,
            first: None,
            last: now,
            progress: false,
            thinking: false,
            newest: None,
            content: String::new(),
            reasoning: String::new(),
            usage: None,
            cut: false,
        }
    }

    /// Tells what came.
    ///
    /// # Errors
    /// If stdout is gone.
    pub fn tell(&mut self, delta: Delta) -> Result<(), Failure> {
        match delta {
            Delta::Prompt { processed, total } if self.voice.seen => {
                let (dim, plain) = self.voice.dim();
                self.clear();
                self.progress = true;
                output::show(&format!("{dim}reading the prompt: {processed} of {total} tokens{plain}"));
            }
            Delta::Prompt { .. } => {}
            Delta::Reasoning(text) => {
                self.token();
                if self.voice.seen {
                    let dim = if self.thinking { "" } else { self.voice.dim().0 };
                    self.thinking = true;
                    output::show(&format!("{dim}{}", harmless(&text)));
                }
                self.reasoning.push_str(&text);
            }
            Delta::Content(text) => {
                self.token();
                self.stop_thinking();
                self.newest = text.chars().next_back().or(self.newest);
                if self.voice.guarded {
                    output::data(&harmless(&text))?
                } else {
                    output::data(&text)?
                }
                self.content.push_str(&text);
            }
            Delta::Finish(reason) => self.cut = reason == "length",
            Delta::Usage(usage) => self.usage = Some(usage),
        }
        Ok(())
    }

    /// Closes the last line, and tells what it took.
    ///
    /// # Errors
    /// If stdout is gone.
    pub fn end(&mut self) -> Result<(), Failure> {
        self.stop_thinking();
        self.clear();
        if self.newest.is_some_and(|newest| newest != '\n') {
            output::data("\n")?;
        }
        if self.cut {
            output::say("(cut: the limit of tokens was reached)");
        }
        if let Some(usage) = self.usage {
            let first = self.first.map(|first| first - self.began);
            let decode = self.first.map(|first| self.last - first);
            self.voice.note(&figures(usage, first, decode));
        }
        Ok(())
    }

    fn token(&mut self) {
        self.clear();
        self.last = Instant::now();
        self.first.get_or_insert(self.last);
    }

    fn stop_thinking(&mut self) {
        if std::mem::take(&mut self.thinking) {
            output::show(&format!("{}\n\n", self.voice.dim().1));
        }
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.progress) {
            output::show("\r\x1b[2K");
        }
    }
}

/// `812 prompt tokens (790 cached) · 64 new · first after 0.2 s · 31.4 tok/s`.
fn figures(usage: Usage, first: Option<Duration>, decode: Option<Duration>) -> String {
    let Usage { prompt, cached, completion } = usage;
    let mut parts = vec![format!("{prompt} prompt tokens ({cached} cached)"), format!("{completion} new")];
    parts.extend(first.map(|first| format!("first after {:.1} s", first.as_secs_f64())));
    // The first token belongs to the prompt's time.
    let decode = decode.filter(|decode| completion > 1 && !decode.is_zero());
    let rate = |decode: Duration| (completion - 1) as f64 / decode.as_secs_f64();
    parts.extend(decode.map(|decode| format!("{:.1} tok/s", rate(decode))));
    parts.join(" · ")
}

/// Text that moves no cursor and rings no bell.
fn harmless(text: &str) -> String {
    let shown =
        |c: char| if c.is_control() && !matches!(c, '\n' | '\t') { char::REPLACEMENT_CHARACTER } else { c };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_shown_not_obeyed() {
        assert_eq!(harmless("a\x1b[2Jb\u{9b}\r\n\tç🌊"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}\n\tç🌊");
    }

    #[test]
    fn figures_leave_out_what_is_not_known() {
        let usage = Usage { prompt: 9, cached: 3, completion: 11 };
        let (first, decode) = (Some(Duration::from_millis(250)), Some(Duration::from_secs(2)));
        assert_eq!(
            figures(usage, first, decode),
            "9 prompt tokens (3 cached) · 11 new · first after 0.2 s · 5.0 tok/s"
        );
        assert_eq!(
            figures(Usage { completion: 1, ..usage }, None, decode),
            "9 prompt tokens (3 cached) · 1 new"
        );
    }
}
