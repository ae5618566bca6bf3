//! Host memory in and out of MLX arrays.

use mlx_rs::error::{AsSliceError, Exception};
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
    match array.dtype() {
        Dtype::Bfloat16 => {
            look_at::<half::bf16>(array, |values| out.extend_from_slice(bytemuck::cast_slice(values)))
        }
        Dtype::Float32 => look_at::<f32>(array, |values| out.extend_from_slice(bytemuck::cast_slice(values))),
        other => Err(Exception::custom(format!("rows of {other:?} cannot be sent; expected bf16 or f32"))),
    }
}

/// Appends an array's elements, row-major, to `out` as f32.
///
/// # Errors
/// If evaluation fails.
pub fn append_f32(array: &Array, out: &mut Vec<f32>) -> Result<(), Exception> {
    look_at::<f32>(&array.as_dtype(Dtype::Float32)?, |values| out.extend_from_slice(values))
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

/// An array's elements, row-major, where they lie.
///
/// # Errors
/// If evaluation fails, its type is another, or its elements do not follow each other.
pub fn slice_of<T: mlx_rs::ArrayElement>(array: &Array) -> Result<&[T], Exception> {
    array.try_as_slice::<T>().map_err(|e| Exception::custom(e.to_string()))
}

/// Shows `look` the elements, row-major. What is evaluated and in order already costs no evaluation, and no copy.
fn look_at<T: mlx_rs::ArrayElement>(array: &Array, look: impl FnOnce(&[T])) -> Result<(), Exception> {
    #[cfg(test)]
    looked::at(array);
    let other = |error: AsSliceError| Exception::custom(error.to_string());
    match array.try_as_slice::<T>() {
        Ok(values) => look(values),
        Err(AsSliceError::NotContiguous) => {
            let array = array.contiguous()?;
            #[cfg(test)]
            looked::at(&array);
            look(array.try_as_slice::<T>().map_err(other)?);
        }
        Err(error) => return Err(other(error)),
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_evaluated_and_in_order_is_not_evaluated_again() {
        let array = Array::from_slice(&[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]);
        let sum = array.add(&array).unwrap();
        let (mut floats, mut bytes) = (Vec::new(), Vec::new());
        looked::take();
        append_f32(&sum, &mut floats).unwrap();
        append_f32(&sum, &mut floats).unwrap();
        append_bytes(&sum, &mut bytes).unwrap();
        assert_eq!(looked::take().len(), 1);
        assert_eq!(floats[6..], [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
        assert_eq!(bytes, bytemuck::cast_slice::<f32, u8>(&floats[..6]));
        // Another order takes a copy.
        floats.clear();
        append_f32(&sum.transpose().unwrap(), &mut floats).unwrap();
        assert_eq!(floats, [2.0, 8.0, 4.0, 10.0, 6.0, 12.0]);
    }
}
