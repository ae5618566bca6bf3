//! A message's content blocks, in one piece or as events.

use serde_json::{Map, Value, json};

use crate::chat::{Event as Said, FinishReason};
use crate::http::error::Fault;
use crate::http::ids;
use crate::http::sse::{Frames, Narrator};
use crate::http::state::App;
use crate::http::turn::{End, TurnEvent, TurnUsage, Whole};

/// A message in one piece.
pub fn whole(id: &str, model: &str, whole: Whole) -> Value {
    let reply = whole.reply;
    let mut content = Vec::new();
    if !reply.reasoning.is_empty() {
        content
            .push(json!({"type": "thinking", "thinking": reply.reasoning, "signature": ids::unique("sig_")}));
    }
    if !reply.content.is_empty() {
        content.push(json!({"type": "text", "text": reply.content}));
    }
    for call in reply.calls {
        let input = closed(&call.arguments);
        content.push(
            json!({"type": "tool_use", "id": ids::unique("toolu_"), "name": call.name, "input": input}),
        );
    }
    let mut message = message(id, model, content.into());
    message["stop_reason"] = json!(stop_reason(&whole.end));
    message["stop_sequence"] = json!(whole.end.stopped);
    message["usage"] = usage(whole.end.usage);
    message
}

/// Arguments as an object. Of a call the budget cut short, those that were complete.
fn closed(arguments: &str) -> Value {
    if let Ok(Value::Object(whole)) = serde_json::from_str(arguments) {
        return Value::Object(whole);
    }
    let (mut depth, mut quoted, mut escaped, mut cuts) = (0_usize, false, false, Vec::new());
    for (at, c) in arguments.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ if quoted => {}
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            ',' if depth == 1 => cuts.push(at),
            _ => {}
        }
    }
    let candidates = std::iter::once(arguments.len()).chain(cuts.into_iter().rev());
    let parsed =
        candidates.map(|at| serde_json::from_str::<Map<String, Value>>(&format!("{}}}", &arguments[..at])));
    Value::Object(parsed.flatten().next().unwrap_or_default())
}

fn message(id: &str, model: &str, content: Value) -> Value {
    json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": null,
        "stop_sequence": null,
    })
}

const fn stop_reason(end: &End) -> &'static str {
    match end.finish {
        FinishReason::ToolCalls => "tool_use",
        FinishReason::Length => "max_tokens",
        FinishReason::Stop if end.stopped.is_some() => "stop_sequence",
        FinishReason::Stop => "end_turn",
    }
}

/// Anthropic counts cached tokens by themselves.
fn usage(usage: TurnUsage) -> Value {
    json!({
        "input_tokens": usage.prompt.saturating_sub(usage.cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
    })
}

/// Tells a turn as blocks that start, grow and stop.
pub struct Blocks {
    id: String,
    model: String,
    usage: TurnUsage,
    /// Blocks begun.
    begun: usize,
    open: Option<Open>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Thinking,
    Text,
    Call(usize),
}

impl Blocks {
    /// The events of one message.
    pub fn new(id: String, model: String, prompt_tokens: usize) -> Self {
        let usage = TurnUsage { prompt: prompt_tokens, ..TurnUsage::default() };
        Self { id, model, usage, begun: 0, open: None }
    }

    fn index(&self) -> usize {
        self.begun.saturating_sub(1)
    }

    /// Makes `wanted` the open block.
    fn within(&mut self, wanted: Open, empty: impl FnOnce() -> Value, out: &mut Frames) {
        if self.open == Some(wanted) {
            return;
        }
        self.stop(out);
        self.begun += 1;
        self.open = Some(wanted);
        let start = json!({"type": "content_block_start", "index": self.index(), "content_block": empty()});
        out.event("content_block_start", &start);
    }

    fn delta(&self, delta: Value, out: &mut Frames) {
        let event = json!({"type": "content_block_delta", "index": self.index(), "delta": delta});
        out.event("content_block_delta", &event);
    }

    fn stop(&mut self, out: &mut Frames) {
        match self.open.take() {
            None => return,
            // Clients send the block back only with a signature.
            Some(Open::Thinking) => {
                self.delta(json!({"type": "signature_delta", "signature": ids::unique("sig_")}), out);
            }
            Some(Open::Text | Open::Call(_)) => {}
        }
        out.event("content_block_stop", &json!({"type": "content_block_stop", "index": self.index()}));
    }

    fn said(&mut self, said: Said, out: &mut Frames) {
        match said {
            Said::Reasoning(text) => {
                let empty = || json!({"type": "thinking", "thinking": "", "signature": ""});
                self.within(Open::Thinking, empty, out);
                self.delta(json!({"type": "thinking_delta", "thinking": text}), out);
            }
            Said::Content(text) => {
                self.within(Open::Text, || json!({"type": "text", "text": ""}), out);
                self.delta(json!({"type": "text_delta", "text": text}), out);
            }
            Said::CallStart { index, name } => {
                let empty =
                    || json!({"type": "tool_use", "id": ids::unique("toolu_"), "name": name, "input": {}});
                self.within(Open::Call(index), empty, out);
            }
            Said::CallArguments { fragment, .. } => {
                self.delta(json!({"type": "input_json_delta", "partial_json": fragment}), out);
            }
            Said::CallEnd { .. } => self.stop(out),
            Said::Finish(_) => {}
        }
    }
}

impl Narrator for Blocks {
    fn open(&mut self, _: &App, out: &mut Frames) {
        let mut message = message(&self.id, &self.model, json!([]));
        message["usage"] = usage(self.usage);
        out.event("message_start", &json!({"type": "message_start", "message": message}));
    }

    fn tell(&mut self, _: &App, event: TurnEvent, out: &mut Frames) {
        match event {
            TurnEvent::Progress(_) => {}
            TurnEvent::Said { said, .. } => self.said(said, out),
            TurnEvent::End(end) => {
                self.stop(out);
                let delta = json!({"stop_reason": stop_reason(&end), "stop_sequence": end.stopped});
                let usage = usage(end.usage);
                out.event("message_delta", &json!({"type": "message_delta", "delta": delta, "usage": usage}));
                out.event("message_stop", &json!({"type": "message_stop"}));
            }
        }
    }

    fn keep_alive(&mut self, _: &App, out: &mut Frames) {
        out.event("ping", &json!({"type": "ping"}));
    }

    fn fail(&mut self, fault: &Fault, out: &mut Frames) {
        out.event("error", &fault.anthropic());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_cut_call_the_complete_arguments_are_kept() {
        for (arguments, kept) in [
            (r#"{"a":"x","b":[1,2]}"#, json!({"a": "x", "b": [1, 2]})),
            (r#"{"a":"x, \"y","b":"unfin"#, json!({"a": "x, \"y"})),
            (r#"{"a":{"b":1,"c":2},"d":"#, json!({"a": {"b": 1, "c": 2}})),
            (r#"{"a":"#, json!({})),
            (r#"{"a":1"#, json!({"a": 1})),
            ("", json!({})),
        ] {
            assert_eq!(closed(arguments), kept, "{arguments}");
        }
    }
}
