//! RMSNorm: `x / sqrt(mean(x²) + eps) · weight`, over the last axis (arXiv 1910.07467).

use mlx_rs::error::Exception;
use mlx_rs::{Array, fast};

/// A norm's learned scale.
#[derive(Debug)]
pub struct RmsNorm {
    /// `[width]`, activation type.
    pub(super) weight: Array,
    pub(super) eps: f32,
}

impl RmsNorm {
    /// Same shape and type as `x`; MLX accumulates in f32.
    pub(super) fn forward(&self, x: &Array) -> Result<Array, Exception> {
        fast::rms_norm(x, Some(&self.weight), self.eps)
    }
}
