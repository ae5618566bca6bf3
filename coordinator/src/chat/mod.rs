//! Laguna's text protocol: conversations to prompt text, output text to events.
//!
//! This room does no I/O but reading template files at start-up, and knows no ids, tensors, sockets or clocks. Time
//! and control tokens are arguments. Read it in this order:
//!
//! - [`message`]: what clients send, normalised: one text, one reasoning, calls with argument objects
//! - [`template`]: the checkpoint's own template, rendered byte for byte as transformers renders it
//! - [`output`]: `poolside_v1`, the state machine that splits generated text into reasoning, content and calls
//! - [`call_form`]: what the template writes between the parts of a call
//! - [`stop`]: stop strings, matched over any split of the text
//! - [`marker`]: the spelling of Laguna's control tokens, and how to find them

pub mod call_form;
pub mod marker;
pub mod message;
pub mod output;
pub mod stop;
pub mod template;

pub use call_form::CallForm;
pub use message::{Conversation, Message, MessageError, Role, ToolCall};
pub use output::{Ended, Event, FinishReason, Parser, Reply, ToolSchemas};
pub use stop::StopMatcher;
pub use template::{RenderOptions, Rendered, Template, TemplateError, Thinking, prompt_tail};
