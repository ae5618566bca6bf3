//! Matrices in MLX: plain or quantised, single or stacked by expert, and the products with them.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};

use super::array::{float_dtype, from_bytes};
use super::ffi::{self, Operand};
use crate::config::MlxMode;
use crate::weights::inventory::MatrixFormat;

/// Bytes of one matrix or of a stack of them, as the checkpoint has them.
#[derive(Clone, Copy, Debug)]
pub struct MatrixBytes<'a> {
    /// Matrices in the stack; `None` for a single matrix, which has no leading axis.
    pub experts: Option<usize>,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// Number format.
    pub format: MatrixFormat,
    /// Weights or codes.
    pub weight: &'a [u8],
    /// Scales, empty for plain formats.
    pub scales: &'a [u8],
    /// Biases, empty unless affine.
    pub biases: &'a [u8],
}

/// One matrix `[rows, cols]`, or a stack `[experts, rows, cols]`.
#[derive(Debug)]
pub enum Matrix {
    /// Floats.
    Plain(Array),
    /// Quantised.
    Packed(PackedMatrix),
}

/// A quantised matrix or stack: codes, scales and how to read them.
#[derive(Debug)]
pub struct PackedMatrix {
    codes: Array,
    scales: Array,
    biases: Option<Array>,
    mode: MlxMode,
    group_size: i32,
    bits: i32,
}

impl Matrix {
    /// Copies a matrix or stack into MLX. Plain weights, affine scales and biases become `floats` (as stored, if
    /// `None`), so that no product converts them again; NVFP4 codes and scales keep their bytes.
    ///
    /// # Errors
    /// If the bytes do not match the shape and format.
    pub fn new(bytes: &MatrixBytes<'_>, floats: Option<Dtype>) -> Result<Self, Exception> {
        let MatrixBytes { experts, rows, cols, format, .. } = *bytes;
        let load = |raw: &[u8], width: usize, dtype: Dtype| match experts {
            Some(experts) => from_bytes(raw, &[experts, rows, width], dtype),
            None => from_bytes(raw, &[rows, width], dtype),
        };
        let float = |raw: &[u8], width: usize, from: Dtype| {
            evaluated(load(raw, width, from)?.as_dtype(floats.unwrap_or(from))?)
        };
        Ok(match format {
            MatrixFormat::Plain(element) => Self::Plain(float(bytes.weight, cols, float_dtype(element))?),
            MatrixFormat::Nvfp4 => Self::Packed(PackedMatrix {
                codes: load(bytes.weight, cols / 8, Dtype::Uint32)?,
                scales: load(bytes.scales, cols / NVFP4_GROUP, Dtype::Uint8)?,
                biases: None,
                mode: MlxMode::Nvfp4,
                group_size: NVFP4_GROUP as i32,
                bits: 4,
            }),
            MatrixFormat::Affine { bits, group_size, scale_type } => {
                let scale_type = float_dtype(scale_type);
                Self::Packed(PackedMatrix {
                    codes: load(bytes.weight, cols * bits as usize / 32, Dtype::Uint32)?,
                    scales: float(bytes.scales, cols / group_size, scale_type)?,
                    biases: Some(float(bytes.biases, cols / group_size, scale_type)?),
                    mode: MlxMode::Affine,
                    group_size: i32::try_from(group_size).map_err(|e| Exception::custom(e.to_string()))?,
                    bits: bits as i32,
                })
            }
        })
    }

    /// `x · wᵀ` with a single matrix: `[n, cols]` → `[n, rows]`.
    ///
    /// # Errors
    /// If MLX refuses the shapes.
    pub fn matmul(&self, x: &Array) -> Result<Array, Exception> {
        match self {
            Self::Plain(w) => x.matmul(w.t()),
            Self::Packed(w) => ffi::quantized_matmul(x, &w.operand()),
        }
    }

    /// Rows `ids` of a single matrix, `[ids, cols]` (an embedding look-up).
    ///
    /// # Errors
    /// If an id is out of range.
    pub fn rows(&self, ids: &Array, activation: Dtype) -> Result<Array, Exception> {
        match self {
            Self::Plain(w) => w.take_axis(ids, 0),
            Self::Packed(w) => {
                let rows = PackedMatrix {
                    codes: w.codes.take_axis(ids, 0)?,
                    scales: w.scales.take_axis(ids, 0)?,
                    biases: w.biases.as_ref().map(|b| b.take_axis(ids, 0)).transpose()?,
                    ..*w
                };
                ffi::dequantize(&rows.operand(), activation)
            }
        }
    }

    /// `x[lhs] · w[rhs]ᵀ`: `x` `[rows, 1, cols]`, indices `[slots]` → `[slots, 1, rows]`.
    ///
    /// # Errors
    /// If MLX refuses the shapes.
    pub fn gather(&self, x: &Array, lhs: &Array, rhs: &Array, sorted: bool) -> Result<Array, Exception> {
        match self {
            Self::Plain(w) => ops::gather_mm(x, w.swap_axes(-1, -2)?, lhs, rhs, sorted),
            Self::Packed(w) => ffi::gather_qmm(x, &w.operand(), lhs, rhs, sorted),
        }
    }

    /// Bytes resident.
    pub fn resident_bytes(&self) -> u64 {
        match self {
            Self::Plain(w) => w.nbytes() as u64,
            Self::Packed(w) => {
                (w.codes.nbytes() + w.scales.nbytes() + w.biases.as_ref().map_or(0, Array::nbytes)) as u64
            }
        }
    }
}

impl PackedMatrix {
    fn operand(&self) -> Operand<'_> {
        Operand {
            codes: &self.codes,
            scales: &self.scales,
            biases: self.biases.as_ref(),
            mode: self.mode,
            group_size: self.group_size,
            bits: self.bits,
        }
    }
}

fn evaluated(array: Array) -> Result<Array, Exception> {
    // Evaluated at once, so that the source buffer of a conversion is freed before the next matrix is read.
    array.eval()?;
    Ok(array)
}

/// Columns that share an NVFP4 scale.
const NVFP4_GROUP: usize = 16;
