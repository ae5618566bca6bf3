//! Float weights times a few rows: each weight is read once, at the speed of memory.
//!
//! Elements are added in the order of [`super::panel`], so that both give the same bits.

use super::ahead::ahead;
use super::rows::FloatRows;
use super::simd::{Simd, for_isa};
use crate::weights::inventory::FloatType;

/// Consecutive rows of a float matrix.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlainRows<'a> {
    /// A multiple of sixteen.
    pub(super) cols: usize,
    pub(super) float: FloatType,
    /// `[rows, cols]`, little-endian.
    pub(super) weights: &'a [u8],
    /// On every weight.
    pub(super) multiplier: f32,
}

for_isa! {
    /// `out[n, r] = x[which[n]] · w[r]`; `out` has `stride` elements from one n to the next.
    fn multiply(w: PlainRows<'_>, x: FloatRows<'_>, which: &[u32], out: &mut [f32], stride: usize) = multiply_with
}

#[inline(always)]
fn multiply_with<S: Simd>(
    s: S,
    w: PlainRows<'_>,
    x: FloatRows<'_>,
    which: &[u32],
    out: &mut [f32],
    stride: usize,
) {
    let bytes = w.cols * w.float.size();
    let rows = w.weights.len() / bytes;
    assert!(w.weights.len() == rows * bytes, "whole rows of floats");
    assert!(w.cols.is_multiple_of(16) && x.cols == w.cols, "width of float rows");
    assert!(rows <= stride && out.len() >= which.len().saturating_sub(1) * stride + rows, "room for results");
    let mut row = 0;
    while row < rows {
        let many = rows - row >= BLOCK;
        for (n, one) in which.iter().enumerate() {
            let (x, out) = (x.row(*one), &mut out[n * stride + row..]);
            let weights = &w.weights[row * bytes..];
            // SAFETY: `weights` begins with the block's rows, and `x` has as many elements as one of them.
            unsafe {
                match w.float {
                    FloatType::Bf16 => rows_of::<S, Bf16>(s, weights, x, w.multiplier, many, n == 0, out),
                    FloatType::F16 => rows_of::<S, F16>(s, weights, x, w.multiplier, many, n == 0, out),
                    FloatType::F32 => rows_of::<S, F32>(s, weights, x, w.multiplier, many, n == 0, out),
                }
            }
        }
        row += if many { BLOCK } else { 1 };
    }
}

/// A float type, for the compiler to make a loop of its own.
pub(super) trait Float {
    const SIZE: usize;

    /// # Safety
    /// A vector of these floats can be read at `from`.
    unsafe fn load<S: Simd>(s: S, from: *const u8) -> S::Floats;

    /// `COUNT` of these floats, each `LANES / COUNT` times in a row.
    ///
    /// # Safety
    /// They can be read at `from`; `COUNT` is as [`Simd::spread_f32`] says.
    unsafe fn spread<S: Simd, const COUNT: usize>(s: S, from: *const u8) -> S::Floats;
}

macro_rules! floats {
    ($($name:ident, $size:literal, $load:ident, $spread:ident;)*) => {$(
        pub(super) struct $name;
        impl Float for $name {
            const SIZE: usize = $size;

            #[inline(always)]
            unsafe fn load<S: Simd>(s: S, from: *const u8) -> S::Floats {
                // SAFETY: as promised.
                unsafe { s.$load(from) }
            }

            #[inline(always)]
            unsafe fn spread<S: Simd, const COUNT: usize>(s: S, from: *const u8) -> S::Floats {
                // SAFETY: as promised.
                unsafe { s.$spread::<COUNT>(from) }
            }
        }
    )*};
}
floats! {
    Bf16, 2, load_bf16, spread_bf16;
    F16, 2, load_f16, spread_f16;
    F32, 4, load_f32, spread_f32;
}

/// A block of rows or, if not `many`, one row.
///
/// # Safety
/// As [`block`].
#[inline(always)]
unsafe fn rows_of<S: Simd, F: Float>(
    s: S,
    weights: &[u8],
    x: &[f32],
    multiplier: f32,
    many: bool,
    first: bool,
    out: &mut [f32],
) {
    // SAFETY: as promised.
    unsafe {
        if many {
            let sums = block::<S, F, BLOCK>(s, weights, x, first);
            out[..BLOCK].copy_from_slice(&sums.map(|sum| sum * multiplier));
        } else {
            out[0] = block::<S, F, 1>(s, weights, x, first)[0] * multiplier;
        }
    }
}

/// Sums of `ROWS` rows of floats with one row.
///
/// # Safety
/// `weights` has `ROWS` rows of as many elements as `x`, a multiple of sixteen.
#[inline(always)]
unsafe fn block<S: Simd, F: Float, const ROWS: usize>(
    s: S,
    weights: &[u8],
    x: &[f32],
    first: bool,
) -> [f32; ROWS] {
    let mut sums = [s.zero(); ROWS];
    let (line, ahead) = (64 / F::SIZE, ahead(size_of_val(x) / size_of::<f32>() * F::SIZE * ROWS));
    // SAFETY: as promised.
    unsafe {
        for at in (0..x.len()).step_by(S::LANES) {
            let xs = s.load(x.as_ptr().add(at));
            for (r, sum) in sums.iter_mut().enumerate() {
                let w = weights.as_ptr().add((r * x.len() + at) * F::SIZE);
                if first && at % line == 0 {
                    s.prefetch(w.wrapping_add(ahead));
                }
                *sum = s.fma(F::load(s, w), xs, *sum);
            }
        }
    }
    s.sums(sums)
}

/// Rows of weights at a time: as many sums that do not wait for each other.
const BLOCK: usize = 4;
