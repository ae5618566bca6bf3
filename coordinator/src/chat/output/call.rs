//! The states of a call: its name, then keys and values, then its end.
//!
//! Both forms are read: `<tool_call>name<arg_key>…` and the older one with a newline after the name and between tags.
//! Text between tags means nothing. A value ends at `</arg_value>` and nowhere else: whatever other marker stands in
//! it is payload.

use serde_json::Value;

use super::argument::{Argument, escaped};
use super::event::Event;
use super::scan::Found;
use super::schema::ToolSchemas;
use crate::chat::marker::{ARG_KEY, ARG_VALUE, END_ARG_KEY, END_ARG_VALUE, END_TOOL_CALL, TOOL_CALL};

/// A call that is still arriving.
#[derive(Clone, Debug)]
pub(super) struct Call {
    index: usize,
    phase: Phase,
    name: String,
    /// Keys given so far.
    keys: Vec<String>,
    /// Text outside of tags: the arguments, if the model wrote them as one JSON object.
    loose: String,
}

#[derive(Clone, Debug)]
enum Phase {
    /// Before the end of the name. Nothing has been told.
    Name,
    /// The whole call is one JSON object, against the protocol. Nothing has been told.
    Json,
    /// Between arguments.
    Between,
    /// Inside a key.
    Key(String),
    /// Between a key and its value.
    BeforeValue(String),
    /// Inside a value.
    Value(Argument),
}

/// What became of a call after some text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It goes on.
    Open,
    /// It is complete.
    Complete,
    /// It is complete without its end tag, and another one has begun.
    Followed,
    /// It was no call: this text was content.
    Text(String),
}

impl Call {
    pub(super) fn new(index: usize) -> Self {
        Self { index, phase: Phase::Name, name: String::new(), keys: Vec::new(), loose: String::new() }
    }

    /// The markers that mean something now.
    pub(super) const fn markers(&self) -> &'static [&'static str] {
        match self.phase {
            Phase::Name => &[ARG_KEY, END_TOOL_CALL, TOOL_CALL, "\n"],
            Phase::Json => &[END_TOOL_CALL],
            Phase::Between => &[ARG_KEY, END_TOOL_CALL, TOOL_CALL],
            Phase::Key(_) => &[END_ARG_KEY, ARG_VALUE, END_TOOL_CALL],
            Phase::BeforeValue(_) => &[ARG_VALUE, ARG_KEY, END_TOOL_CALL],
            Phase::Value(_) => &[END_ARG_VALUE],
        }
    }

    /// Whether the client has been told of this call.
    pub(super) const fn is_told(&self) -> bool {
        !matches!(self.phase, Phase::Name | Phase::Json)
    }

    /// Takes what stood at the front of the text.
    pub(super) fn take(&mut self, found: Found, schemas: &ToolSchemas, events: &mut Vec<Event>) -> Outcome {
        let (text, marker) = match found {
            Found::Text(text) => (text, None),
            Found::Marker(text, marker) => (text, Some(marker)),
        };
        self.text(&text, events);
        let Some(marker) = marker else { return Outcome::Open };
        match (&mut self.phase, marker) {
            (Phase::Name, _) => self.end_name(marker, events),
            (Phase::Json, _) => self.end_json(marker, events),
            (Phase::Value(_), _) => {
                self.end_value(events);
                Outcome::Open
            }
            (_, END_TOOL_CALL) => self.end(Outcome::Complete, events),
            (_, TOOL_CALL) => self.end(Outcome::Followed, events),
            (_, ARG_KEY) => {
                self.phase = Phase::Key(String::new());
                Outcome::Open
            }
            (Phase::Key(key), END_ARG_KEY) => {
                self.phase = Phase::BeforeValue(key.trim().to_owned());
                Outcome::Open
            }
            (Phase::Key(key) | Phase::BeforeValue(key), _) => {
                let key = key.trim().to_owned();
                self.begin_value(key, schemas, events);
                Outcome::Open
            }
            (Phase::Between, _) => Outcome::Open,
        }
    }

    /// The model ended its turn inside the call: `rest` is the text after the last marker. What can be told of the
    /// call is told and closed.
    pub(super) fn finish(mut self, rest: &str, events: &mut Vec<Event>) -> Outcome {
        self.text(rest, events);
        match self.phase {
            Phase::Name | Phase::Json if self.name.trim_start().starts_with('{') => self.end_json("", events),
            Phase::Name | Phase::Json if self.name.trim().is_empty() => Outcome::Text(String::new()),
            Phase::Name | Phase::Json => {
                self.start(events);
                self.end(Outcome::Complete, events)
            }
            Phase::Value(_) => {
                self.end_value(events);
                self.end(Outcome::Complete, events)
            }
            _ => self.end(Outcome::Complete, events),
        }
    }

    /// The turn was cut inside the call: nothing more is told, and its JSON stays open.
    pub(super) fn cut(self, events: &mut Vec<Event>) {
        if self.is_told() {
            events.push(Event::CallEnd { index: self.index, complete: false });
        }
    }

    fn text(&mut self, text: &str, events: &mut Vec<Event>) {
        match &mut self.phase {
            Phase::Name | Phase::Json => self.name.push_str(text),
            Phase::Between => self.loose.push_str(text),
            Phase::Key(key) => key.push_str(text),
            Phase::BeforeValue(_) => {}
            Phase::Value(argument) => {
                let fragment = argument.push(text);
                self.tell(fragment, events);
            }
        }
    }

    fn end_name(&mut self, marker: &'static str, events: &mut Vec<Event>) -> Outcome {
        let name = self.name.trim();
        if name.starts_with('{') {
            if marker == END_TOOL_CALL {
                return self.end_json(marker, events);
            }
            self.name.push_str(marker);
            self.phase = Phase::Json;
            return Outcome::Open;
        }
        match (name.is_empty(), marker) {
            // Only white space so far, or the opening tag twice.
            (true, "\n" | TOOL_CALL) => Outcome::Open,
            (true, _) => Outcome::Text(format!("{TOOL_CALL}{marker}")),
            (false, _) => {
                self.start(events);
                match marker {
                    END_TOOL_CALL => self.end(Outcome::Complete, events),
                    TOOL_CALL => self.end(Outcome::Followed, events),
                    ARG_KEY => {
                        self.phase = Phase::Key(String::new());
                        Outcome::Open
                    }
                    _ => Outcome::Open,
                }
            }
        }
    }

    fn start(&mut self, events: &mut Vec<Event>) {
        self.name = self.name.trim().to_owned();
        self.phase = Phase::Between;
        events.push(Event::CallStart { index: self.index, name: self.name.clone() });
    }

    /// A call written as `{"name": …, "arguments": {…}}`; text if it is not.
    fn end_json(&mut self, marker: &str, events: &mut Vec<Event>) -> Outcome {
        let call = serde_json::from_str::<Value>(&self.name).unwrap_or_default();
        let name = call.get("name").and_then(Value::as_str).filter(|name| !name.trim().is_empty());
        let arguments = call.get("arguments").or_else(|| call.get("parameters"));
        match (name, arguments) {
            (Some(name), None | Some(Value::Object(_))) => {
                self.name = name.to_owned();
                self.loose = arguments.map_or_else(String::new, Value::to_string);
                self.start(events);
                self.end(Outcome::Complete, events)
            }
            _ => Outcome::Text(format!("{TOOL_CALL}{}{marker}", self.name)),
        }
    }

    fn begin_value(&mut self, key: String, schemas: &ToolSchemas, events: &mut Vec<Event>) {
        if self.keys.contains(&key) {
            self.phase = Phase::Value(Argument::Repeated);
            return;
        }
        let argument = Argument::new(schemas.types(&self.name, &key));
        let before = if self.keys.is_empty() { '{' } else { ',' };
        self.tell(format!("{before}\"{}\":{}", escaped(&key), argument.open()), events);
        self.keys.push(key);
        self.phase = Phase::Value(argument);
    }

    fn end_value(&mut self, events: &mut Vec<Event>) {
        if let Phase::Value(argument) = std::mem::replace(&mut self.phase, Phase::Between) {
            self.tell(argument.close(), events);
        }
    }

    fn end(&mut self, outcome: Outcome, events: &mut Vec<Event>) -> Outcome {
        if self.keys.is_empty() {
            let loose = self.loose.trim();
            let object = serde_json::from_str::<Value>(loose).is_ok_and(|value| value.is_object());
            self.tell(if object { loose.to_owned() } else { "{}".to_owned() }, events);
        } else {
            self.tell("}".to_owned(), events);
        }
        events.push(Event::CallEnd { index: self.index, complete: true });
        outcome
    }

    fn tell(&self, fragment: String, events: &mut Vec<Event>) {
        super::event::append(events, Event::CallArguments { index: self.index, fragment });
    }
}
