//! Comparing this build with reference outputs, and writing outputs that others can compare.
//!
//! - [`passes`]: prefill in any chunks, and cached greedy decode, with everything recorded
//! - [`expected`]: a reference folder's files
//! - [`compare`]: the differences, counted
//! - [`record`]: the same passes written as a safetensors file

pub mod compare;
pub mod expected;
pub mod passes;
pub mod record;
