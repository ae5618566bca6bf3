//! Affine weights of four bits times a few rows, in integers: see [`super::rows`] for how rows are split.
//!
//! A weight is code · scale + bias, and here (code - 8) · scale + (bias + 8 · scale): see [`CENTRE`]. So a product is
//! `Σ scale · Σ (code - 8) · x` over groups, whose inner sums [`Planes`] makes exactly, and
//! `Σ (bias + 8 · scale) · Σ x`, a short product of floats. Codes are the instruction's unsigned side as they are; what 8
//! takes off is in the rows' centres.

use super::ahead::ahead;
use super::lines::Lines;
use super::plain::{Bf16, F16, F32, Float};
use super::rows::{CENTRE, FACTOR, GROUP, SplitRow, SplitRows};
use super::simd::{Simd, for_isa};
use super::split::Planes;
use crate::weights::inventory::FloatType;

/// Consecutive rows of an affine matrix of four bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct NibbleRows<'a> {
    /// A multiple of the group size.
    pub(super) cols: usize,
    /// As [`fits`] has it.
    pub(super) group_size: usize,
    pub(super) scale_type: FloatType,
    /// `[rows, cols / 2]`.
    pub(super) codes: &'a [u8],
    /// `[rows, cols / group_size]`.
    pub(super) scales: &'a [u8],
    /// As `scales`.
    pub(super) biases: &'a [u8],
    /// On every weight.
    pub(super) multiplier: f32,
}

/// Whether groups of that size are multiplied here: a vector of codes has whole ones, or is part of one.
pub(super) const fn fits(group_size: usize) -> bool {
    group_size.is_power_of_two() && group_size >= 2 * GROUP
}

for_isa! {
    /// `out[n, r] = x[which[n]] · w[r]`; `out` has `stride` elements from one n to the next.
    fn multiply(
        w: NibbleRows<'_>,
        x: SplitRows<'_>,
        which: &[u32],
        out: &mut [f32],
        stride: usize,
        scratch: &mut Lines<f32>,
    ) = multiply_with
}

#[inline(always)]
fn multiply_with<S: Simd>(
    s: S,
    w: NibbleRows<'_>,
    x: SplitRows<'_>,
    which: &[u32],
    out: &mut [f32],
    stride: usize,
    scratch: &mut Lines<f32>,
) {
    match w.scale_type {
        FloatType::Bf16 => with_scales::<S, Bf16>(s, w, x, which, out, stride, scratch),
        FloatType::F16 => with_scales::<S, F16>(s, w, x, which, out, stride, scratch),
        FloatType::F32 => with_scales::<S, F32>(s, w, x, which, out, stride, scratch),
    }
}

#[inline(always)]
fn with_scales<S: Simd, F: Float>(
    s: S,
    w: NibbleRows<'_>,
    x: SplitRows<'_>,
    which: &[u32],
    out: &mut [f32],
    stride: usize,
    scratch: &mut Lines<f32>,
) {
    // Groups in a vector of codes; one, if it is only part of a group.
    match 8 * S::LANES / w.group_size {
        4 if S::LANES >= 16 => with_groups::<S, F, 4>(s, w, x, which, out, stride, scratch),
        2 if S::LANES >= 8 => with_groups::<S, F, 2>(s, w, x, which, out, stride, scratch),
        _ => with_groups::<S, F, 1>(s, w, x, which, out, stride, scratch),
    }
}

#[inline(always)]
fn with_groups<S: Simd, F: Float, const COUNT: usize>(
    s: S,
    w: NibbleRows<'_>,
    x: SplitRows<'_>,
    which: &[u32],
    out: &mut [f32],
    stride: usize,
    scratch: &mut Lines<f32>,
) {
    let groups = w.cols / w.group_size;
    let (code_bytes, group_bytes) = (w.cols / 2, groups * F::SIZE);
    let rows = w.codes.len() / code_bytes;
    assert!(fits(w.group_size) && w.cols == groups * w.group_size, "groups of affine codes");
    assert!(COUNT == (8 * S::LANES / w.group_size).max(1), "groups of a vector");
    assert!(w.codes.len() == rows * code_bytes, "affine codes");
    assert!(w.scales.len() == rows * group_bytes && w.biases.len() == rows * group_bytes, "affine groups");
    assert!(x.padded == SplitRows::padded(w.cols), "width of split rows");
    assert!(rows <= stride && out.len() >= which.len().saturating_sub(1) * stride + rows, "room for results");
    let width = groups.next_multiple_of(S::LANES);
    let sums = scratch.take(which.len() * width);
    for (sums, one) in sums.chunks_exact_mut(width).zip(which) {
        group_sums(x.sums(*one), w.group_size, groups, sums);
    }
    let multiplier = w.multiplier / FACTOR;
    let mut row = 0;
    while row < rows {
        let many = rows - row >= BLOCK;
        for (n, one) in which.iter().enumerate() {
            let (x, sums, out) = (x.row(*one), &sums[n * width..][..width], &mut out[n * stride + row..]);
            // The first row brings the next rows of weights nearer; the others find them.
            // SAFETY: the lengths were checked above; `x.row` has checked the row.
            unsafe {
                if many {
                    let sums = if n == 0 {
                        block::<S, F, COUNT, BLOCK, true>(s, &w, row, x, sums)
                    } else {
                        block::<S, F, COUNT, BLOCK, false>(s, &w, row, x, sums)
                    };
                    out[..BLOCK].copy_from_slice(&sums.map(|sum| sum * multiplier));
                } else {
                    out[0] = block::<S, F, COUNT, 1, false>(s, &w, row, x, sums)[0] * multiplier;
                }
            }
        }
        row += if many { BLOCK } else { 1 };
    }
}

/// `Σ x` of each group from those of sixteen elements; zeros after the last group.
#[inline(always)]
fn group_sums(sixteens: &[f32], group_size: usize, groups: usize, out: &mut [f32]) {
    let each = group_size / GROUP;
    let (sums, padding) = out.split_at_mut(groups);
    padding.fill(0.0);
    for (sum, sixteens) in sums.iter_mut().zip(sixteens.chunks_exact(each)) {
        *sum = 0.0;
        for pair in sixteens.chunks_exact(2) {
            *sum += pair[0] + pair[1];
        }
    }
}

/// Sums of `ROWS` rows from `row` on with one split row, times [`FACTOR`].
///
/// # Safety
/// The rows lie in `w`, whose parts have the lengths that `cols` and `group_size` say; `x` is a split row of as many
/// columns, `sums` has its groups' sums in whole vectors, and `COUNT` is the number of groups in a vector of codes.
#[inline(always)]
unsafe fn block<S: Simd, F: Float, const COUNT: usize, const ROWS: usize, const FIRST: bool>(
    s: S,
    w: &NibbleRows<'_>,
    row: usize,
    x: SplitRow,
    sums: &[f32],
) -> [f32; ROWS] {
    let (step, shift, padded) = (8 * S::LANES, w.group_size.trailing_zeros(), SplitRows::padded(w.cols));
    let groups = w.cols >> shift;
    let (code_bytes, group_bytes) = (w.cols / 2, groups * F::SIZE);
    let whole = w.cols / step;
    // SAFETY: row, step and group lie in the parts. Pointers are only made beyond them, to prefetch.
    unsafe {
        let codes = w.codes.as_ptr().add(row * code_bytes);
        let scales = w.scales.as_ptr().add(row * group_bytes);
        let biases = w.biases.as_ptr().add(row * group_bytes);
        let ahead = if FIRST { ahead(ROWS * code_bytes) } else { 0 };
        // As many rows of them: two codes a byte.
        let ahead_groups = ((2 * ahead) >> shift) * F::SIZE;
        let mut totals = biased::<S, F, ROWS>(s, scales, biases, groups, sums, ahead_groups);
        // One pointer a row each: more would not stay in registers.
        let (mut row_codes, mut row_scales) = ([codes; ROWS], [scales; ROWS]);
        for r in 0..ROWS {
            row_codes[r] = codes.add(r * code_bytes);
            row_scales[r] = scales.add(r * group_bytes);
        }
        let in_step = step >= w.group_size;
        for at in 0..whole {
            let planes = Planes::load(s, x, x.centres, padded, at);
            let group = if in_step { at * COUNT } else { (at * step) >> shift };
            for r in 0..ROWS {
                let codes = row_codes[r].add(at * step / 2);
                if FIRST {
                    s.prefetch(codes.wrapping_add(ahead));
                }
                let scales = F::spread::<S, COUNT>(s, row_scales[r].add(group * F::SIZE));
                totals[r] = planes.multiply(s, s.nibble_pairs(s.load_ints(codes)), scales, totals[r]);
            }
        }
        let done = whole * step;
        if done < w.cols {
            // What does not fill a vector, with zeros: their scales are zero too.
            let planes = Planes::load(s, x, x.centres, padded, whole);
            for (r, total) in totals.iter_mut().enumerate() {
                let (mut last_codes, mut last_scales) = ([0_u8; 64], [0_u8; 16]);
                let left = w.cols - done;
                let codes = codes.add(r * code_bytes + done / 2);
                let scales = scales.add(r * group_bytes + (done >> shift) * F::SIZE);
                std::ptr::copy_nonoverlapping(codes, last_codes.as_mut_ptr(), left / 2);
                std::ptr::copy_nonoverlapping(scales, last_scales.as_mut_ptr(), (left >> shift) * F::SIZE);
                let scales = F::spread::<S, COUNT>(s, last_scales.as_ptr());
                *total = planes.multiply(s, s.nibble_pairs(s.load_ints(last_codes.as_ptr())), scales, *total);
            }
        }
        s.sums(totals)
    }
}

/// `Σ (bias + 8 · scale) · Σ x` over the groups of `ROWS` rows, to be summed across. Asks for what lies `ahead` bytes on.
///
/// # Safety
/// `ROWS` rows of `groups` floats can be read at `scales` and at `biases`; `sums` has them in whole vectors.
#[inline(always)]
unsafe fn biased<S: Simd, F: Float, const ROWS: usize>(
    s: S,
    scales: *const u8,
    biases: *const u8,
    groups: usize,
    sums: &[f32],
    ahead: usize,
) -> [S::Floats; ROWS] {
    let (group_bytes, vector) = (groups * F::SIZE, S::LANES * F::SIZE);
    let centre = s.splat(CENTRE as f32);
    let mut totals = [s.zero(); ROWS];
    for at in (0..groups).step_by(S::LANES) {
        // SAFETY: as promised; what is left in the end is copied to where a whole vector can be read.
        unsafe {
            let x = s.load(sums.as_ptr().add(at));
            for (r, total) in totals.iter_mut().enumerate() {
                let offset = r * group_bytes + at * F::SIZE;
                let (mut scales, mut biases) = (scales.add(offset), biases.add(offset));
                if ahead > 0 && (at * F::SIZE).is_multiple_of(64) {
                    s.prefetch(scales.wrapping_add(ahead));
                    s.prefetch(biases.wrapping_add(ahead));
                }
                let (mut last_scales, mut last_biases) = ([0_u8; 64], [0_u8; 64]);
                if at + S::LANES > groups {
                    let left = (groups - at) * F::SIZE;
                    debug_assert!(left < vector);
                    std::ptr::copy_nonoverlapping(scales, last_scales.as_mut_ptr(), left);
                    std::ptr::copy_nonoverlapping(biases, last_biases.as_mut_ptr(), left);
                    (scales, biases) = (last_scales.as_ptr(), last_biases.as_ptr());
                }
                let weights = s.fma(F::load(s, scales), centre, F::load(s, biases));
                *total = s.fma(weights, x, *total);
            }
        }
    }
    totals
}

/// Rows of weights at a time: enough to use each load of the row's bytes often, few enough for the registers.
const BLOCK: usize = 4;
