//! The body of a response, to an [`Ask`].

use axum::body::Bytes;
use serde_json::{Map, Value, json};

use crate::chat::{Conversation, Message, Role, ToolCall};
use crate::http::error::Fault;
use crate::http::fields::{self, Fields, mismatch};
use crate::http::form::{self, Format};
use crate::http::prompt::{self, Prompt, Tools};
use crate::http::state::App;
use crate::http::turn::Ask;
use crate::http::{knobs, thinking};

/// A response to make.
pub struct Request {
    /// What to ask the engine.
    pub ask: Ask,
    /// As events.
    pub stream: bool,
    /// Fields of the request that the response repeats.
    pub echo: Map<String, Value>,
    /// What was left out of the request.
    pub warnings: Vec<String>,
}

/// Reads a body.
///
/// # Errors
/// For what can't be understood or kept.
pub fn read(app: &App, body: &Bytes) -> Result<Request, Fault> {
    let body = fields::parse(body)?;
    let fields = Fields::of_body(&body)?;
    knobs::refuse(&fields)?;
    refuse(&fields)?;
    let mut messages = Vec::new();
    if let Some(instructions) = fields.string("instructions")? {
        messages.push(Message::text(Role::System, instructions));
    }
    match fields.get("input") {
        None => return Err(fields.missing("input", "string or array")),
        Some(Value::String(text)) => messages.push(Message::text(Role::User, text.clone())),
        Some(Value::Array(items)) => {
            let mut turns = Turns { messages: &mut messages, open: None };
            for (index, item) in items.iter().enumerate() {
                turns.add(item, &fields.path(&format!("input[{index}]")))?;
            }
            turns.close();
        }
        Some(other) => return Err(mismatch(&fields.path("input"), "string or array", other)),
    }
    let conversation = Conversation { messages, ..Conversation::default() };
    let kwargs = thinking::kwargs(&fields, app.options.thinking)?;
    let prompt = prompt::render(app, conversation, kwargs, Tools::read(&fields)?)?;
    let Prompt { rendered, reader, thinking, bias, tools } = prompt;
    let format = Format::read(&fields, &["text.format", "response_format"])?;
    let stop_ids = knobs::stop_ids(&fields, app)?;
    let single_call = fields.boolean("parallel_tool_calls")? == Some(false);
    let constraint = form::constraint(app, format.as_ref(), &tools, thinking, &stop_ids, single_call)?;
    let mut sampling = knobs::sampling(&fields, app)?;
    let echo = echo(&fields, &sampling);
    sampling.logit_bias.extend(bias);
    let ask = Ask {
        prompt: app.encode(&rendered)?,
        reader,
        sampling,
        seed: knobs::seed(&fields)?,
        max_tokens: knobs::max_tokens(&fields)?,
        stops: fields.strings("stop")?,
        stop_ids,
        logprobs: None,
        single_call,
        constraint,
    };
    Ok(Request { ask, stream: fields.boolean("stream")?.unwrap_or(false), echo, warnings: tools.warnings })
}

/// Refuses what needs a memory, or is not built.
fn refuse(fields: &Fields<'_>) -> Result<(), Fault> {
    let stateless = "nothing is stored here: send the whole conversation as input";
    for name in ["previous_response_id", "conversation", "prompt"] {
        if fields.get(name).is_some() {
            return Err(Fault::unsupported(name, stateless));
        }
    }
    if fields.boolean("background")? == Some(true) {
        return Err(Fault::unsupported("background", stateless));
    }
    if fields.string("truncation")?.is_some_and(|truncation| truncation != "disabled") {
        return Err(Fault::unsupported("truncation", "nothing is ever cut from a conversation here"));
    }
    if fields.count("top_logprobs", 0)?.unwrap_or(0) > 0 {
        return Err(Fault::unsupported("top_logprobs", "ask /v1/chat/completions for log-probabilities"));
    }
    if fields.count("max_tool_calls", 0)?.is_some() {
        return Err(Fault::unsupported("max_tool_calls", "not built"));
    }
    Ok(())
}

fn echo(fields: &Fields<'_>, sampling: &crate::engine::sampler::Sampling) -> Map<String, Value> {
    let or = |name: &str, default: Value| fields.get(name).cloned().unwrap_or(default);
    let echo = json!({
        "instructions": or("instructions", Value::Null),
        "max_output_tokens": or("max_output_tokens", Value::Null),
        "metadata": or("metadata", json!({})),
        "parallel_tool_calls": or("parallel_tool_calls", json!(true)),
        "previous_response_id": null,
        "reasoning": or("reasoning", json!({"effort": null, "summary": null})),
        "store": false,
        "temperature": sampling.temperature,
        "text": or("text", json!({"format": {"type": "text"}})),
        "tool_choice": or("tool_choice", json!("auto")),
        "tools": or("tools", json!([])),
        "top_p": sampling.top_p,
        "truncation": "disabled",
    });
    match echo {
        Value::Object(echo) => echo,
        _ => Map::new(),
    }
}

/// Items to messages. Reasoning, text and calls that follow each other are one turn of the assistant's.
struct Turns<'a> {
    messages: &'a mut Vec<Message>,
    open: Option<Message>,
}

impl Turns<'_> {
    fn add(&mut self, item: &Value, path: &str) -> Result<(), Fault> {
        let fields = Fields::of(item, path)?;
        match fields.string("type")?.unwrap_or("message") {
            "message" => {
                let message = Message::from_json(item, path)?;
                if message.role != Role::Assistant {
                    self.close();
                    self.messages.push(message);
                    return Ok(());
                }
                // Text after a call is another turn.
                if self.open.as_ref().is_some_and(|open| !open.tool_calls.is_empty()) {
                    self.close();
                }
                self.turn().content.push_str(&message.content);
            }
            "reasoning" => {
                if self
                    .open
                    .as_ref()
                    .is_some_and(|open| !open.tool_calls.is_empty() || !open.content.is_empty())
                {
                    self.close();
                }
                let text = reasoning(&fields)?;
                if !text.is_empty() {
                    self.turn().reasoning.get_or_insert_default().push_str(&text);
                }
            }
            "function_call" => {
                let call = ToolCall::from_json(item, path)?;
                let id = fields.string("call_id")?.map(str::to_owned).or_else(|| call.id.clone());
                self.turn().tool_calls.push(ToolCall { id, ..call });
            }
            "custom_tool_call" => {
                let name =
                    fields.string("name")?.ok_or_else(|| fields.missing("name", "a tool's name"))?.to_owned();
                let input = json!(fields.string("input")?.unwrap_or_default());
                let arguments = Map::from_iter([("input".to_owned(), input)]);
                let id = fields.string("call_id")?.map(str::to_owned);
                self.turn().tool_calls.push(ToolCall { id, name, arguments });
            }
            "function_call_output" | "custom_tool_call_output" => {
                self.close();
                let id = fields.string("call_id")?.map(str::to_owned);
                let content = output(&fields)?;
                self.messages.push(Message { tool_call_id: id, ..Message::text(Role::Tool, content) });
            }
            // Calls of tools that the client's other server ran say nothing to this model.
            "web_search_call" | "file_search_call" | "item_reference" | "ghost_snapshot" | "compaction" => {}
            other => {
                let reason = format!("items of type {other} are not understood");
                return Err(Fault::unsupported(&fields.path("type"), &reason));
            }
        }
        Ok(())
    }

    fn turn(&mut self) -> &mut Message {
        self.open.get_or_insert_with(|| Message::text(Role::Assistant, ""))
    }

    fn close(&mut self) {
        self.messages.extend(self.open.take());
    }
}

/// The text of a reasoning item: in the open, or where [`SEALED`] put it.
fn reasoning(fields: &Fields<'_>) -> Result<String, Fault> {
    for name in ["content", "summary"] {
        let parts = fields.array(name)?.unwrap_or_default();
        let text: String = parts.iter().filter_map(|part| part.get("text")?.as_str()).collect();
        if !text.is_empty() {
            return Ok(text);
        }
    }
    let sealed = fields.string("encrypted_content")?.and_then(|text| text.strip_prefix(SEALED));
    Ok(sealed.unwrap_or_default().to_owned())
}

/// The output of a call: text, or parts of text.
fn output(fields: &Fields<'_>) -> Result<String, Fault> {
    let path = fields.path("output");
    match fields.get("output") {
        None => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(parts @ Value::Array(_)) => {
            let message = json!({"role": "tool", "content": parts});
            Message::from_json(&message, &path).map(|message| message.content).map_err(|error| {
                let path = error.path.replace(".content[", "[");
                Fault::field(&path, format!("expected {}, got {}", error.expected, error.found))
            })
        }
        Some(other) => Err(mismatch(&path, "string or array", other)),
    }
}

/// How `encrypted_content` begins when it holds reasoning of this server. Codex sends back nothing else of a reasoning
/// item, and a model that does not see its earlier reasoning stops reasoning.
pub const SEALED: &str = "laguna-reasoning:";
