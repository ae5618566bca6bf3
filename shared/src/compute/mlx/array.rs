//! Host memory in and out of MLX arrays.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};

use super::ffi;
use crate::compute::ActivationType;
use crate::weights::inventory::FloatType;

/// MLX's name for an activation type.
pub const fn activation_dtype(activation: ActivationType) -> Dtype {
    match activation {
        ActivationType::Bf16 => Dtype::Bfloat16,
        ActivationType::F32 => Dtype::Float32,
    }
}

/// MLX's name for a checkpoint float type.
pub const fn float_dtype(float: FloatType) -> Dtype {
    match float {
        FloatType::F16 => Dtype::Float16,
        FloatType::Bf16 => Dtype::Bfloat16,
        FloatType::F32 => Dtype::Float32,
    }
}

/// Copies little-endian, row-major bytes into an array of `shape`.
///
/// # Errors
/// If the bytes are not exactly `shape` elements of `dtype`.
pub fn from_bytes(bytes: &[u8], shape: &[usize], dtype: Dtype) -> Result<Array, Exception> {
    ffi::array_from_bytes(bytes, &dims(shape)?, dtype)
}

/// Copies activation rows `[rows, hidden]` into an array.
///
/// # Errors
/// If the bytes are not exactly that many elements.
pub fn from_rows(
    bytes: &[u8],
    rows: usize,
    hidden: usize,
    activation: ActivationType,
) -> Result<Array, Exception> {
    from_bytes(bytes, &[rows, hidden], activation_dtype(activation))
}

/// Appends an array's elements, row-major, to `out` as little-endian bytes of its own type (bf16 or f32).
///
/// # Errors
/// If evaluation fails, or the array is neither bf16 nor f32.
pub fn append_bytes(array: &Array, out: &mut Vec<u8>) -> Result<(), Exception> {
    let array = array.contiguous()?;
    match array.dtype() {
        Dtype::Bfloat16 => out.extend_from_slice(bytemuck::cast_slice(slice_of::<half::bf16>(&array)?)),
        Dtype::Float32 => out.extend_from_slice(bytemuck::cast_slice(slice_of::<f32>(&array)?)),
        other => {
            return Err(Exception::custom(format!("rows of {other:?} cannot be sent; expected bf16 or f32")));
        }
    }
    Ok(())
}

/// Appends an array's elements, row-major, to `out` as f32.
///
/// # Errors
/// If evaluation fails.
pub fn append_f32(array: &Array, out: &mut Vec<f32>) -> Result<(), Exception> {
    let array = array.as_dtype(Dtype::Float32)?.contiguous()?;
    out.extend_from_slice(slice_of::<f32>(&array)?);
    Ok(())
}

/// `shape` as MLX counts it.
///
/// # Errors
/// If a dimension is over `i32::MAX`.
pub fn dims(shape: &[usize]) -> Result<Vec<i32>, Exception> {
    shape
        .iter()
        .map(|&d| i32::try_from(d).map_err(|_| Exception::custom(format!("dimension {d} is over i32::MAX"))))
        .collect()
}

fn slice_of<T: mlx_rs::ArrayElement>(array: &Array) -> Result<&[T], Exception> {
    #[cfg(test)]
    looked::at(array);
    array.try_as_slice::<T>().map_err(|e| Exception::custom(e.to_string()))
}

/// Evaluations that this thread asked for by looking at what was not computed yet, and the operations of each.
#[cfg(test)]
pub(super) mod looked {
    use std::cell::RefCell;

    use super::{Array, ffi};

    thread_local!(static GRAPHS: RefCell<Vec<Vec<String>>> = const { RefCell::new(Vec::new()) });

    pub(super) fn at(array: &Array) {
        let graph = ffi::graph(array);
        if !graph.is_empty() {
            GRAPHS.with_borrow_mut(|graphs| graphs.push(graph));
        }
    }

    /// Those since the last call of this.
    pub(in crate::compute::mlx) fn take() -> Vec<Vec<String>> {
        GRAPHS.take()
    }
}
