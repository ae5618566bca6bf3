//! RMSNorm: `x / sqrt(mean(x²) + eps) · weight`, over the last axis (arXiv 1910.07467).

use mlx_rs::Array;
use mlx_rs::error::Exception;

use super::linear::TrunkMath;
use super::pointwise;

/// A norm's learned scale.
#[derive(Debug)]
pub struct RmsNorm {
    /// `[width]`, activation type.
    pub(super) weight: Array,
    pub(super) eps: f32,
    pub(super) math: TrunkMath,
}

impl RmsNorm {
    /// Same shape and type as `x`.
    pub(super) fn forward(&self, x: &Array) -> Result<Array, Exception> {
        pointwise::rms_norm(&self.math, x, &self.weight, self.eps)
    }
}
