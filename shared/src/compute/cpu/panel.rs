//! Any weights times many rows: some rows of weights are decoded to f32 and stay near while all rows pass.
//!
//! Vectors run along the columns, so that nothing has to be transposed: a tile is [`TILE`] rows of weights and a few of
//! activations, one vector of sums for each pair, added up across at the end. A pair's sum is made in the same order
//! whatever else is in the tile.

use std::ops::Range;

use super::decode::decode;
use super::matrix::MatrixView;
use super::pool::Work;
use super::rows::{FloatRows, stride as stride_of, width as width_of};
use super::simd::{Simd, for_isa};

for_isa! {
    /// `out[n, r] = x[which[n]] · w[rows.start + r]`; `out` has `stride` elements from one n to the next.
    fn multiply(
        matrix: &MatrixView<'_>,
        rows: Range<usize>,
        x: FloatRows<'_>,
        which: &[u32],
        out: &mut [f32],
        stride: usize,
        work: &mut Work,
    ) = multiply_with
}

#[allow(clippy::too_many_arguments)]
#[inline(always)]
fn multiply_with<S: Simd>(
    s: S,
    matrix: &MatrixView<'_>,
    rows: Range<usize>,
    x: FloatRows<'_>,
    which: &[u32],
    out: &mut [f32],
    stride: usize,
    work: &mut Work,
) {
    let (width, row_stride, count) = (width_of(matrix.cols), stride_of(matrix.cols), rows.len());
    assert!(x.cols == matrix.cols, "width of float rows");
    assert!(
        count <= stride && out.len() >= which.len().saturating_sub(1) * stride + count,
        "room for results"
    );
    let panel = work.panel.take(PANEL * row_stride);
    for first in (0..count).step_by(PANEL) {
        let held = PANEL.min(count - first);
        let decoded = rows.start + first..rows.start + first + held;
        decode(s, matrix, decoded, &mut panel[..held * row_stride]);
        // Rows of a tile that the matrix does not have: finite, and nobody looks at their sums.
        panel[held * row_stride..held.next_multiple_of(TILE) * row_stride].fill(0.0);
        for (chunk, which) in which.chunks(CHUNK).enumerate() {
            let blocks = Blocks::of(which.len(), S::MOST_ROWS);
            let sums = work.sums.take(which.len() * PANEL * S::LANES);
            for from in (0..width).step_by(STRIP) {
                let strip = from..width.min(from + STRIP);
                for block in blocks.clone() {
                    let which = &which[block.clone()];
                    for tile in (0..held).step_by(TILE) {
                        let weights = &panel[tile * row_stride..][..TILE * row_stride];
                        // The sums of a block: tile after tile, in each TILE vectors for each row.
                        let at = (block.start * PANEL + tile * block.len()) * S::LANES;
                        let sums = &mut sums[at..][..TILE * block.len() * S::LANES];
                        tile_of_any(s, weights, x, which, strip.clone(), sums);
                    }
                }
            }
            for block in blocks {
                for tile in (0..held).step_by(TILE) {
                    for (n, row) in block.clone().enumerate() {
                        let at = (block.start * PANEL + tile * block.len() + n * TILE) * S::LANES;
                        let sums = &sums[at..][..TILE * S::LANES];
                        let mut vectors = [s.zero(); TILE];
                        for r in 0..TILE {
                            // SAFETY: whole vectors of `sums`.
                            vectors[r] = unsafe { s.load(sums[r * S::LANES..].as_ptr()) };
                        }
                        let sums = s.sums(vectors);
                        let out = &mut out[(chunk * CHUNK + row) * stride + first + tile..];
                        for (out, sum) in out.iter_mut().zip(&sums[..TILE.min(held - tile)]) {
                            *out = sum * matrix.multiplier;
                        }
                    }
                }
            }
        }
    }
}

/// `count` rows in blocks of nearly the same size, none above `most`.
#[derive(Clone)]
struct Blocks {
    at: usize,
    count: usize,
    left: usize,
}

impl Blocks {
    #[inline(always)]
    fn of(count: usize, most: usize) -> Self {
        Self { at: 0, count, left: count.div_ceil(most) }
    }
}

impl Iterator for Blocks {
    type Item = Range<usize>;

    #[inline(always)]
    fn next(&mut self) -> Option<Range<usize>> {
        if self.left == 0 {
            return None;
        }
        let len = (self.count - self.at).div_ceil(self.left);
        self.left -= 1;
        self.at += len;
        Some(self.at - len..self.at)
    }
}

#[inline(always)]
fn tile_of_any<S: Simd>(
    s: S,
    weights: &[f32],
    x: FloatRows<'_>,
    which: &[u32],
    strip: Range<usize>,
    sums: &mut [f32],
) {
    match which.len() {
        1 => tile::<S, 1>(s, weights, x, which, strip, sums),
        2 => tile::<S, 2>(s, weights, x, which, strip, sums),
        3 if S::MOST_ROWS >= 3 => tile::<S, 3>(s, weights, x, which, strip, sums),
        4 if S::MOST_ROWS >= 4 => tile::<S, 4>(s, weights, x, which, strip, sums),
        5 if S::MOST_ROWS >= 5 => tile::<S, 5>(s, weights, x, which, strip, sums),
        6 if S::MOST_ROWS >= 6 => tile::<S, 6>(s, weights, x, which, strip, sums),
        other => unreachable!("a block of {other} rows"),
    }
}

/// Adds a strip of columns to the sums of `TILE` rows of weights with `ROWS` rows: `[ROWS, TILE]` vectors.
#[expect(clippy::needless_range_loop, reason = "indices unroll; iterators keep the sums in memory")]
#[inline(always)]
fn tile<S: Simd, const ROWS: usize>(
    s: S,
    weights: &[f32],
    x: FloatRows<'_>,
    which: &[u32],
    strip: Range<usize>,
    sums: &mut [f32],
) {
    let stride = stride_of(x.cols);
    assert!(weights.len() == TILE * stride && which.len() == ROWS, "a tile");
    assert!(strip.end <= width_of(x.cols) && sums.len() == ROWS * TILE * S::LANES, "a tile's sums");
    let mut xs = [std::ptr::null(); ROWS];
    for (xs, row) in xs.iter_mut().zip(which) {
        *xs = x.row(*row).as_ptr();
    }
    let mut held = [[s.zero(); TILE]; ROWS];
    // SAFETY: the lengths were checked; a strip is whole vectors, since STRIP and the width are.
    unsafe {
        if strip.start > 0 {
            for n in 0..ROWS {
                for r in 0..TILE {
                    held[n][r] = s.load(sums.as_ptr().add((n * TILE + r) * S::LANES));
                }
            }
        }
        let mut at = strip.start;
        while at < strip.end {
            let mut x = [s.zero(); ROWS];
            for n in 0..ROWS {
                x[n] = s.load(xs[n].add(at));
            }
            for r in 0..TILE {
                let w = s.load(weights.as_ptr().add(r * stride + at));
                for n in 0..ROWS {
                    held[n][r] = s.fma(w, x[n], held[n][r]);
                }
            }
            at += S::LANES;
        }
        for n in 0..ROWS {
            for r in 0..TILE {
                s.store(sums.as_mut_ptr().add((n * TILE + r) * S::LANES), held[n][r]);
            }
        }
    }
}

/// Rows of weights in a tile.
pub(super) const TILE: usize = 4;

/// Rows of weights decoded at a time: they stay in the second-level cache.
const PANEL: usize = 16;

/// Columns at a time: a tile's part of weights and activations stays in the first-level cache.
const STRIP: usize = 512;

/// Rows of activations at a time: bounds the memory for sums.
const CHUNK: usize = 96;
