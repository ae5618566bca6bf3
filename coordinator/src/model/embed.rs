//! Token ids to the residual stream.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};

use super::linear::Linear;

/// The embedding matrix, `[vocab, hidden]`, in whatever format the checkpoint has.
#[derive(Debug)]
pub struct Embedding {
    pub(super) weight: Linear,
}

impl Embedding {
    /// Rows of `ids`: `[ids, hidden]` in the activation type.
    pub(super) fn forward(&self, ids: &[u32]) -> Result<Array, Exception> {
        self.weight.rows(ids)
    }

    /// The embedding as a head: `[rows, hidden]` → `[rows, vocab]`, f32.
    pub(super) fn as_head(&self, x: &Array) -> Result<Array, Exception> {
        self.weight.forward(x)?.as_dtype(Dtype::Float32)
    }
}
