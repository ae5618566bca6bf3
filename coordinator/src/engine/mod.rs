//! Tokens over time.
//!
//! - [`prefill`]: a prompt into the cache, in chunks
//! - [`sampler`]: logits → the next id
//! - [`generation`]: one sequence by itself, for the command line
//! - [`request`]: what a client of the engine asks for, and what it gets back
//! - [`handle`]: the engine as other threads see it

pub mod generation;
pub mod handle;
pub mod prefill;
pub mod request;
pub mod sampler;
