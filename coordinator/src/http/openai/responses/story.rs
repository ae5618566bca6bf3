//! An answer as output items: each is added, grows, and is done.

use serde_json::{Map, Value, json};

use super::request::SEALED;
use crate::chat::{Event as Said, FinishReason};
use crate::http::error::Fault;
use crate::http::ids;
use crate::http::sse::{Frames, Narrator};
use crate::http::state::{self, App};
use crate::http::turn::{End, TurnEvent, TurnUsage};

/// Tells a turn as output items.
pub struct Story {
    id: String,
    created: u64,
    model: String,
    echo: Map<String, Value>,
    sequence: u64,
    /// Items that are done.
    output: Vec<Value>,
    open: Option<Item>,
    end: Option<Result<End, Fault>>,
}

/// An item that grows.
struct Item {
    id: String,
    kind: Kind,
    text: String,
}

#[derive(Clone, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Message,
    Call { index: usize, name: String, call_id: String },
}

impl Item {
    fn new(kind: Kind) -> Self {
        let prefix = match kind {
            Kind::Reasoning => "rs_",
            Kind::Message => "msg_",
            Kind::Call { .. } => "fc_",
        };
        Self { id: ids::unique(prefix), kind, text: String::new() }
    }

    /// The item as it is now.
    fn json(&self, status: &str) -> Value {
        match &self.kind {
            Kind::Reasoning if self.text.is_empty() => {
                json!({"id": self.id, "type": "reasoning", "summary": [], "status": status})
            }
            Kind::Reasoning => json!({
                "id": self.id, "type": "reasoning", "summary": [], "status": status,
                "content": [{"type": "reasoning_text", "text": self.text}],
                "encrypted_content": format!("{SEALED}{}", self.text),
            }),
            Kind::Message => {
                let parts = if self.text.is_empty() { json!([]) } else { json!([text_part(&self.text)]) };
                json!({"id": self.id, "type": "message", "role": "assistant", "status": status, "content": parts})
            }
            Kind::Call { name, call_id, .. } => json!({
                "id": self.id, "type": "function_call", "call_id": call_id, "name": name,
                "arguments": self.text, "status": status,
            }),
        }
    }
}

fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

impl Story {
    /// The story of one answer. `echo` are fields of the request that the response repeats.
    pub fn new(model: String, echo: Map<String, Value>) -> Self {
        Self {
            id: ids::unique("resp_"),
            created: state::unix_now(),
            model,
            echo,
            sequence: 0,
            output: Vec::new(),
            open: None,
            end: None,
        }
    }

    /// The response as it is now.
    pub fn response(&self) -> Value {
        let (mut status, mut error, mut incomplete, mut used) =
            ("in_progress", Value::Null, Value::Null, Value::Null);
        match &self.end {
            None => {}
            Some(Ok(end)) => {
                used = usage(end.usage);
                status = "completed";
                if end.finish == FinishReason::Length {
                    status = "incomplete";
                    incomplete = json!({"reason": "max_output_tokens"});
                }
            }
            Some(Err(fault)) => {
                status = "failed";
                let code = fault.code().unwrap_or("server_error");
                error = json!({"code": code, "message": fault.to_string()});
            }
        }
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": false,
            "error": error,
            "incomplete_details": incomplete,
            "model": self.model,
            "output": self.output,
            "usage": used,
        });
        if let Value::Object(fields) = &mut response {
            fields.extend(self.echo.clone());
        }
        response
    }

    fn emit(&mut self, kind: &str, fields: Value, out: &mut Frames) {
        let mut event = json!({"type": kind, "sequence_number": self.sequence});
        if let (Value::Object(event), Value::Object(fields)) = (&mut event, fields) {
            event.extend(fields);
        }
        self.sequence += 1;
        out.event(kind, &event);
    }

    /// Makes an item of `kind` the one that grows.
    fn within(&mut self, kind: Kind, out: &mut Frames) {
        if self.open.as_ref().is_some_and(|open| open.kind == kind) {
            return;
        }
        self.finish_item("completed", out);
        let item = Item::new(kind);
        let index = self.output.len();
        let added = json!({"output_index": index, "item": item.json("in_progress")});
        self.emit("response.output_item.added", added, out);
        if item.kind == Kind::Message {
            let part =
                json!({"item_id": item.id, "output_index": index, "content_index": 0, "part": text_part("")});
            self.emit("response.content_part.added", part, out);
        }
        self.open = Some(item);
    }

    fn grow(&mut self, text: &str, out: &mut Frames) {
        let index = self.output.len();
        let Some(item) = &mut self.open else { return };
        item.text.push_str(text);
        let mut delta = json!({"item_id": item.id, "output_index": index, "delta": text});
        let name = match item.kind {
            Kind::Reasoning => "response.reasoning_text.delta",
            Kind::Message => {
                delta["logprobs"] = json!([]);
                "response.output_text.delta"
            }
            Kind::Call { .. } => "response.function_call_arguments.delta",
        };
        if !matches!(item.kind, Kind::Call { .. }) {
            delta["content_index"] = json!(0);
        }
        self.emit(name, delta, out);
    }

    fn finish_item(&mut self, status: &str, out: &mut Frames) {
        let Some(item) = self.open.take() else { return };
        let index = self.output.len();
        let place = json!({"item_id": item.id, "output_index": index, "content_index": 0});
        let with = |name: &str, value: Value| {
            let mut fields = place.clone();
            fields[name] = value;
            fields
        };
        match &item.kind {
            Kind::Reasoning => {
                self.emit("response.reasoning_text.done", with("text", json!(item.text)), out);
            }
            Kind::Message => {
                let mut done = with("text", json!(item.text));
                done["logprobs"] = json!([]);
                self.emit("response.output_text.done", done, out);
                self.emit("response.content_part.done", with("part", text_part(&item.text)), out);
            }
            Kind::Call { name, .. } => {
                let done = json!({
                    "item_id": item.id, "output_index": index, "name": name, "arguments": item.text,
                });
                self.emit("response.function_call_arguments.done", done, out);
            }
        }
        let item = item.json(status);
        self.output.push(item.clone());
        self.emit("response.output_item.done", json!({"output_index": index, "item": item}), out);
    }
}

fn usage(usage: TurnUsage) -> Value {
    json!({
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    })
}

impl Narrator for Story {
    fn open(&mut self, _: &App, out: &mut Frames) {
        for kind in ["response.created", "response.in_progress"] {
            let response = json!({"response": self.response()});
            self.emit(kind, response, out);
        }
    }

    fn tell(&mut self, _: &App, event: TurnEvent, out: &mut Frames) {
        match event {
            TurnEvent::Progress(_) => {}
            TurnEvent::Said { said, .. } => match said {
                Said::Reasoning(text) => {
                    self.within(Kind::Reasoning, out);
                    self.grow(&text, out);
                }
                Said::Content(text) => {
                    self.within(Kind::Message, out);
                    self.grow(&text, out);
                }
                Said::CallStart { index, name } => {
                    self.within(Kind::Call { index, name, call_id: ids::unique("call_") }, out);
                }
                Said::CallArguments { fragment, .. } => self.grow(&fragment, out),
                Said::CallEnd { complete, .. } => {
                    self.finish_item(if complete { "completed" } else { "incomplete" }, out);
                }
                Said::Finish(_) => {}
            },
            TurnEvent::End(end) => {
                let cut = end.finish == FinishReason::Length;
                self.finish_item(if cut { "incomplete" } else { "completed" }, out);
                self.end = Some(Ok(end));
                let response = json!({"response": self.response()});
                self.emit(if cut { "response.incomplete" } else { "response.completed" }, response, out);
            }
        }
    }

    fn keep_alive(&mut self, _: &App, out: &mut Frames) {
        let response = json!({"response": self.response()});
        self.emit("response.in_progress", response, out);
    }

    fn fail(&mut self, fault: &Fault, out: &mut Frames) {
        self.end = Some(Err(fault.clone()));
        let response = json!({"response": self.response()});
        self.emit("response.failed", response, out);
    }
}
