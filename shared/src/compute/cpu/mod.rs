//! Matrices and experts on the CPU: SIMD kernels straight over a checkpoint's bytes. In reading order:
//!
//! - [`isa`]: which instructions this processor has, found out once
//! - [`pool`]: the threads, and each one's working memory
//! - [`matrix`]: one weight matrix in any format; not only for experts
//! - [`product`]: `y = x · Wᵀ` with one matrix, or with several that have the same x
//! - `rows`: rows of activations as the kernels read them: padded f32, and split into bytes
//! - `split`, `nibbles`, `plain`, `affine`, `panel`: the kernels: NVFP4, affine codes of four bits, floats and other
//!   affine codes with few rows, anything with many
//! - `ahead`: how far ahead those for few rows ask memory for weights
//! - `decode`: packed weights to f32, which `panel` multiplies
//! - `simd`: the vector operations that the kernels are written in, once for each instruction set
//! - [`attention`]: queries over cached keys and values, a block of keys at a time; [`key_values`] holds the blocks,
//!   [`heads`] is how queries, and new keys and values, come in; `outer_product` is the arithmetic
//! - [`pointwise`]: the steps between products
//! - [`bank`]: the [`crate::compute::ExpertBank`]; `batch` sorts its slots by expert
//!
//! Numbers: every kernel keeps f32 accuracy (errors near 1e-7 of the result's size, whatever the format), sums in an
//! order that depends on the matrix alone, and gives a row the same bits whatever the number of threads. With few
//! rows ([`matrix::FEW`], or as many as the instruction set is worth) an NVFP4 matrix, and an affine one of four bits
//! whose groups are a power of two from 32 on, is multiplied in another way than with more, which shows in the last
//! bits only; the other formats give a row the same bits in any company. NaN and infinities in a row make its results NaN
//! or infinite.
// The one room besides MLX's seam with unsafe code: vector instructions, and threads that share a buffer.
#![allow(unsafe_code)]

mod affine;
mod ahead;
pub mod attention;
pub mod bank;
mod batch;
mod decode;
pub mod heads;
pub mod isa;
pub mod key_values;
mod lines;
pub mod matrix;
mod nibbles;
mod outer_product;
mod panel;
mod plain;
pub mod pointwise;
pub mod pool;
pub mod product;
mod rows;
mod simd;
mod split;

#[cfg(test)]
mod attention_tests;
#[cfg(test)]
mod bank_tests;
#[cfg(test)]
mod matrix_tests;

pub use attention::Attention;
pub use bank::CpuBank;
pub use heads::Heads;
pub use isa::Isa;
pub use key_values::KeyValues;
pub use matrix::CpuMatrix;
pub use pool::Pool;
pub use product::matmul_all;
