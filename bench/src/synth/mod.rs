//! Synthetic checkpoints: every tensor with the name, type and shape of a real Laguna, and a model that knows nothing.
//! Written as a stream, so memory stays small whatever the size; the same seed gives the same bytes.
//!
//! - [`shape`]: how many of what: S-shaped, XS-shaped, tiny, and any other
//! - [`noise`]: numbers by seed and name
//! - [`tensors`]: the list of tensors, with scales that keep activations finite
//! - [`mod@config`]: its `config.json`
//! - [`write`](mod@write): files

pub mod config;
pub mod noise;
pub mod shape;
pub mod tensors;
pub mod write;

#[cfg(test)]
mod tests;

pub use shape::{Layout, Preset, Shape};
pub use write::{Written, write};
