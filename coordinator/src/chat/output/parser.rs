//! The states of a turn: reasoning, content, call, and content again.

use super::call::{Call, Outcome};
use super::event::{Ended, Event, FinishReason, append};
use super::scan::{Found, Scanner, turn_end};
use super::schema::ToolSchemas;
use crate::chat::marker::{END_ASSISTANT, END_THINK, THINK, TOOL_CALL};
use crate::chat::stop::overlap;
use crate::chat::template::{Rendered, Thinking};

/// Reads one turn of the model. Drive it with [`push`](Self::push) for every piece of text and
/// [`finish`](Self::finish) once; each returns the events that became certain.
#[derive(Clone, Debug)]
pub struct Parser {
    scanner: Scanner,
    state: State,
    schemas: ToolSchemas,
    /// The dialect that pads every tag with newlines, which belong to no text.
    padded: bool,
    /// Whether calls are read; else their markup is text.
    calls: bool,
    /// Calls told of so far.
    told: usize,
    /// Calls told of and complete.
    complete: usize,
}

#[derive(Clone, Debug)]
enum State {
    Prose(Prose),
    Call(Call),
}

/// Reasoning or content.
#[derive(Clone, Debug)]
struct Prose {
    reasoning: bool,
    /// White space the text began with, while there is nothing else. Only white space is no text.
    blank: Option<String>,
}

impl Prose {
    const fn new(reasoning: bool) -> Self {
        Self { reasoning, blank: Some(String::new()) }
    }

    fn event(&self, text: String) -> Event {
        if self.reasoning { Event::Reasoning(text) } else { Event::Content(text) }
    }
}

impl Parser {
    /// A parser for a turn that begins as `thinking` says.
    pub const fn new(thinking: Thinking, schemas: ToolSchemas) -> Self {
        let reasoning = matches!(thinking, Thinking::Open);
        Self {
            scanner: Scanner::new(),
            state: State::Prose(Prose::new(reasoning)),
            schemas,
            padded: false,
            calls: true,
            told: 0,
            complete: 0,
        }
    }

    /// A parser for the turn that `prompt` opens.
    pub fn for_prompt(prompt: &Rendered, schemas: ToolSchemas) -> Self {
        Self { padded: prompt.is_padded(), ..Self::new(prompt.thinking(), schemas) }
    }

    /// Sets whether one newline beside each tag belongs to the tag, as in XS.2's dialect.
    #[must_use]
    pub const fn padded(mut self, padded: bool) -> Self {
        self.padded = padded;
        self
    }

    /// Leaves call markup in the text, for requests that rule calls out.
    #[must_use]
    pub const fn without_calls(mut self) -> Self {
        self.calls = false;
        self
    }

    /// Takes the next piece of decoded text, control tokens spelled out.
    pub fn push(&mut self, piece: &str) -> Vec<Event> {
        self.scanner.push(piece);
        let mut events = Vec::new();
        while self.step(&mut events) {}
        events
    }

    /// Ends the turn. The last event is [`Event::Finish`].
    pub fn finish(mut self, ended: Ended) -> Vec<Event> {
        let mut events = Vec::new();
        let mut cut_call = false;
        let mut rest = self.scanner.take_all();
        if ended == Ended::Token {
            let trimmed = rest.trim_end();
            if let Some(text) = trimmed.strip_suffix(END_ASSISTANT) {
                rest.truncate(text.len());
            }
        }
        match self.state {
            State::Prose(mut prose) => {
                if self.padded && ended == Ended::Token && rest.ends_with('\n') {
                    rest.pop();
                }
                if !rest.trim().is_empty() || prose.blank.is_none() {
                    let blank = Self::without_padding(prose.blank.take().unwrap_or_default(), self.padded);
                    append(&mut events, prose.event(blank + &rest));
                }
            }
            State::Call(call) if ended == Ended::Token => {
                match call.finish(&rest, &mut events) {
                    Outcome::Text(text) => append(&mut events, Event::Content(text)),
                    _ => self.complete += 1,
                };
            }
            State::Call(call) => {
                cut_call = true;
                call.cut(&mut events);
            }
        }
        let reason = match ended {
            Ended::Length if cut_call || self.complete == 0 => FinishReason::Length,
            _ if self.complete > 0 => FinishReason::ToolCalls,
            _ => FinishReason::Stop,
        };
        events.push(Event::Finish(reason));
        events
    }

    /// One transition. Whether there may be another one without more text.
    fn step(&mut self, events: &mut Vec<Event>) -> bool {
        match &mut self.state {
            State::Prose(prose) if prose.blank.is_some() => self.begin_prose(events),
            State::Prose(_) => self.continue_prose(events),
            State::Call(call) => {
                let found = self.scanner.next(call.markers(), false);
                let waiting = matches!(found, Found::Text(_));
                let was_told = call.is_told();
                let outcome = call.take(found, &self.schemas, events);
                self.told += usize::from(!was_told && call.is_told());
                match outcome {
                    Outcome::Open => return !waiting,
                    Outcome::Complete => {
                        self.complete += 1;
                        self.state = State::Prose(Prose::new(false));
                    }
                    Outcome::Followed => {
                        self.complete += 1;
                        self.state = State::Call(Call::new(self.told));
                    }
                    Outcome::Text(text) => {
                        append(events, Event::Content(text));
                        self.state = State::Prose(Prose { reasoning: false, blank: None });
                    }
                }
                true
            }
        }
    }

    /// Before any text of a stretch of prose: white space, and tags that are told nowhere.
    fn begin_prose(&mut self, events: &mut Vec<Event>) -> bool {
        let State::Prose(prose) = &mut self.state else { return false };
        let Some(blank) = &mut prose.blank else { return true };
        let text = self.scanner.pending();
        let space = text.len() - text.trim_start().len();
        blank.push_str(&self.scanner.take(space));
        let text = self.scanner.pending();
        if text.is_empty() {
            return false;
        }

        let starts = |marker: &str| text.starts_with(marker);
        let next = if starts(THINK) {
            // Echoed, or a turn that opens its reasoning itself.
            Some((THINK.len(), State::Prose(Prose::new(true))))
        } else if starts(END_THINK) {
            // Empty reasoning, or a stray tag after reasoning that the prompt or a call has closed.
            Some((END_THINK.len(), State::Prose(Prose::new(false))))
        } else if self.calls && starts(TOOL_CALL) {
            Some((TOOL_CALL.len(), State::Call(Call::new(self.told))))
        } else {
            None
        };
        if let Some((length, state)) = next {
            self.scanner.take(length);
            self.state = state;
            return true;
        }

        let markers: &[&str] = if self.calls { &[THINK, END_THINK, TOOL_CALL] } else { &[THINK, END_THINK] };
        if turn_end(text) == 0 || markers.iter().any(|marker| overlap(text, marker) == text.len()) {
            return false;
        }
        let blank = Self::without_padding(prose.blank.take().unwrap_or_default(), self.padded);
        append(events, prose.event(blank));
        true
    }

    fn continue_prose(&mut self, events: &mut Vec<Event>) -> bool {
        let State::Prose(prose) = &self.state else { return false };
        let markers: &[&'static str] = match (prose.reasoning, self.calls) {
            (true, true) => &[END_THINK, TOOL_CALL],
            (true, false) => &[END_THINK],
            (false, true) => &[TOOL_CALL],
            (false, false) => &[],
        };
        match self.scanner.next(markers, self.padded) {
            Found::Text(text) => {
                append(events, prose.event(text));
                false
            }
            Found::Marker(mut text, marker) => {
                if self.padded && text.ends_with('\n') {
                    text.pop();
                }
                append(events, prose.event(text));
                self.state = match marker {
                    TOOL_CALL => State::Call(Call::new(self.told)),
                    _ => State::Prose(Prose::new(false)),
                };
                true
            }
        }
    }

    /// White space at the beginning of a text without the newline that belongs to the tag before it.
    fn without_padding(mut blank: String, padded: bool) -> String {
        if padded && blank.starts_with('\n') {
            blank.remove(0);
        }
        blank
    }
}
