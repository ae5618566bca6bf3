//! Rows of activations as the kernels read them: f32, and split into bytes for products with codes of four bits.
//!
//! Split, sixteen elements x share the scale s = largest |x| / 8,355,000, and each is an integer q = round(x / s) of 24
//! bits, taken apart into three signed bytes: q = (high · 256 + middle) · 256 + low. The integers' products with E2M1
//! weights or affine codes are exact, so what is lost is half a unit of the last of 24 bits of the sixteen's largest, as
//! in f32 itself.
//! A group whose largest is below 2⁻¹⁰⁰ counts as zero; one with a NaN or an infinity has the scale NaN.

use std::ops::Range;

use super::lines::Lines;
use super::simd::{Simd, for_isa};

/// Elements that kernels read of a row of `cols`: whole vectors of any instruction set. What is beyond `cols` is zero.
pub(super) const fn width(cols: usize) -> usize {
    cols.next_multiple_of(WIDEST)
}

/// Elements from one row to the next, for rows of `cols`.
///
/// Rows of a power of two, or nearly, would all lie in the same few sets of the first-level cache; with this distance
/// neighbours spread over all of them.
pub(super) const fn stride(cols: usize) -> usize {
    let lines = cols.div_ceil(WIDEST);
    WIDEST * (lines + (SETS + SPREAD - lines % SETS) % SETS)
}

/// `[rows, stride]`, f32.
#[derive(Clone, Copy, Debug)]
pub(super) struct FloatRows<'a> {
    pub(super) values: &'a [f32],
    pub(super) cols: usize,
}

impl<'a> FloatRows<'a> {
    /// `[width]`.
    #[inline(always)]
    pub(super) fn row(&self, row: u32) -> &'a [f32] {
        &self.values[row as usize * stride(self.cols)..][..width(self.cols)]
    }
}

/// Rows split into bytes. A row's bytes are `PARTS` planes, least significant first, each of its even elements and then
/// of its odd ones; `padded / 2` bytes both.
#[derive(Clone, Copy, Debug)]
pub(super) struct SplitRows<'a> {
    bytes: &'a [i8],
    /// `-OFFSET · Σ q` of eight elements each.
    corrections: &'a [i32],
    /// `-CENTRE · Σ q` of eight elements each.
    centres: &'a [i32],
    /// Scale of eight elements each, times [`FACTOR`].
    scales: &'a [f32],
    /// `Σ x` of sixteen elements each, times [`FACTOR`].
    sums: &'a [f32],
    /// Elements per row, zeros at the end included.
    pub(super) padded: usize,
}

/// Memory for [`SplitRows`].
#[derive(Debug, Default)]
pub(super) struct SplitBuffer {
    bytes: Lines<i8>,
    corrections: Lines<i32>,
    centres: Lines<i32>,
    scales: Lines<f32>,
    sums: Lines<f32>,
}

/// One row of [`SplitRows`].
#[derive(Clone, Copy)]
pub(super) struct SplitRow {
    pub(super) bytes: *const i8,
    pub(super) corrections: *const i32,
    pub(super) centres: *const i32,
    pub(super) scales: *const f32,
}

impl<'a> SplitRows<'a> {
    /// Elements per row in memory for rows of `cols`.
    pub(super) const fn padded(cols: usize) -> usize {
        cols.next_multiple_of(8 * WIDEST)
    }

    #[inline(always)]
    pub(super) fn row(&self, row: u32) -> SplitRow {
        let (row, width) = (row as usize, self.padded);
        SplitRow {
            bytes: self.bytes[row * width * PARTS..][..width * PARTS].as_ptr(),
            corrections: self.corrections[row * width / 8..][..width / 8].as_ptr(),
            centres: self.centres[row * width / 8..][..width / 8].as_ptr(),
            scales: self.scales[row * width / 8..][..width / 8].as_ptr(),
        }
    }

    /// `Σ x` of each sixteen elements of a row, times [`FACTOR`]: `[padded / 16]`.
    pub(super) fn sums(&self, row: u32) -> &'a [f32] {
        let width = self.padded / GROUP;
        &self.sums[row as usize * width..][..width]
    }
}

impl SplitBuffer {
    /// Memory for `rows` rows of `cols` elements, whatever it held before.
    pub(super) fn take(&mut self, rows: usize, cols: usize) -> SplitTarget {
        let padded = SplitRows::padded(cols);
        SplitTarget {
            bytes: self.bytes.take(rows * padded * PARTS).as_mut_ptr(),
            corrections: self.corrections.take(rows * padded / 8).as_mut_ptr(),
            centres: self.centres.take(rows * padded / 8).as_mut_ptr(),
            scales: self.scales.take(rows * padded / 8).as_mut_ptr(),
            sums: self.sums.take(rows * padded / GROUP).as_mut_ptr(),
            rows,
            cols,
            padded,
        }
    }

    /// What was written to what [`SplitBuffer::take`] gave.
    pub(super) fn rows(&self, cols: usize) -> SplitRows<'_> {
        SplitRows {
            bytes: self.bytes.all(),
            corrections: self.corrections.all(),
            centres: self.centres.all(),
            scales: self.scales.all(),
            sums: self.sums.all(),
            padded: SplitRows::padded(cols),
        }
    }
}

/// Rows to be split, by several threads.
#[derive(Clone, Copy, Debug)]
pub(super) struct SplitTarget {
    bytes: *mut i8,
    corrections: *mut i32,
    centres: *mut i32,
    scales: *mut f32,
    sums: *mut f32,
    rows: usize,
    cols: usize,
    padded: usize,
}

// SAFETY: threads write disjoint parts, as `write` demands.
unsafe impl Send for SplitTarget {}
// SAFETY: as above.
unsafe impl Sync for SplitTarget {}

impl SplitTarget {
    /// Splits columns `cols` of one row, given as `x`. Columns begin at a multiple of sixteen, and end at one or at the
    /// end of the row; with the end, what pads the row is written too.
    ///
    /// # Safety
    /// The buffer is alive and not read, and no other thread writes these columns of this row.
    pub(super) unsafe fn write(&self, isa: super::Isa, row: u32, cols: Range<usize>, x: &[f32]) {
        assert!(
            (row as usize) < self.rows && cols.end <= self.cols && x.len() == cols.len(),
            "part of a row"
        );
        assert!(cols.start.is_multiple_of(GROUP), "begin of a group");
        let end = if cols.end == self.cols { self.padded } else { cols.end };
        assert!(end.is_multiple_of(GROUP), "end of a group");
        split(isa, self, row as usize, cols.start..end, x);
    }
}

for_isa! {
    fn split(target: &SplitTarget, row: usize, cols: Range<usize>, x: &[f32]) = split_with
}

#[inline(always)]
fn split_with<S: Simd>(s: S, target: &SplitTarget, row: usize, cols: Range<usize>, x: &[f32]) {
    let half = target.padded / 2;
    for (group, at) in cols.step_by(GROUP).enumerate() {
        let mut sixteen = [0.0_f32; GROUP];
        match x.get(group * GROUP..).and_then(|rest| rest.first_chunk()) {
            Some(whole) => sixteen = *whole,
            // The row's end, and what pads it.
            None => {
                let rest = x.get(group * GROUP..).unwrap_or_default();
                sixteen[..rest.len()].copy_from_slice(rest);
            }
        }
        let largest = s.largest(&sixteen);
        let (inverse, scale) = match largest.to_bits() {
            NOT_FINITE.. => {
                sixteen = [0.0; GROUP];
                (0.0, f32::NAN)
            }
            SMALLEST.. => (LARGEST / largest, largest / LARGEST * FACTOR),
            _ => (0.0, 0.0),
        };
        // SAFETY: finite, and with a largest of LARGEST but for a rounding.
        let (planes, sums) = unsafe { s.split(&sixteen, inverse) };
        // SAFETY: `write` has checked that row and columns lie in the buffer, and its caller that they are ours.
        unsafe {
            let bytes = target.bytes.add(row * target.padded * PARTS + at / 2);
            for (n, plane) in planes.iter().flatten().enumerate() {
                bytes.add(n * half).cast::<[u8; GROUP / 2]>().write_unaligned(*plane);
            }
            let eights = (row * target.padded + at) / 8;
            target
                .corrections
                .add(eights)
                .cast::<[i32; 2]>()
                .write_unaligned([-S::OFFSET * sums[0], -S::OFFSET * sums[1]]);
            target
                .centres
                .add(eights)
                .cast::<[i32; 2]>()
                .write_unaligned([-CENTRE * sums[0], -CENTRE * sums[1]]);
            target.scales.add(eights).cast::<[f32; 2]>().write_unaligned([scale; 2]);
            target.sums.add(eights / 2).write((sums[0] + sums[1]) as f32 * scale);
        }
    }
}

/// Bytes of an integer.
pub(super) const PARTS: usize = 3;

/// Elements that share a scale.
pub(super) const GROUP: usize = 16;

/// In scales and sums: half of NVFP4's doubled weights, and 2⁸ of its scales' f16. A power of two, so that it can be
/// divided out exactly.
pub(super) const FACTOR: f32 = 128.0;

/// The middle of affine codes of four bits. Less by this they are small on either side of zero, and their products with
/// rows that are mostly of one sign do not grow to be taken off again by the biases'.
pub(super) const CENTRE: i32 = 8;

/// f32 in the widest vector.
const WIDEST: usize = 16;

/// Just below (127 · 256 + 127) · 256 + 127, the largest that three signed bytes make: the quotient may round up.
const LARGEST: f32 = 8_355_000.0;

/// Bits of 2⁻¹⁰⁰: below it the inverse would be near infinity.
const SMALLEST: u32 = (127 - 100) << 23;

/// Bits of infinity; NaNs are above.
const NOT_FINITE: u32 = 0x7f80_0000;

/// Sets of a first-level cache of 32 or 48 KB; in lines of 64 bytes, the width of [`WIDEST`].
const SETS: usize = 64;

/// Any odd number near a sixth of the sets: six rows then begin all over the cache.
const SPREAD: usize = 11;
