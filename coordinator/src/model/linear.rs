//! Matrix products of the trunk, whatever the checkpoint's number format, and wherever they are computed.

use std::cell::RefCell;
use std::sync::Arc;

use laguna_shared::compute::cpu::{CpuMatrix, Pool, matmul_all};
use laguna_shared::compute::mlx::Matrix;
use laguna_shared::compute::mlx::array::{append_f32, slice_of};
use laguna_shared::compute::mlx::packed::MatrixBytes;
use laguna_shared::weights::RawMatrix;
use mlx_rs::error::{AsSliceError, Exception};
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

    /// `[rows, cols]` → `[rows, out]`, in the activation type; several axes may make up `cols`. On the CPU it is computed
    /// here and now.
    pub(super) fn forward(&self, x: &Array) -> Result<Array, Exception> {
        match &self.weight {
            Weight::Mlx { matrix, multiplier } if x.ndim() == 2 => {
                self.scaled(matrix.matmul(x)?, *multiplier)
            }
            Weight::Mlx { matrix, multiplier } => {
                self.scaled(matrix.matmul(&x.reshape(&[x.dim(0), -1])?)?, *multiplier)
            }
            Weight::Cpu { matrix, pool } => {
                let [y] = products([matrix.as_ref()], pool, x)?;
                y.as_dtype(self.activation)
            }
        }
    }

    /// [`forward`](Self::forward) of each with the same rows. On the CPU all of them are computed together.
    pub(super) fn forward_all<const N: usize>(
        linears: [&Self; N],
        x: &Array,
    ) -> Result<[Array; N], Exception> {
        let Some((matrices, pool)) = together(linears) else {
            return each(linears.iter().map(|linear| linear.forward(x)));
        };
        let products = products(matrices, pool, x)?;
        each(products.iter().zip(linears).map(|(y, linear)| y.as_dtype(linear.activation)))
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

/// The matrices and the pool, if all are computed on the CPU by the same threads.
fn together<const N: usize>(linears: [&Linear; N]) -> Option<([&CpuMatrix; N], &Arc<Pool>)> {
    let Weight::Cpu { matrix, pool } = &linears.first()?.weight else { return None };
    let mut matrices = [matrix.as_ref(); N];
    for (at, linear) in matrices.iter_mut().zip(linears) {
        match &linear.weight {
            Weight::Cpu { matrix, pool: other } if Arc::ptr_eq(pool, other) && matrix.cols() == at.cols() => {
                *at = matrix.as_ref();
            }
            _ => return None,
        }
    }
    Some((matrices, pool))
}

/// `x · Wᵀ` with each matrix, f32, computed here and now.
fn products<const N: usize>(
    matrices: [&CpuMatrix; N],
    pool: &Pool,
    x: &Array,
) -> Result<[Array; N], Exception> {
    let rows = x.dim(0);
    let mut x = x.as_dtype(Dtype::Float32)?;
    if matches!(x.try_as_slice::<f32>(), Err(AsSliceError::NotContiguous)) {
        x = x.contiguous()?;
    }
    let values = slice_of(&x)?;
    let len = rows as usize * matrices.iter().map(|matrix| matrix.rows()).sum::<usize>();
    RESULTS.with_borrow_mut(|kept| {
        let mut once = Vec::new();
        // What is left from before is written over.
        let all = if len <= KEPT { &mut *kept } else { &mut once };
        all.resize(len.max(all.len()), 0.0);
        let all = &mut all[..len];
        matmul_all(&matrices, pool, values, all);
        let mut rest: &[f32] = all;
        // MLX could adopt memory (`mlx_array_new_data_managed`), but mlx-rs does not offer it: one copy it is.
        each(matrices.iter().map(|matrix| {
            let (y, after) = rest.split_at(rows as usize * matrix.rows());
            rest = after;
            Ok(Array::from_slice(y, &[rows, matrix.rows() as i32]))
        }))
    })
}

/// As many arrays as there are linears.
fn each<const N: usize>(
    arrays: impl Iterator<Item = Result<Array, Exception>>,
) -> Result<[Array; N], Exception> {
    let arrays: Vec<Array> = arrays.collect::<Result<_, _>>()?;
    arrays
        .try_into()
        .map_err(|other: Vec<Array>| Exception::custom(format!("{} products of {N}", other.len())))
}

thread_local! {
    /// Results on their way into MLX's arrays.
    static RESULTS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Most results that a thread keeps memory for: 4 MB. Larger ones are of prompts, where allocating does not show.
const KEPT: usize = 1 << 20;
