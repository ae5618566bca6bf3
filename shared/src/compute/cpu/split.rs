//! NVFP4 weights times a few rows, in integers: see [`super::rows`] for how rows are split. [`super::nibbles`] is the
//! same for affine codes.
//!
//! A vector of codes is looked up once (twice the weight, and plus 12 where the instruction wants one unsigned side)
//! and multiplied with each byte plane; the planes' sums are put together as integers, exactly, and scaled by row and
//! weights in f32, one vector at a time. Doubling, 2⁻⁸ of the scales' f16, and 12 · Σ q are in the rows' scales and
//! corrections.

use super::ahead::ahead;
use super::rows::{PARTS, SplitRow, SplitRows};
use super::simd::{Simd, for_isa};

/// Consecutive rows of an NVFP4 matrix whose scales are all from 0 to 0x7e.
#[derive(Clone, Copy, Debug)]
pub(super) struct CodeRows<'a> {
    /// A multiple of sixteen.
    pub(super) cols: usize,
    /// `[rows, cols / 2]`.
    pub(super) codes: &'a [u8],
    /// `[rows, cols / 16]`.
    pub(super) scales: &'a [u8],
    /// On every weight.
    pub(super) multiplier: f32,
}

for_isa! {
    /// `out[n, r] = x[which[n]] · w[r]`; `out` has `stride` elements from one n to the next.
    fn multiply(w: CodeRows<'_>, x: SplitRows<'_>, which: &[u32], out: &mut [f32], stride: usize) = multiply_with
}

#[inline(always)]
fn multiply_with<S: Simd>(
    s: S,
    w: CodeRows<'_>,
    x: SplitRows<'_>,
    which: &[u32],
    out: &mut [f32],
    stride: usize,
) {
    let rows = w.scales.len() / (w.cols / 16);
    assert!(w.cols.is_multiple_of(16) && w.scales.len() == rows * w.cols / 16, "scales of NVFP4 rows");
    assert!(w.codes.len() == rows * w.cols / 2, "codes of NVFP4 rows");
    assert!(x.padded == SplitRows::padded(w.cols), "width of split rows");
    assert!(rows <= stride && out.len() >= which.len().saturating_sub(1) * stride + rows, "room for results");
    let mut row = 0;
    while row < rows {
        let many = rows - row >= BLOCK;
        for (n, one) in which.iter().enumerate() {
            let (one, out) = (x.row(*one), &mut out[n * stride + row..]);
            // The first row brings the next rows of weights nearer; the others find them.
            // SAFETY: the lengths were checked above; `x.row` has checked the row.
            unsafe {
                if many {
                    let sums = if n == 0 {
                        block::<S, BLOCK, true>(s, &w, row, one, x.padded)
                    } else {
                        block::<S, BLOCK, false>(s, &w, row, one, x.padded)
                    };
                    out[..BLOCK].copy_from_slice(&sums.map(|sum| sum * w.multiplier));
                } else {
                    out[0] = block::<S, 1, false>(s, &w, row, one, x.padded)[0] * w.multiplier;
                }
            }
        }
        row += if many { BLOCK } else { 1 };
    }
}

/// Sums of `ROWS` rows from `row` on with one split row.
///
/// # Safety
/// The rows lie in `w`, whose parts have the lengths that `cols` says; `x` is a row of `padded` elements.
#[inline(always)]
unsafe fn block<S: Simd, const ROWS: usize, const FIRST: bool>(
    s: S,
    w: &CodeRows<'_>,
    row: usize,
    x: SplitRow,
    padded: usize,
) -> [f32; ROWS] {
    let step = 8 * S::LANES;
    let (code_bytes, scale_bytes) = (w.cols / 2, w.cols / 16);
    let (whole, ahead) = (w.cols / step, ahead(ROWS * code_bytes));
    let mut sums = [s.zero(); ROWS];
    // SAFETY: row and step lie in the parts. Pointers are only made beyond them, to prefetch.
    unsafe {
        let codes = w.codes.as_ptr().add(row * code_bytes);
        let scales = w.scales.as_ptr().add(row * scale_bytes);
        // One pointer a row each: more would not stay in registers.
        let (mut row_codes, mut row_scales) = ([codes; ROWS], [scales; ROWS]);
        for r in 0..ROWS {
            row_codes[r] = codes.add(r * code_bytes);
            row_scales[r] = scales.add(r * scale_bytes);
        }
        for at in 0..whole {
            let planes = Planes::load(s, x, x.corrections, padded, at);
            for r in 0..ROWS {
                let codes = row_codes[r].add(at * step / 2);
                let scales = row_scales[r].add(at * step / 16);
                if FIRST {
                    s.prefetch(codes.wrapping_add(ahead));
                    if at % 8 == 0 {
                        s.prefetch(scales.wrapping_add(ahead / 8));
                    }
                }
                sums[r] = planes.multiply(s, s.e2m1(s.load_ints(codes)), s.e4m3_pairs(scales), sums[r]);
            }
        }
        let done = whole * step;
        if done < w.cols {
            // What does not fill a vector, with zeros: their scales are zero too.
            let planes = Planes::load(s, x, x.corrections, padded, whole);
            for (r, sum) in sums.iter_mut().enumerate() {
                let (mut last_codes, mut last_scales) = ([0_u8; 64], [0_u8; 8]);
                let left = (w.cols - done) / 16;
                let codes = codes.add(r * code_bytes + done / 2);
                let scales = scales.add(r * scale_bytes + done / 16);
                std::ptr::copy_nonoverlapping(codes, last_codes.as_mut_ptr(), left * 8);
                std::ptr::copy_nonoverlapping(scales, last_scales.as_mut_ptr(), left);
                let weights = s.e2m1(s.load_ints(last_codes.as_ptr()));
                *sum = planes.multiply(s, weights, s.e4m3_pairs(last_scales.as_ptr()), *sum);
            }
        }
    }
    s.sums(sums)
}

/// What a step needs of a split row.
pub(super) struct Planes<S: Simd> {
    even: [S::Ints; PARTS],
    odd: [S::Ints; PARTS],
    correction: S::Ints,
    scale: S::Floats,
}

impl<S: Simd> Planes<S> {
    /// # Safety
    /// `x` has `padded` elements, and more than `at` steps; `corrections` are its own, for the weights to come.
    #[inline(always)]
    pub(super) unsafe fn load(s: S, x: SplitRow, corrections: *const i32, padded: usize, at: usize) -> Self {
        let bytes = 4 * S::LANES;
        // SAFETY: as promised.
        unsafe {
            let (mut even, mut odd) = ([s.zero_ints(); PARTS], [s.zero_ints(); PARTS]);
            for part in 0..PARTS {
                let plane = x.bytes.add(part * padded + at * bytes);
                even[part] = s.load_ints(plane.cast());
                odd[part] = s.load_ints(plane.add(padded / 2).cast());
            }
            let correction = s.load_ints(corrections.add(at * S::LANES).cast());
            Self { even, odd, correction, scale: s.load(x.scales.add(at * S::LANES)) }
        }
    }

    /// `sum` plus the products with weights, small integers of even elements and of odd ones, times their scales.
    #[inline(always)]
    pub(super) fn multiply(
        &self,
        s: S,
        weights: (S::Ints, S::Ints),
        scales: S::Floats,
        sum: S::Floats,
    ) -> S::Floats {
        let mut total = s.zero_ints();
        for part in (1..PARTS).rev() {
            let dot = s.dot8(s.zero_ints(), weights, self.even[part], self.odd[part]);
            total = if part == PARTS - 1 { dot } else { s.shift_add(total, dot) };
        }
        let lowest = s.dot8(self.correction, weights, self.even[0], self.odd[0]);
        let exact = s.shift_add(total, lowest);
        s.fma(s.to_floats(exact), s.mul(self.scale, scales), sum)
    }
}

/// Rows of weights at a time: enough to use each load of the row's bytes often, few enough for the registers.
const BLOCK: usize = 4;
