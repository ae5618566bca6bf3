//! Runs everything but the routed experts, and drives the shards that hold those. Read in this order:
//!
//! - [`model`]: the forward pass, one file a part
//! - [`experts`]: routed rows out to the shards and back
//! - [`engine`]: tokens over time
//! - [`flight`]: where a token's time goes
//! - [`text`]: text in, ids out, and back
//! - [`chat`]: what messages mean: the checkpoint's own template
//! - [`reference`](mod@reference): comparing with reference outputs
//! - [`http`]: the API: dialects of OpenAI and Anthropic
//! - [`cli`]: the commands
//!
//! A token passes through here: [`text::tokenizer`] → [`engine::prefill`] → [`model`]: [`model::embed`], then in each
//! layer [`model::attention`] and, if it is sparse, [`model::router`] → [`experts::scatter`] → the shards →
//! [`experts::gather`] → [`model::moe`] → [`model::head`] → [`engine::sampler`] → [`text::detokenizer`].

pub mod chat;
pub mod cli;
pub mod engine;
pub mod experts;
pub mod flight;
pub mod http;
pub mod model;
pub mod reference;
pub mod text;
