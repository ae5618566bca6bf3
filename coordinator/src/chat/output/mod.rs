//! `poolside_v1`: generated text to reasoning, content and tool calls, as it arrives.
//!
//! - [`event`]: what comes out, and the whole reply made from it
//! - [`parser`]: the states of a turn: reasoning, content, call
//! - `call`: the states of a call: name, key, value
//! - `argument`: one value on its way to JSON: strings as they arrive, the rest when complete
//! - [`schema`]: which types a tool's arguments may have
//! - `scan`: markers in text of which the end is not known yet
//!
//! One parser serves one choice of one request, streaming or not: push every piece of decoded text, then finish.
//! Events of a turn are the same for every split of its text, but for where fragments of one text are cut.

mod argument;
mod call;
pub mod event;
pub mod parser;
mod scan;
pub mod schema;

#[cfg(test)]
mod tests;

pub use event::{Ended, Event, FinishReason, Reply, ReplyCall};
pub use parser::Parser;
pub use schema::{ArgumentForm, ToolSchemas};
