//! The residual stream to logits.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};

use super::embed::Embedding;
use super::linear::Linear;
use super::norm::RmsNorm;

/// Final norm and output matrix.
#[derive(Debug)]
pub struct Head {
    pub(super) norm: RmsNorm,
    /// `[vocab, hidden]`; `None` when tied to the embedding.
    pub(super) weight: Option<Linear>,
}

impl Head {
    /// `[rows, hidden]` → `[rows, vocab]`, f32.
    pub(super) fn forward(&self, x: &Array, embed: &Embedding) -> Result<Array, Exception> {
        let x = self.norm.forward(x)?;
        match &self.weight {
            Some(weight) => weight.forward(&x)?.as_dtype(Dtype::Float32),
            None => embed.as_head(&x),
        }
    }
}
