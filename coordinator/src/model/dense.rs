//! SwiGLU: `down(silu(gate x) · up x)` (arXiv 2002.05202). Dense layers are one, and so is the shared expert.

use mlx_rs::Array;
use mlx_rs::error::Exception;

use super::linear::Linear;
use super::pointwise;

/// The three matrices of a SwiGLU.
#[derive(Debug)]
pub struct Swiglu {
    pub(super) gate: Linear,
    pub(super) up: Linear,
    pub(super) down: Linear,
}

impl Swiglu {
    /// `[rows, hidden]` → `[rows, hidden]`.
    pub(super) fn forward(&self, x: &Array) -> Result<Array, Exception> {
        let [gate, up] = Linear::forward_all([&self.gate, &self.up], x)?;
        self.down.forward(&pointwise::silu_mul(&self.down.math(), &gate, &up)?)
    }
}
