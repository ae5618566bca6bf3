//! The body of a chat completion, to an [`Ask`].

use axum::body::Bytes;
use serde_json::Value;

use crate::chat::Conversation;
use crate::http::error::Fault;
use crate::http::fields::{self, Fields};
use crate::http::form::{self, Format};
use crate::http::prompt::{self, Prompt, Tools};
use crate::http::state::{App, ReasoningField};
use crate::http::turn::Ask;
use crate::http::{knobs, thinking};

/// A chat completion to make.
pub struct Request {
    /// What to ask the engine.
    pub ask: Ask,
    /// How to answer.
    pub shape: Shape,
    /// What was left out of the request.
    pub warnings: Vec<String>,
}

/// How to answer.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// As chunks.
    pub stream: bool,
    /// With a chunk for the usage.
    pub include_usage: bool,
    /// With chunks for the prompt's progress.
    pub progress: bool,
    /// With log-probabilities.
    pub logprobs: bool,
    /// Name of the field for reasoning.
    pub reasoning: ReasoningField,
}

/// Reads a body.
///
/// # Errors
/// For what can't be understood or kept.
pub fn read(app: &App, body: &Bytes) -> Result<Request, Fault> {
    let body = fields::parse(body)?;
    let fields = Fields::of_body(&body)?;
    knobs::refuse(&fields)?;
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let include_usage = match fields.object("stream_options")? {
        Some(options) => options.boolean("include_usage")?.unwrap_or(false),
        None => false,
    };
    let progress = fields.boolean("return_progress")?.unwrap_or(false);
    let logprobs = knobs::logprobs(&fields)?;
    let mut sampling = knobs::sampling(&fields, app)?;
    let (seed, max_tokens) = (knobs::seed(&fields)?, knobs::max_tokens(&fields)?);
    let (stops, stop_ids) = (fields.strings("stop")?, knobs::stop_ids(&fields, app)?);
    let single_call = fields.boolean("parallel_tool_calls")? == Some(false);
    let format = Format::read(&fields, &["response_format"])?;
    let Prompt { rendered, reader, thinking, bias, tools } = prompt(app, &fields)?;
    let constraint = form::constraint(app, format.as_ref(), &tools, thinking, &stop_ids, single_call)?;
    sampling.logit_bias.extend(bias);
    let prompt = app.encode(&rendered)?;
    Ok(Request {
        ask: Ask {
            prompt,
            reader,
            sampling,
            seed,
            max_tokens,
            stops,
            stop_ids,
            logprobs,
            single_call,
            constraint,
        },
        shape: Shape {
            stream,
            include_usage,
            progress,
            logprobs: logprobs.is_some(),
            reasoning: app.options.reasoning_field,
        },
        warnings: tools.warnings,
    })
}

/// The prompt of `messages`, `tools`, `tool_choice` and the template's variables.
///
/// # Errors
/// For what can't be understood, or what the template refuses.
pub fn prompt(app: &App, fields: &Fields<'_>) -> Result<Prompt, Fault> {
    let messages = fields.get("messages").ok_or_else(|| fields.missing("messages", "array"))?;
    let tools = Tools::read(fields)?;
    let mut conversation = Conversation::from_json(messages, None)?;
    conversation.documents = fields.array("documents")?.unwrap_or_default().to_vec();
    let mut kwargs = thinking::kwargs(fields, app.options.thinking)?;
    if let Some(open) = fields.boolean("add_generation_prompt")? {
        kwargs.entry("add_generation_prompt").or_insert(Value::Bool(open));
    }
    prompt::render(app, conversation, kwargs, tools)
}
