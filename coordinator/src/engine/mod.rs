//! Tokens over time.
//!
//! - [`prefill`]: a prompt into the cache, in chunks
//! - [`sampler`]: logits → the next id
//! - [`grammar`]: which tokens may come, where the answer's form is asked for
//! - [`generation`]: one sequence by itself, for the command line
//! - [`request`]: what a client of the engine asks for, and what it gets back
//! - [`handle`]: the engine as other threads see it
//! - [`service`]: the engine itself: many requests at once; `slot` is one of them
//! - [`prefix`]: keys and values kept for later requests

pub mod generation;
pub mod grammar;
pub mod handle;
pub mod prefill;
pub mod prefix;
pub mod request;
pub mod sampler;
pub mod service;
mod slot;

#[cfg(test)]
mod tests;
