//! Experts on MLX: Metal on a Mac, MLX's CPU backend on Linux (right, and slow there).
//!
//! MLX is used from one thread of a process: whoever builds a bank also runs it.
//!
//! - [`mod@array`]: checkpoint bytes and host slices in and out of MLX arrays
//! - [`packed`]: quantised matrices and the products with them
//! - [`bank`]: the [`crate::compute::ExpertBank`] over stacked experts
//! - [`wired`]: what is loaded kept at the GPU's hand
//! - `ffi`: the calls that mlx-rs does not offer yet (the only unsafe code here)

pub mod array;
pub mod bank;
mod ffi;
pub mod packed;
pub mod wired;

#[cfg(test)]
mod tests;

pub use bank::MlxBank;
pub use packed::{Matrix, PackedMatrix};
