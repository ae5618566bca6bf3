//! The checkpoint's own chat template, rendered byte for byte as transformers renders it.
//!
//! - `load`: finds the template and the token strings; no generic template stands in for a missing one
//! - `source`: exchanges what minijinja does not know before compiling
//! - `python`, `tojson`, `strftime`: where Python shows through in the text
//! - [`rendered`]: the prompt, and which control tokens in it are a user's text
//! - `thinking`: whether the model's turn begins inside its reasoning
//! - `error`: why not

mod error;
mod load;
mod python;
pub mod rendered;
mod source;
mod strftime;
mod thinking;
mod tojson;

#[cfg(test)]
mod tests;

use std::path::Path;

use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, ErrorKind, Value};
use serde_json::{Map, Value as Json};

pub use error::TemplateError;
pub use rendered::{Owner, Piece, Rendered, Span};
pub use strftime::WallTime;
pub use thinking::{Thinking, prompt_tail};

use super::marker::ControlTokens;
use super::message::{Conversation, Message};
use load::{Named, Sources};
use rendered::Mark;

/// What a request may choose about its prompt.
#[derive(Clone, Debug)]
pub struct RenderOptions {
    /// End the prompt with the opening of the model's turn. Defaults to true.
    pub add_generation_prompt: bool,
    /// Variables for the template, as `chat_template_kwargs` of a request: `enable_thinking`, `preserve_thinking`, …
    /// An `add_generation_prompt` among them goes before the field above.
    pub kwargs: Map<String, Json>,
    /// What `strftime_now` tells. Without it a template that asks for the time fails.
    pub now: Option<WallTime>,
}

impl Default for RenderOptions {
    fn default() -> Self {
        Self { add_generation_prompt: true, kwargs: Map::new(), now: None }
    }
}

impl RenderOptions {
    /// Sets `enable_thinking`, which templates have different defaults for.
    #[must_use]
    pub fn thinking(mut self, on: bool) -> Self {
        self.kwargs.insert("enable_thinking".to_owned(), Json::Bool(on));
        self
    }
}

/// A compiled chat template.
#[derive(Debug)]
pub struct Template {
    environment: Environment<'static>,
    origin: String,
    has_tool_use: bool,
    token_strings: Map<String, Json>,
    tokens: ControlTokens,
}

impl Template {
    /// Reads and compiles the template of the checkpoint in `dir`: `chat_template.jinja`, else `chat_template` of
    /// `tokenizer_config.json` (text, or a list of named templates).
    ///
    /// # Errors
    /// [`TemplateError`], every variant but those of rendering.
    pub fn load(dir: &Path) -> Result<Self, TemplateError> {
        Self::compile(Sources::read(dir)?, Some(dir))
    }

    /// Compiles a template from its text. `token_strings` are variables such as `bos_token`.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`].
    pub fn from_source(
        text: &str,
        token_strings: Map<String, Json>,
        tokens: ControlTokens,
    ) -> Result<Self, TemplateError> {
        let default = Named { origin: "chat template".to_owned(), text: text.to_owned() };
        Self::compile(Sources { default, tool_use: None, token_strings, tokens }, None)
    }

    fn compile(sources: Sources, dir: Option<&Path>) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        // transformers' settings; a newline at the template's end is dropped by default in both engines.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| syntax_error(&sources.default.origin, &error))?);
        // Errors name the line; the dump of source and variables that debug adds is not for clients.
        environment.set_debug(false);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_unknown_method_callback(python::method);
        environment.set_formatter(|out, state, value| match f64::try_from(value.clone()) {
            Ok(number) if value.is_number() && !value.is_integer() => {
                out.write_str(&python::float_repr(number)).map_err(Into::into)
            }
            _ => minijinja::escape_formatter(out, state, value),
        });
        environment.add_filter("tojson", tojson::tojson);
        environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
            let refused = minijinja::Error::new(ErrorKind::InvalidOperation, message.clone());
            Err(refused.with_source(error::Raised(message)))
        });
        if let Some(dir) = dir.map(Path::to_owned) {
            environment.set_loader(move |name| match load::included(&dir, name) {
                Ok(text) => Ok(text.map(|text| source::prepare(&text))),
                Err(error) => Err(minijinja::Error::new(ErrorKind::InvalidOperation, error.to_string())),
            });
        }
        let has_tool_use = sources.tool_use.is_some();
        let origin = sources.default.origin.clone();
        let templates = [(DEFAULT, Some(sources.default)), (TOOL_USE, sources.tool_use)];
        for (name, template) in templates {
            let Some(Named { origin, text }) = template else { continue };
            environment
                .add_template_owned(name, source::prepare(&text))
                .map_err(|error| syntax_error(&origin, &error))?;
        }
        let (token_strings, tokens) = (sources.token_strings, sources.tokens);
        Ok(Self { environment, origin, has_tool_use, token_strings, tokens })
    }

    /// The spellings of control tokens this template's tokenizer has.
    pub const fn tokens(&self) -> &ControlTokens {
        &self.tokens
    }

    /// The prompt of a conversation.
    ///
    /// # Errors
    /// [`TemplateError::Refused`], [`TemplateError::ReservedKwarg`] or [`TemplateError::Failed`].
    pub fn render(
        &self,
        conversation: &Conversation,
        options: &RenderOptions,
    ) -> Result<Rendered, TemplateError> {
        let messages: Vec<Json> = conversation.messages.iter().map(Message::to_json).collect();
        let given = |list: &[Json]| if list.is_empty() { Json::Null } else { Json::Array(list.to_vec()) };
        self.render_json(&messages, &given(&conversation.tools), &given(&conversation.documents), options)
    }

    /// The prompt of messages as they are, not normalised: what transformers' `apply_chat_template` makes of them.
    /// `tools` and `documents` are arrays or null.
    ///
    /// # Errors
    /// [`TemplateError::Refused`], [`TemplateError::ReservedKwarg`] or [`TemplateError::Failed`].
    pub fn render_json(
        &self,
        messages: &[Json],
        tools: &Json,
        documents: &Json,
        options: &RenderOptions,
    ) -> Result<Rendered, TemplateError> {
        let messages = Json::Array(messages.iter().map(with_aliases).collect());
        let inputs = [("messages", &messages), ("tools", tools), ("documents", documents)];
        let plain = self.expand(&inputs, options, &|text| text.to_owned())?;
        let mut rendered = Rendered::unmarked(plain, &self.tokens);
        let spelled = |text: &str| !self.tokens.find(text).is_empty();
        if !inputs.iter().any(|(_, json)| python::any_string(json, &spelled)) {
            return Ok(rendered);
        }
        for mark in Mark::choose(&rendered.text) {
            // A template that trips over a mark still rendered without it.
            let marked = self.expand(&inputs, options, &|text| mark.apply(text, &self.tokens));
            if marked.is_ok_and(|marked| rendered.attribute(&marked, mark, &self.tokens)) {
                break;
            }
        }
        Ok(rendered)
    }

    /// Renders with every string of the inputs passed through `text`.
    fn expand(
        &self,
        inputs: &[(&'static str, &Json)],
        options: &RenderOptions,
        text: &dyn Fn(&str) -> String,
    ) -> Result<String, TemplateError> {
        let as_is = |text: &str| text.to_owned();
        let mut variables: Map<String, Json> = self.token_strings.clone();
        variables.insert(GENERATION_PROMPT.to_owned(), Json::Bool(options.add_generation_prompt));
        for (name, value) in &options.kwargs {
            if inputs.iter().any(|(input, _)| input == name) {
                return Err(TemplateError::ReservedKwarg(name.clone()));
            }
            variables.insert(name.clone(), value.clone());
        }
        let now = options.now;
        let clock = Value::from_function(move |format: String| match now {
            Some(now) => Ok(now.format(&format)),
            None => {
                Err(minijinja::Error::new(ErrorKind::InvalidOperation, "strftime_now: no time was given"))
            }
        });
        let context = variables
            .iter()
            .map(|(name, json)| (name.as_str(), python::value_of(json, &as_is)))
            .chain(inputs.iter().map(|(name, json)| (*name, python::value_of(json, text))))
            .chain([("strftime_now", clock)]);
        let context = Value::from_pairs(context);
        let name =
            if self.has_tool_use && inputs.iter().any(|(name, json)| *name == "tools" && !json.is_null()) {
                TOOL_USE
            } else {
                DEFAULT
            };
        let template = self.environment.get_template(name);
        template.and_then(|template| template.render(context)).map_err(|error| match error::raised(&error) {
            Some(message) => TemplateError::Refused(message),
            None => TemplateError::Failed { origin: self.origin.clone(), message: format!("{error:#}") },
        })
    }
}

fn syntax_error(origin: &str, error: &minijinja::Error) -> TemplateError {
    TemplateError::Syntax { origin: origin.to_owned(), message: format!("{error:#}") }
}

/// A message as transformers hands it on: null fields are absent, reasoning is under each of its names.
fn with_aliases(message: &Json) -> Json {
    let Some(fields) = message.as_object() else { return message.clone() };
    let mut fields: Map<String, Json> = fields
        .iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let names = ["reasoning_content", "thinking", "reasoning"];
    if let Some(reasoning) = names.iter().find_map(|name| fields.get(*name)).cloned() {
        fields.entry("thinking").or_insert_with(|| reasoning.clone());
        fields.insert("reasoning_content".to_owned(), reasoning);
    }
    Json::Object(fields)
}

/// Names of the templates inside the environment, as errors show them; files to include have an extension.
const DEFAULT: &str = "chat_template";
const TOOL_USE: &str = "tool_use";
/// The variable that asks for the opening of the model's turn.
const GENERATION_PROMPT: &str = "add_generation_prompt";
