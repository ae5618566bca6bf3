//! Matrix products of the trunk, whatever the checkpoint's number format, and wherever they are computed.

use std::sync::Arc;

use laguna_shared::compute::cpu::{CpuMatrix, Pool};
use laguna_shared::compute::mlx::Matrix;
use laguna_shared::compute::mlx::array::append_f32;
use laguna_shared::compute::mlx::packed::MatrixBytes;
use laguna_shared::weights::RawMatrix;
use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};

/// Where products are computed.
#[derive(Clone, Debug)]
pub enum TrunkMath {
    /// By MLX: Metal on a Mac. Plain weights take the activation type.
    Mlx,
    /// In SIMD on these threads, over weights as the checkpoint has them. MLX's own CPU products read 2 to 4 GB/s of
    /// weights; these read what the memory gives.
    Cpu(Arc<Pool>),
}

/// `y = x · Wᵀ`.
#[derive(Debug)]
pub struct Linear {
    weight: Weight,
    activation: Dtype,
}

#[derive(Debug)]
enum Weight {
    /// With an NVFP4 global scale, applied to the product in f32; 1.0 for other formats.
    Mlx {
        matrix: Matrix,
        multiplier: f32,
    },
    Cpu {
        matrix: Box<CpuMatrix>,
        pool: Arc<Pool>,
    },
}

impl Linear {
    /// A product with a matrix of the checkpoint that was read already.
    pub(super) fn new(raw: RawMatrix, activation: Dtype, math: &TrunkMath) -> Result<Self, Exception> {
        let weight = match math {
            TrunkMath::Mlx => {
                let bytes = MatrixBytes {
                    experts: None,
                    rows: raw.rows,
                    cols: raw.cols,
                    format: raw.format,
                    weight: &raw.weight,
                    scales: &raw.scales,
                    biases: &raw.biases,
                };
                Weight::Mlx { matrix: Matrix::new(&bytes, Some(activation))?, multiplier: raw.multiplier }
            }
            TrunkMath::Cpu(pool) => {
                let RawMatrix { rows, cols, format, weight, scales, biases, multiplier } = raw;
                let parts = (weight.into(), scales.into(), biases.into());
                let matrix = CpuMatrix::new((rows, cols), format, parts.0, parts.1, parts.2, multiplier)
                    .map_err(|e| Exception::custom(e.to_string()))?;
                Weight::Cpu { matrix: Box::new(matrix), pool: Arc::clone(pool) }
            }
        };
        Ok(Self { weight, activation })
    }

    /// A product with a matrix that stays where it is mapped.
    pub(super) fn mapped(matrix: CpuMatrix, pool: Arc<Pool>, activation: Dtype) -> Self {
        Self { weight: Weight::Cpu { matrix: Box::new(matrix), pool }, activation }
    }

    /// `[rows, cols]` → `[rows, out]`, in the activation type. On the CPU it is computed here and now.
    pub(super) fn forward(&self, x: &Array) -> Result<Array, Exception> {
        match &self.weight {
            Weight::Mlx { matrix, multiplier } => self.scaled(matrix.matmul(x)?, *multiplier),
            Weight::Cpu { matrix, pool } => {
                let rows = x.dim(0);
                let mut y = vec![0.0; rows as usize * matrix.rows()];
                let x = x.as_dtype(Dtype::Float32)?.contiguous()?;
                x.eval()?;
                let values = x.try_as_slice::<f32>().map_err(|e| Exception::custom(e.to_string()))?;
                matrix.matmul(pool, values, &mut y);
                Array::from_slice(&y, &[rows, matrix.rows() as i32]).as_dtype(self.activation)
            }
        }
    }

    /// Rows `ids` of the matrix itself, `[ids, cols]`, in the activation type.
    pub(super) fn rows(&self, ids: &[u32]) -> Result<Array, Exception> {
        let count = ids.len() as i32;
        match &self.weight {
            Weight::Mlx { matrix, multiplier } => {
                let ids = Array::from_slice(ids, &[count]);
                self.scaled(matrix.rows(&ids, self.activation)?, *multiplier)
            }
            Weight::Cpu { matrix, .. } => {
                let mut rows = Vec::new();
                for &id in ids {
                    matrix.append_row(id as usize, &mut rows);
                }
                Array::from_slice(&rows, &[count, matrix.cols() as i32]).as_dtype(self.activation)
            }
        }
    }

    /// Every weight as f32, if they are stored as plain floats: `[rows, cols]` and the values.
    pub(super) fn plain(&self) -> Result<Option<(usize, usize, Vec<f32>)>, Exception> {
        let (rows, cols) = match &self.weight {
            Weight::Mlx { matrix: Matrix::Plain(w), .. } => (w.dim(0) as usize, w.dim(1) as usize),
            Weight::Cpu { matrix, .. } if matrix.is_plain() => (matrix.rows(), matrix.cols()),
            _ => return Ok(None),
        };
        let ids: Vec<u32> = (0..rows as u32).collect();
        let mut values = Vec::with_capacity(rows * cols);
        append_f32(&self.rows(&ids)?, &mut values)?;
        Ok(Some((rows, cols, values)))
    }

    /// Where it is computed.
    pub(super) fn math(&self) -> TrunkMath {
        match &self.weight {
            Weight::Mlx { .. } => TrunkMath::Mlx,
            Weight::Cpu { pool, .. } => TrunkMath::Cpu(Arc::clone(pool)),
        }
    }

    /// Element type of what it gives.
    pub(super) const fn activation(&self) -> Dtype {
        self.activation
    }

    fn scaled(&self, y: Array, multiplier: f32) -> Result<Array, Exception> {
        if multiplier == 1.0 {
            return y.as_dtype(self.activation);
        }
        y.as_dtype(Dtype::Float32)?.multiply(Array::from_f32(multiplier))?.as_dtype(self.activation)
    }
}
