//! Affine weights of four or eight bits times a few rows: decoded in registers, in the order of [`super::panel`] and
//! with its roundings, so that both give the same bits. What [`super::nibbles`] takes does not come here.

use super::ahead::ahead;
use super::decode::floats;
use super::lines::Lines;
use super::rows::FloatRows;
use super::simd::{Simd, for_isa};
use crate::weights::inventory::FloatType;

/// Consecutive rows of an affine matrix.
#[derive(Clone, Copy, Debug)]
pub(super) struct AffineRows<'a> {
    /// A multiple of the group size.
    pub(super) cols: usize,
    /// Four or eight.
    pub(super) bits: u32,
    /// A multiple of sixteen.
    pub(super) group_size: usize,
    pub(super) scale_type: FloatType,
    /// `[rows, cols · bits / 8]`.
    pub(super) codes: &'a [u8],
    /// `[rows, cols / group_size]`.
    pub(super) scales: &'a [u8],
    /// As `scales`.
    pub(super) biases: &'a [u8],
    /// On every weight.
    pub(super) multiplier: f32,
}

for_isa! {
    /// `out[n, r] = x[which[n]] · w[r]`; `out` has `stride` elements from one n to the next.
    fn multiply(
        w: AffineRows<'_>,
        x: FloatRows<'_>,
        which: &[u32],
        out: &mut [f32],
        stride: usize,
        scratch: &mut Lines<f32>,
    ) = multiply_with
}

#[inline(always)]
fn multiply_with<S: Simd>(
    s: S,
    w: AffineRows<'_>,
    x: FloatRows<'_>,
    which: &[u32],
    out: &mut [f32],
    stride: usize,
    scratch: &mut Lines<f32>,
) {
    let (groups, size) = (w.cols / w.group_size, w.scale_type.size());
    let (code_bytes, group_bytes) = (w.cols * w.bits as usize / 8, groups * size);
    let rows = w.codes.len() / code_bytes;
    assert!(matches!(w.bits, 4 | 8) && w.group_size.is_multiple_of(16), "quick affine codes");
    assert!(w.cols == groups * w.group_size && w.codes.len() == rows * code_bytes, "affine codes");
    assert!(w.scales.len() == rows * group_bytes && w.biases.len() == rows * group_bytes, "affine groups");
    assert!(x.cols == w.cols, "width of float rows");
    assert!(rows <= stride && out.len() >= which.len().saturating_sub(1) * stride + rows, "room for results");
    let (scales, biases) = scratch.take(2 * BLOCK * groups).split_at_mut(BLOCK * groups);
    let mut row = 0;
    while row < rows {
        let held = if rows - row >= BLOCK { BLOCK } else { 1 };
        let part = row * group_bytes..(row + held) * group_bytes;
        floats(s, w.scale_type, &w.scales[part.clone()], &mut scales[..held * groups]);
        floats(s, w.scale_type, &w.biases[part], &mut biases[..held * groups]);
        let codes = &w.codes[row * code_bytes..(row + held) * code_bytes];
        let block = Block { codes, scales, biases, group_size: w.group_size };
        for (n, one) in which.iter().enumerate() {
            let (x, out) = (x.row(*one), &mut out[n * stride + row..][..held]);
            // SAFETY: the block's parts have the lengths that were checked, and x those of a row.
            unsafe {
                match (w.bits, held) {
                    (4, BLOCK) => block.multiply::<S, 4, BLOCK>(s, x, n == 0, out),
                    (4, _) => block.multiply::<S, 4, 1>(s, x, n == 0, out),
                    (_, BLOCK) => block.multiply::<S, 8, BLOCK>(s, x, n == 0, out),
                    _ => block.multiply::<S, 8, 1>(s, x, n == 0, out),
                }
            }
            for out in out {
                *out *= w.multiplier;
            }
        }
        row += held;
    }
}

/// A few rows, their scales and biases decoded.
#[derive(Clone, Copy)]
struct Block<'a> {
    codes: &'a [u8],
    /// `[rows, groups]`.
    scales: &'a [f32],
    /// `[rows, groups]`.
    biases: &'a [f32],
    group_size: usize,
}

impl Block<'_> {
    /// # Safety
    /// The block has `ROWS` rows of codes of `BITS` bits, as many as `x` has elements: whole groups.
    #[inline(always)]
    unsafe fn multiply<S: Simd, const BITS: usize, const ROWS: usize>(
        &self,
        s: S,
        x: &[f32],
        first: bool,
        out: &mut [f32],
    ) {
        let (groups, row_bytes) = (x.len() / self.group_size, x.len() * BITS / 8);
        let ahead = ahead(ROWS * row_bytes);
        let mut sums = [s.zero(); ROWS];
        // SAFETY: as promised.
        unsafe {
            for group in 0..groups {
                let (mut scales, mut biases) = ([s.zero(); ROWS], [s.zero(); ROWS]);
                for r in 0..ROWS {
                    scales[r] = s.splat(*self.scales.get_unchecked(r * groups + group));
                    biases[r] = s.splat(*self.biases.get_unchecked(r * groups + group));
                }
                let start = group * self.group_size;
                for at in (start..start + self.group_size).step_by(16) {
                    for r in 0..ROWS {
                        let codes = self.codes.as_ptr().add(r * row_bytes + at * BITS / 8);
                        if first && (at * BITS / 8).is_multiple_of(64) {
                            s.prefetch(codes.wrapping_add(ahead));
                        }
                        let codes = if BITS == 4 { s.nibbles(codes) } else { s.load_bytes(codes) };
                        for part in 0..16 / S::LANES {
                            let x = s.load(x.as_ptr().add(at + part * S::LANES));
                            let weights = s.fma(s.widen(codes, part), scales[r], biases[r]);
                            sums[r] = s.fma(weights, x, sums[r]);
                        }
                    }
                }
            }
        }
        out.copy_from_slice(&s.sums(sums));
    }
}

/// Rows of weights at a time: as many sums that do not wait for each other.
const BLOCK: usize = 4;
