//! A chat completion as chunks: role, deltas, one finish, usage if asked for, `[DONE]`.

use serde_json::{Map, Value, json};

use super::Head;
use super::request::Shape;
use crate::chat::Event as Said;
use crate::http::error::Fault;
use crate::http::sse::{Frames, Narrator};
use crate::http::state::{App, KeepAliveStyle};
use crate::http::turn::{TokenLogprobs, TurnEvent};
use crate::http::{ids, openai};

/// Tells a turn as chunks.
pub struct Chunks {
    head: Head,
    shape: Shape,
}

impl Chunks {
    /// The chunks of one answer.
    pub fn new(head: Head, shape: Shape) -> Self {
        Self { head, shape }
    }

    /// A chunk with these choices. Where a usage chunk was asked for, every other one says that it has none.
    fn chunk(&self, choices: Value) -> Value {
        let mut chunk = json!({
            "id": self.head.id,
            "object": "chat.completion.chunk",
            "created": self.head.created,
            "model": self.head.model,
            "choices": choices,
        });
        if self.shape.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn delta(&self, delta: Value, finish: Option<&str>, logprobs: Value) -> Value {
        self.chunk(json!([{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}]))
    }

    fn logprobs(&self, app: &App, tokens: &[TokenLogprobs]) -> Value {
        if self.shape.logprobs && !tokens.is_empty() {
            super::logprobs(&app.text.spellings, tokens)
        } else {
            Value::Null
        }
    }

    /// The delta of what was said; none for what chunks don't tell.
    fn said(&self, said: Said) -> Option<Value> {
        let call = |index: usize, function: Value| json!({"index": index, "function": function});
        Some(match said {
            Said::Content(text) => json!({"content": text}),
            Said::Reasoning(text) => {
                let fields = self.shape.reasoning.names().iter();
                Value::Object(fields.map(|name| ((*name).to_owned(), json!(text))).collect::<Map<_, _>>())
            }
            Said::CallStart { index, name } => json!({"tool_calls": [{
                "index": index,
                "id": ids::unique("call_"),
                "type": "function",
                "function": {"name": name, "arguments": ""},
            }]}),
            Said::CallArguments { index, fragment } => {
                json!({"tool_calls": [call(index, json!({"arguments": fragment}))]})
            }
            Said::CallEnd { .. } | Said::Finish(_) => return None,
        })
    }
}

impl Narrator for Chunks {
    fn open(&mut self, _: &App, out: &mut Frames) {
        out.data(&self.delta(json!({"role": "assistant", "content": ""}), None, Value::Null));
    }

    fn tell(&mut self, app: &App, event: TurnEvent, out: &mut Frames) {
        match event {
            TurnEvent::Progress(progress) if self.shape.progress => {
                let mut chunk = self.delta(json!({}), None, Value::Null);
                chunk["prompt_progress"] = json!({
                    "total": progress.total,
                    "cache": progress.cached,
                    "processed": progress.processed,
                    "time_ms": u64::try_from(progress.elapsed.as_millis()).unwrap_or(u64::MAX),
                });
                out.data(&chunk);
            }
            TurnEvent::Progress(_) => {}
            TurnEvent::Said { said, tokens } => {
                let logprobs = self.logprobs(app, &tokens);
                match self.said(said) {
                    Some(delta) => out.data(&self.delta(delta, None, logprobs)),
                    // Tokens that only ended a call.
                    None if !logprobs.is_null() => out.data(&self.delta(json!({}), None, logprobs)),
                    None => {}
                }
            }
            TurnEvent::End(end) => {
                let logprobs = self.logprobs(app, &end.tokens);
                out.data(&self.delta(json!({}), Some(openai::reason(end.finish)), logprobs));
                if self.shape.include_usage {
                    let mut chunk = self.chunk(json!([]));
                    chunk["usage"] = openai::usage(end.usage);
                    out.data(&chunk);
                }
                out.done();
            }
        }
    }

    fn keep_alive(&mut self, app: &App, out: &mut Frames) {
        match app.options.keep_alive.style {
            KeepAliveStyle::Comment => out.comment("keep-alive"),
            KeepAliveStyle::Chunk => out.data(&self.delta(json!({}), None, Value::Null)),
        }
    }

    fn fail(&mut self, fault: &Fault, out: &mut Frames) {
        out.data(&fault.openai());
    }
}
