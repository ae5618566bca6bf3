//! The body of a message, to an [`Ask`].

use axum::body::Bytes;
use serde_json::{Map, Value, json};

use crate::chat::{Conversation, Message, Role, ToolCall};
use crate::http::error::Fault;
use crate::http::fields::{self, Fields, mismatch};
use crate::http::form::{self, Format};
use crate::http::prompt::{self, Choice, Prompt, Tools};
use crate::http::state::App;
use crate::http::turn::Ask;
use crate::http::{knobs, thinking};

/// A message to make.
pub struct Request {
    /// What to ask the engine.
    pub ask: Ask,
    /// As events.
    pub stream: bool,
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
    let format = Format::read(&fields, &["output_config.format", "output_format", "response_format"])?;
    let max_tokens =
        fields.count("max_tokens", 1)?.ok_or_else(|| fields.missing("max_tokens", "whole number from 1"))?;
    let single_call = match fields.get("tool_choice") {
        Some(Value::Object(_)) => fields
            .object("tool_choice")?
            .map(|choice| choice.boolean("disable_parallel_tool_use"))
            .transpose()?
            .flatten(),
        _ => None,
    };
    let single_call = single_call.unwrap_or(false);
    let Prompt { rendered, reader, thinking, bias, tools } = prompt(app, &fields)?;
    let stop_ids = knobs::stop_ids(&fields, app)?;
    let constraint = form::constraint(app, format.as_ref(), &tools, thinking, &stop_ids, single_call)?;
    let mut sampling = knobs::sampling(&fields, app)?;
    sampling.logit_bias.extend(bias);
    let ask = Ask {
        prompt: app.encode(&rendered)?,
        reader,
        sampling,
        seed: knobs::seed(&fields)?,
        max_tokens: Some(max_tokens),
        stops: fields.strings("stop_sequences")?,
        stop_ids,
        logprobs: None,
        single_call,
        constraint,
    };
    Ok(Request { ask, stream: fields.boolean("stream")?.unwrap_or(false), warnings: tools.warnings })
}

/// The prompt of `system`, `messages`, `tools` and `thinking`.
///
/// # Errors
/// For what can't be understood, or what the template refuses.
pub fn prompt(app: &App, fields: &Fields<'_>) -> Result<Prompt, Fault> {
    let mut messages = Vec::new();
    let system = system(fields)?;
    if !system.is_empty() {
        messages.push(Message::text(Role::System, system));
    }
    let list = fields.array("messages")?.ok_or_else(|| fields.missing("messages", "array"))?;
    for (index, message) in list.iter().enumerate() {
        turn(message, &fields.path(&format!("messages[{index}]")), &mut messages)?;
    }
    if messages.last().is_some_and(|last| last.role == Role::Assistant) {
        let reason = "the last message can't be the assistant's: beginning its answer for it is not built";
        return Err(Fault::unsupported("messages", reason));
    }
    let kwargs = thinking::kwargs(fields, app.options.thinking)?;
    let conversation = Conversation { messages, ..Conversation::default() };
    prompt::render(app, conversation, kwargs, tools(fields)?)
}

/// The system text: a string, or blocks. The block that some clients put first to say who pays changes every turn, and
/// with it all that follows in the prefix cache; it says nothing to the model.
fn system(fields: &Fields<'_>) -> Result<String, Fault> {
    let path = fields.path("system");
    match fields.get("system") {
        None => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(blocks)) => {
            let mut texts = Vec::new();
            for (index, block) in blocks.iter().enumerate() {
                let text = text_of(block, &format!("{path}[{index}]"))?;
                if !text.starts_with(BILLING) {
                    texts.push(text);
                }
            }
            Ok(texts.join("\n\n"))
        }
        Some(other) => Err(mismatch(&path, "string or array", other)),
    }
}

/// One message: its text, thoughts and calls; each result is a message of its own.
fn turn(message: &Value, path: &str, out: &mut Vec<Message>) -> Result<(), Fault> {
    let fields = Fields::of(message, path)?;
    let role = match fields.string("role")? {
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("system") => Role::System,
        other => {
            let found = other.map_or_else(|| "nothing".to_owned(), |role| format!("{role:?}"));
            return Err(Fault::field(
                &fields.path("role"),
                format!("expected user or assistant, got {found}"),
            ));
        }
    };
    let mut said = Message::text(role, "");
    let path = fields.path("content");
    let mut any = true;
    match fields.get("content") {
        None => {}
        Some(Value::String(text)) => {
            said.content.push_str(text);
        }
        Some(Value::Array(blocks)) => {
            any = blocks.is_empty();
            for (index, block) in blocks.iter().enumerate() {
                let path = format!("{path}[{index}]");
                let fields = Fields::of(block, &path)?;
                match fields.string("type")? {
                    Some("thinking") => {
                        let thought = fields.string("thinking")?.unwrap_or_default();
                        said.reasoning.get_or_insert_default().push_str(thought);
                        any = true;
                    }
                    // Nobody but its maker can read it.
                    Some("redacted_thinking") => any = true,
                    Some("tool_use") => {
                        said.tool_calls.push(call(&fields)?);
                        any = true;
                    }
                    Some("tool_result") => {
                        if any && !said.content.is_empty() {
                            out.push(std::mem::replace(&mut said, Message::text(role, "")));
                        }
                        any = false;
                        out.push(result(&fields)?);
                    }
                    _ => {
                        said.content.push_str(&text_of(block, &path)?);
                        any = true;
                    }
                }
            }
        }
        Some(other) => return Err(mismatch(&path, "string or array", other)),
    }
    said.reasoning = said.reasoning.filter(|text| !text.is_empty() && role == Role::Assistant);
    if any {
        out.push(said);
    }
    Ok(())
}

fn call(fields: &Fields<'_>) -> Result<ToolCall, Fault> {
    let name = fields.string("name")?.filter(|name| !name.is_empty());
    let arguments = match fields.get("input") {
        None => Map::new(),
        Some(Value::Object(input)) => input.clone(),
        Some(other) => return Err(mismatch(&fields.path("input"), "object", other)),
    };
    Ok(ToolCall {
        id: fields.string("id")?.map(str::to_owned),
        name: name.ok_or_else(|| fields.missing("name", "a tool's name"))?.to_owned(),
        arguments,
    })
}

fn result(fields: &Fields<'_>) -> Result<Message, Fault> {
    let path = fields.path("content");
    let content = match fields.get("content") {
        None => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(blocks)) => {
            let texts =
                blocks.iter().enumerate().map(|(index, block)| text_of(block, &format!("{path}[{index}]")));
            texts.collect::<Result<String, _>>()?
        }
        Some(other) => return Err(mismatch(&path, "string or array", other)),
    };
    let id = fields.string("tool_use_id")?.map(str::to_owned);
    Ok(Message { tool_call_id: id, ..Message::text(Role::Tool, content) })
}

/// The text of a block that has one.
fn text_of(block: &Value, path: &str) -> Result<String, Fault> {
    if let Value::String(text) = block {
        return Ok(text.clone());
    }
    let fields = Fields::of(block, path)?;
    match fields.string("type")? {
        Some("text") | None => {
            Ok(fields.string("text")?.ok_or_else(|| fields.missing("text", "string"))?.to_owned())
        }
        Some("document") => {
            let source = fields.object("source")?.ok_or_else(|| fields.missing("source", "object"))?;
            match (source.string("type")?, source.string("data")?) {
                (Some("text"), Some(data)) => Ok(data.to_owned()),
                _ => Err(Fault::unsupported(&source.path("type"), "this model reads text only")),
            }
        }
        Some(other) => {
            let reason = format!("blocks of type {other} can't be read: this model reads text only");
            Err(Fault::unsupported(&fields.path("type"), &reason))
        }
    }
}

/// Tools as the template wants them, and the choice among them.
fn tools(fields: &Fields<'_>) -> Result<Tools, Fault> {
    let mut tools = Tools::default();
    for (index, tool) in fields.array("tools")?.unwrap_or_default().iter().enumerate() {
        let tool = Fields::of(tool, &fields.path(&format!("tools[{index}]")))?;
        if let Some(kind) = tool.string("type")?.filter(|kind| *kind != "custom") {
            tools
                .warnings
                .push(format!("tools[{index}]: tools of type {kind} are not run here; it was left out"));
            continue;
        }
        let name = tool.string("name")?.filter(|name| !name.is_empty());
        let mut function = Map::new();
        function.insert("name".to_owned(), json!(name.ok_or_else(|| tool.missing("name", "a tool's name"))?));
        for (theirs, ours) in [("description", "description"), ("input_schema", "parameters")] {
            if let Some(value) = tool.get(theirs) {
                function.insert(ours.to_owned(), value.clone());
            }
        }
        let strict = tool.boolean("strict")?.unwrap_or(false);
        tools.push(json!({"type": "function", "function": function}), tool.path("input_schema"), strict)?;
    }
    if let Some(choice) = fields.object("tool_choice")? {
        let kind = match choice.string("type")? {
            Some("auto") | None => Choice::Auto,
            Some("none") => Choice::None,
            Some("any") => Choice::Required,
            Some("tool") => {
                let name = choice.string("name")?.ok_or_else(|| choice.missing("name", "a tool's name"))?;
                Choice::Named(name.to_owned())
            }
            Some(other) => {
                let reason = format!("expected auto, any, tool or none, got {other:?}");
                return Err(Fault::field(&choice.path("type"), reason));
            }
        };
        tools.set_choice(kind, "tool_choice")?;
    }
    Ok(tools)
}

/// How the block begins that says who pays.
const BILLING: &str = "x-anthropic-billing-header";
