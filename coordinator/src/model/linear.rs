//! Matrix products of the trunk, whatever the checkpoint's number format.

use laguna_shared::compute::mlx::Matrix;
use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};

/// `y = x · Wᵀ`, with an NVFP4 global scale where the checkpoint has one.
#[derive(Debug)]
pub struct Linear {
    pub(super) weight: Matrix,
    /// Global scale, applied to the product in f32; 1.0 for most formats.
    pub(super) multiplier: f32,
    pub(super) activation: Dtype,
}

impl Linear {
    /// `[rows, cols]` → `[rows, out]`, in the activation type.
    pub(super) fn forward(&self, x: &Array) -> Result<Array, Exception> {
        self.scaled(self.weight.matmul(x)?)
    }

    /// Rows `ids` of the matrix itself, in the activation type.
    pub(super) fn rows(&self, ids: &Array) -> Result<Array, Exception> {
        self.scaled(self.weight.rows(ids, self.activation)?)
    }

    fn scaled(&self, y: Array) -> Result<Array, Exception> {
        if self.multiplier == 1.0 {
            return y.as_dtype(self.activation);
        }
        y.as_dtype(Dtype::Float32)?.multiply(Array::from_f32(self.multiplier))?.as_dtype(self.activation)
    }
}
