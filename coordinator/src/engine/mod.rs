//! Tokens over time.
//!
//! - [`prefill`]: a prompt into the cache, in chunks
//! - [`sampler`]: logits → the next id
//! - [`generation`]: prompt, then one token after the other, until a stop id or a limit

pub mod generation;
pub mod prefill;
pub mod sampler;
