//! Products of two small matrices in f32, as attention needs them: scores, and sums of values.

use super::simd::Simd;

/// `out[r, c] = Σ_d a[r, d] · b[d, c]`, or that much more if `ADD`. `a` is rows of a stride with `depth` elements to use,
/// `b` rows of a stride with as many as `out` has columns.
///
/// # Safety
/// `a` has `rows` rows, `b` `depth` rows of `columns`, whole vectors, and `out` `rows` rows of them.
#[inline(always)]
pub(super) unsafe fn outer_product<S: Simd, const ADD: bool>(
    s: S,
    (a, a_stride, depth): (&[f32], usize, usize),
    (b, b_stride, columns): (&[f32], usize, usize),
    (out, out_stride): (&mut [f32], usize),
    rows: usize,
) {
    let mut row = 0;
    while row < rows {
        let some = S::MOST_ROWS.min(rows - row);
        let mut column = 0;
        while column < columns {
            let wide = columns - column >= WIDE * S::LANES;
            // SAFETY: the block lies in what the caller promises.
            unsafe {
                let a = a.as_ptr().add(row * a_stride);
                let b = b.as_ptr().add(column);
                let out = out.as_mut_ptr().add(row * out_stride + column);
                let block = Block { a, a_stride, depth, b, b_stride, out, out_stride };
                match (some, wide) {
                    (1, true) => block.run::<S, 1, WIDE, ADD>(s),
                    (2, true) => block.run::<S, 2, WIDE, ADD>(s),
                    (3, true) => block.run::<S, 3, WIDE, ADD>(s),
                    (4, true) if S::MOST_ROWS >= 4 => block.run::<S, 4, WIDE, ADD>(s),
                    (5, true) if S::MOST_ROWS >= 5 => block.run::<S, 5, WIDE, ADD>(s),
                    (_, true) => block.run::<S, 6, WIDE, ADD>(s),
                    (_, false) => {
                        for n in 0..some {
                            let out = out.add(n * out_stride);
                            Block { a: a.add(n * a_stride), out, ..block }.run::<S, 1, 1, ADD>(s);
                        }
                    }
                }
            }
            column += if wide { WIDE * S::LANES } else { S::LANES };
        }
        row += some;
    }
}

/// A few rows times a few vectors of columns.
#[derive(Clone, Copy)]
struct Block {
    a: *const f32,
    a_stride: usize,
    depth: usize,
    b: *const f32,
    b_stride: usize,
    out: *mut f32,
    out_stride: usize,
}

impl Block {
    /// # Safety
    /// `R` rows of `a` and `out`, `depth` rows of `b`, and `V` vectors in the rows of `b` and `out`.
    #[expect(clippy::needless_range_loop, reason = "indices unroll; iterators keep the sums in memory")]
    #[inline(always)]
    unsafe fn run<S: Simd, const R: usize, const V: usize, const ADD: bool>(self, s: S) {
        let mut sums = [[s.zero(); V]; R];
        // SAFETY: as promised.
        unsafe {
            for d in 0..self.depth {
                let mut b = [s.zero(); V];
                for v in 0..V {
                    b[v] = s.load(self.b.add(d * self.b_stride + v * S::LANES));
                }
                for r in 0..R {
                    let a = s.splat(*self.a.add(r * self.a_stride + d));
                    for v in 0..V {
                        sums[r][v] = s.fma(a, b[v], sums[r][v]);
                    }
                }
            }
            for r in 0..R {
                for v in 0..V {
                    let out = self.out.add(r * self.out_stride + v * S::LANES);
                    let sum = if ADD { s.fma(s.load(out), s.splat(1.0), sums[r][v]) } else { sums[r][v] };
                    s.store(out, sum);
                }
            }
        }
    }
}

/// Vectors of columns in a block: with [`Simd::MOST_ROWS`] rows all sums are in registers.
const WIDE: usize = 4;
