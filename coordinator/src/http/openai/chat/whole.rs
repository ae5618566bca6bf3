//! A chat completion in one piece.

use serde_json::{Map, Value, json};

use super::Head;
use super::request::Shape;
use crate::chat::Reply;
use crate::http::ids;
use crate::http::openai;
use crate::http::state::{App, ReasoningField};
use crate::http::turn::Whole;

/// The body of the answer.
pub fn body(app: &App, head: &Head, shape: &Shape, whole: Whole) -> Value {
    let logprobs =
        if shape.logprobs { super::logprobs(&app.text.spellings, &whole.tokens) } else { Value::Null };
    json!({
        "id": head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": head.model,
        "choices": [{
            "index": 0,
            "message": message(whole.reply, shape.reasoning),
            "logprobs": logprobs,
            "finish_reason": openai::reason(whole.end.finish),
        }],
        "usage": openai::usage(whole.end.usage),
    })
}

fn message(reply: Reply, field: ReasoningField) -> Value {
    let mut message = Map::new();
    message.insert("role".to_owned(), json!("assistant"));
    // Nothing but calls: null, as OpenAI has it.
    let content =
        if reply.content.is_empty() && !reply.calls.is_empty() { Value::Null } else { json!(reply.content) };
    message.insert("content".to_owned(), content);
    message.insert("refusal".to_owned(), Value::Null);
    if !reply.reasoning.is_empty() {
        for name in field.names() {
            message.insert((*name).to_owned(), json!(reply.reasoning));
        }
    }
    if !reply.calls.is_empty() {
        let calls = reply.calls.into_iter().map(|call| {
            json!({
                "id": ids::unique("call_"),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            })
        });
        message.insert("tool_calls".to_owned(), calls.collect());
    }
    Value::Object(message)
}
