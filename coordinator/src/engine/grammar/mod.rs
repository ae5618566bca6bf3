//! Which form an answer must have, kept token by token: JSON that follows a schema, tool calls that follow theirs.
//!
//! The grammar library (llguidance) decides which bytes may come; this room writes the grammars, in Laguna's own call
//! form, and knows when they apply: reasoning is free. Grammars are compiled where requests are read, so that what
//! can't be kept is refused before anything is generated. Read it in this order:
//!
//! - [`answer`]: what a request may ask of its answer, and the grammar of all of it
//! - `call`: tools to the grammar of a call; `bare`: strings as the model writes them, without quotes
//! - [`schema`]: JSON schemas: what is enforced, and how large they may be
//! - `lark`: grammar text, with everything foreign quoted
//! - [`vocabulary`]: the tokens and their bytes, built once a process
//! - [`guide`]: the grammar over one answer, as the sampler's constraint
//! - `spelled`: markers that the model spells out of ordinary tokens

pub mod answer;
mod bare;
mod call;
pub mod guide;
mod lark;
pub mod schema;
mod spelled;
pub mod vocabulary;

#[cfg(test)]
mod tests;

pub use answer::{Answer, Calls, Tool};
pub use guide::Guide;
pub use vocabulary::Vocabulary;

/// What a request asks that can't be enforced, and where it asks it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct GrammarError {
    /// Path of the field in the request, `tools[2].function.parameters.properties.when`.
    pub path: String,
    /// What about it, and what to do instead.
    pub reason: String,
}

impl GrammarError {
    fn new(path: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { path: path.into(), reason: reason.into() }
    }
}
