//! Whole models: prompt and decode speed, the time of a sparse layer, and memory, by where the experts are.
//!
//! - [`place`]: where they are: in this process, in others, behind a link
//! - [`setup`]: one run of one set-up, in a process of its own, so that its memory is its own
//! - [`measure`]: set-ups in turn, and medians
//! - [`model`]: what a link should cost, from what was measured without it

pub mod measure;
pub mod model;
pub mod place;
pub mod setup;
