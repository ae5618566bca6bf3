//! Whole models: prompt and decode speed, the time of a sparse layer, and memory, by where the experts are.
//!
//! - [`setup`]: one run of one set-up, in a process of its own, so that its memory is its own
//! - [`measure`]: set-ups in turn, and medians

pub mod measure;
pub mod setup;
