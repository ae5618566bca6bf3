//! What a parser tells, and the whole reply put together from it.

/// Something the model said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// More of its reasoning. Never empty.
    Reasoning(String),
    /// More of its answer. Never empty.
    Content(String),
    /// A call begins. Its whole name is known.
    CallStart {
        /// 0 for the turn's first call, then 1, 2, …
        index: usize,
        /// The tool, as the model spelled it; it may not exist.
        name: String,
    },
    /// More of the call's arguments, as JSON text. Joined, a complete call's fragments are one object.
    CallArguments {
        /// The call.
        index: usize,
        /// Never empty.
        fragment: String,
    },
    /// A call has ended.
    CallEnd {
        /// The call.
        index: usize,
        /// Whether it is whole. If the budget cut it, its JSON stays unclosed, so that nobody runs half a call.
        complete: bool,
    },
    /// The turn has ended. Always the last event.
    Finish(FinishReason),
}

/// Why no more text comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The model ended its turn with a stop token.
    Token,
    /// A stop string of the request was found.
    StopString,
    /// The token budget or the context is used up.
    Length,
}

/// Why the turn ended, as a client should understand it: computed from what it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model said all it wanted.
    Stop,
    /// The budget cut a call, or text with no complete call before it.
    Length,
    /// At least one complete call waits for its result, and no call was cut.
    ToolCalls,
}

/// A whole turn, for clients that don't stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// All reasoning; empty if there was none.
    pub reasoning: String,
    /// The whole answer; empty if there was none.
    pub content: String,
    /// Calls in order.
    pub calls: Vec<ReplyCall>,
    /// None until the turn has ended.
    pub finish: Option<FinishReason>,
}

/// A call in a whole turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplyCall {
    /// The tool.
    pub name: String,
    /// JSON text of the arguments; an object if the call is complete.
    pub arguments: String,
    /// Whether the call is whole.
    pub complete: bool,
}

impl Reply {
    /// Adds an event.
    pub fn add(&mut self, event: Event) {
        match event {
            Event::Reasoning(text) => self.reasoning.push_str(&text),
            Event::Content(text) => self.content.push_str(&text),
            Event::CallStart { name, .. } => self.calls.push(ReplyCall { name, ..ReplyCall::default() }),
            Event::CallArguments { index, fragment } => {
                if let Some(call) = self.calls.get_mut(index) {
                    call.arguments.push_str(&fragment);
                }
            }
            Event::CallEnd { index, complete } => {
                if let Some(call) = self.calls.get_mut(index) {
                    call.complete = complete;
                }
            }
            Event::Finish(reason) => self.finish = Some(reason),
        }
    }
}

impl Extend<Event> for Reply {
    fn extend<T: IntoIterator<Item = Event>>(&mut self, events: T) {
        events.into_iter().for_each(|event| self.add(event));
    }
}

impl FromIterator<Event> for Reply {
    fn from_iter<T: IntoIterator<Item = Event>>(events: T) -> Self {
        let mut reply = Self::default();
        reply.extend(events);
        reply
    }
}

/// Appends `event`, joined to the last one if both are text of the same kind; empty text is no event.
pub(super) fn append(events: &mut Vec<Event>, event: Event) {
    match (events.last_mut(), event) {
        (_, Event::Reasoning(text) | Event::Content(text) | Event::CallArguments { fragment: text, .. })
            if text.is_empty() => {}
        (Some(Event::Reasoning(last)), Event::Reasoning(text))
        | (Some(Event::Content(last)), Event::Content(text)) => last.push_str(&text),
        (
            Some(Event::CallArguments { index: same, fragment: last }),
            Event::CallArguments { index, fragment },
        ) if *same == index => {
            last.push_str(&fragment);
        }
        (_, event) => events.push(event),
    }
}
