//! The form a request wants its answer in, and the constraint that keeps it.

use std::sync::Arc;

use serde_json::{Value, json};

use super::error::Fault;
use super::fields::{Fields, mismatch};
use super::prompt::{Choice, Tools};
use super::state::App;
use crate::chat::Thinking;
use crate::engine::grammar::{Answer, Calls, GrammarError, Guide};
use crate::engine::sampler::Constraint;

/// JSON that follows a schema.
#[derive(Clone, Debug, PartialEq)]
pub struct Format {
    schema: Value,
    /// Path of the schema in the request.
    path: String,
}

impl Format {
    /// The format under the first of `names` that is there; a point leads into an object. Text is no format.
    ///
    /// # Errors
    /// If a format is not understood, or has no schema.
    pub fn read(fields: &Fields<'_>, names: &[&str]) -> Result<Option<Self>, Fault> {
        for name in names {
            let format = match name.split_once('.') {
                None => fields.object(name)?,
                Some((outer, inner)) => match fields.object(outer)? {
                    Some(outer) => outer.object(inner)?,
                    None => None,
                },
            };
            if let Some(format) = format {
                return Self::of(&format);
            }
        }
        Ok(None)
    }

    fn of(fields: &Fields<'_>) -> Result<Option<Self>, Fault> {
        match fields.string("type")? {
            Some("text") => Ok(None),
            Some("json_object") => Ok(Some(match fields.get("schema") {
                Some(schema) => Self { schema: schema.clone(), path: fields.path("schema") },
                None => Self { schema: json!({"type": "object"}), path: fields.path("type") },
            })),
            Some("json_schema") => {
                // Chat completions wrap the schema once more, Responses and Messages do not.
                let inner = fields.object("json_schema")?;
                let inner = inner.as_ref().unwrap_or(fields);
                let path = inner.path("schema");
                match inner.get("schema") {
                    Some(schema @ (Value::Object(_) | Value::Bool(_))) => {
                        Ok(Some(Self { schema: schema.clone(), path }))
                    }
                    Some(other) => Err(mismatch(&path, "object", other)),
                    None => Err(inner.missing("schema", "a JSON schema")),
                }
            }
            Some(other) => {
                let reason =
                    format!("answers of type {other} are not built; text, json_object and json_schema are");
                Err(Fault::unsupported(&fields.path("type"), &reason))
            }
            None => Err(fields.missing("type", "text, json_object or json_schema")),
        }
    }
}

/// What keeps an answer to `format`, and its calls to what the request asks of `tools`; `None` if it asks nothing.
///
/// # Errors
/// If something can't be enforced.
pub fn constraint(
    app: &App,
    format: Option<&Format>,
    tools: &Tools,
    thinking: Thinking,
    stop_ids: &Arc<[u32]>,
    single: bool,
) -> Result<Option<Box<dyn Constraint>>, Fault> {
    let calls = match &tools.choice {
        Choice::Auto => Calls::Free,
        Choice::None => Calls::None,
        Choice::Required => Calls::Required,
        Choice::Named(name) => Calls::Named(name),
    };
    let format = format.map(|format| (&format.schema, format.path.as_str()));
    let answer = Answer { format, tools: &tools.callable, calls, single };
    if !answer.is_bound() {
        return Ok(None);
    }
    let guide = Guide::new(app.vocabulary()?, &answer, &app.text.call_form, thinking, stop_ids.clone())?;
    Ok(guide.map(|guide| Box::new(guide) as Box<dyn Constraint>))
}

impl From<GrammarError> for Fault {
    fn from(error: GrammarError) -> Self {
        Self::Unsupported { param: error.path, reason: error.reason }
    }
}
