//! Comparing this build with reference outputs, and writing outputs that others can compare.
//!
//! - [`passes`]: prefill in any chunks, and cached greedy decode, with everything recorded
//! - [`expected`]: a reference folder's files
//! - [`compare`]: the differences, counted
//! - [`drift`]: how far predictions move when the weights change
//! - [`record`]: the same passes written as a safetensors file

pub mod compare;
pub mod drift;
pub mod expected;
pub mod passes;
pub mod record;
