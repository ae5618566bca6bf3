//! The steps between products: by MLX, which makes them part of a graph, or on the CPU here and now. There MLX would hand
//! each to a thread of its own, which takes longer than most of them.

use laguna_shared::compute::cpu::{Isa, pointwise};
use mlx_rs::error::{AsSliceError, Exception};
use mlx_rs::{Array, Dtype, fast, ops};

use super::linear::TrunkMath;

/// `a + b`, of one shape.
pub(super) fn add(math: &TrunkMath, a: &Array, b: &Array) -> Result<Array, Exception> {
    let Some([x, y]) = elements(math, [a, b])? else { return a.add(b) };
    let sums: Vec<f32> = x.iter().zip(y).map(|(x, y)| x + y).collect();
    Ok(Array::from_slice(&sums, a.shape()))
}

/// `silu(gate) · up`, of one shape.
pub(super) fn silu_mul(math: &TrunkMath, gate: &Array, up: &Array) -> Result<Array, Exception> {
    let Some([from, other]) = elements(math, [gate, up])? else {
        return ops::sigmoid(gate)?.multiply(gate)?.multiply(up);
    };
    let mut out = from.to_vec();
    pointwise::silu_mul(Isa::best(), &mut out, other);
    Ok(Array::from_slice(&out, gate.shape()))
}

/// RMSNorm over the last axis; the type of `x`. MLX too accumulates in f32.
pub(super) fn rms_norm(math: &TrunkMath, x: &Array, weight: &Array, eps: f32) -> Result<Array, Exception> {
    let Some([rows, scale]) = elements(math, [x, weight])? else {
        return fast::rms_norm(x, Some(weight), eps);
    };
    let mut out = vec![0.0; rows.len()];
    pointwise::rms_norm(Isa::best(), rows, scale, eps, &mut out);
    Ok(Array::from_slice(&out, x.shape()))
}

/// `x · softplus(gate)`, the softplus in f32: `x` `[rows, heads, head_dim]`, and a factor for a head, or for each channel.
pub(super) fn gate_heads(math: &TrunkMath, x: &Array, gate: &Array) -> Result<Array, Exception> {
    let [rows, heads, head_dim] = [x.dim(0), x.dim(1), x.dim(2)];
    let width = gate.dim(-1) / heads;
    let Some([from, factors]) = elements(math, [x, gate])? else {
        let factors = mlx_softplus(gate)?.as_dtype(x.dtype())?;
        return x.multiply(factors.reshape(&[rows, heads, width])?);
    };
    let mut out = from.to_vec();
    let each = (head_dim / width) as usize;
    for (out, factor) in out.chunks_exact_mut(each).zip(factors) {
        let factor = softplus(*factor);
        out.iter_mut().for_each(|out| *out *= factor);
    }
    Ok(Array::from_slice(&out, x.shape()))
}

/// `sum · factor + shared`, f32; `sum` is `[rows, hidden]`.
pub(super) fn scale_and_add(
    math: &TrunkMath,
    sum: &[f32],
    factor: f32,
    shared: Option<&Array>,
    shape: &[i32],
) -> Result<Array, Exception> {
    if let (TrunkMath::Cpu(_), Some(shared)) = (math, shared)
        && let Some([shared]) = elements(math, [shared])?
    {
        let y: Vec<f32> = sum.iter().zip(shared).map(|(sum, shared)| sum * factor + shared).collect();
        return Ok(Array::from_slice(&y, shape));
    }
    let sum = Array::from_slice(sum, shape).multiply(Array::from_f32(factor))?;
    match shared {
        Some(shared) => sum.add(shared.as_dtype(Dtype::Float32)?),
        None => Ok(sum),
    }
}

/// `ln(1 + exp(x))`, f32.
pub(super) fn mlx_softplus(x: &Array) -> Result<Array, Exception> {
    ops::logaddexp(x.as_dtype(Dtype::Float32)?, Array::from_f32(0.0))
}

/// `ln(1 + exp(z))`; about `exp(z)` far below zero, where `1 + exp(z)` would round to 1.
pub(super) fn softplus(z: f32) -> f32 {
    let softplus = (-z.abs()).exp().ln_1p();
    // `max` would take NaN for 0.
    if z > 0.0 { z + softplus } else { softplus }
}

/// Every array's elements, if they are computed on the CPU and lie in order.
pub(super) fn elements<'a, const N: usize>(
    math: &TrunkMath,
    arrays: [&'a Array; N],
) -> Result<Option<[&'a [f32]; N]>, Exception> {
    if matches!(math, TrunkMath::Mlx) || arrays.iter().any(|array| array.dtype() != Dtype::Float32) {
        return Ok(None);
    }
    let mut slices: [&[f32]; N] = [&[]; N];
    for (slice, array) in slices.iter_mut().zip(arrays) {
        match array.try_as_slice::<f32>() {
            Ok(elements) => *slice = elements,
            Err(AsSliceError::NotContiguous) => return Ok(None),
            Err(error) => return Err(Exception::custom(error.to_string())),
        }
    }
    Ok(Some(slices))
}
