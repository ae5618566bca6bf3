//! Products of two small matrices in f32, as attention needs them: scores, and sums of values.

use super::simd::Simd;

/// `out[r, c] = Σ_d a[r, d] · b[d, c]`, or that much more if `ADD`. `a` is rows of a stride with `depth` elements to use,
/// `b` rows of as many as `out` has columns, one after the other. Meanwhile it asks for what is to be read next, from
/// `ahead` on and as long as `b`, so that few rows take no longer than the memory.
///
/// # Safety
/// `a` has `rows` rows, `b` `depth` rows of `columns`, whole vectors, and `out` `rows` rows of them.
#[inline(always)]
pub(super) unsafe fn outer_product<S: Simd, const ADD: bool>(
    s: S,
    a: (&[f32], usize, usize),
    (b, columns): (&[f32], usize),
    out: (&mut [f32], usize),
    rows: usize,
    ahead: *const f32,
) {
    // SAFETY: as promised.
    unsafe {
        // Sums, a row of `b` and an element of `a` are what the registers hold: 32, or 16.
        if S::MOST_ROWS >= MOST_ROWS {
            product::<S, 4, ADD>(s, a, (b, columns), out, rows, ahead);
        } else {
            product::<S, 2, ADD>(s, a, (b, columns), out, rows, ahead);
        }
    }
}

/// As [`outer_product`], in blocks of `V` vectors of columns.
#[inline(always)]
unsafe fn product<S: Simd, const V: usize, const ADD: bool>(
    s: S,
    (a, a_stride, depth): (&[f32], usize, usize),
    (b, columns): (&[f32], usize),
    (out, out_stride): (&mut [f32], usize),
    rows: usize,
    ahead: *const f32,
) {
    let mut row = 0;
    while row < rows {
        let some = MOST_ROWS.min(rows - row);
        // Once is enough.
        let ahead = if row == 0 { ahead } else { b.as_ptr() };
        let mut column = 0;
        while column < columns {
            let wide = columns - column >= V * S::LANES;
            // SAFETY: the block lies in what the caller promises.
            unsafe {
                let a = a.as_ptr().add(row * a_stride);
                let b = b.as_ptr().add(column);
                let out = out.as_mut_ptr().add(row * out_stride + column);
                let ahead = ahead.wrapping_add(column);
                let block = Block { a, a_stride, depth, b, b_stride: columns, out, out_stride, ahead };
                match (some, wide) {
                    (1, true) => block.run::<S, 1, V, ADD>(s),
                    (2, true) => block.run::<S, 2, V, ADD>(s),
                    (3, true) => block.run::<S, 3, V, ADD>(s),
                    (4, true) => block.run::<S, 4, V, ADD>(s),
                    (5, true) => block.run::<S, 5, V, ADD>(s),
                    (_, true) => block.run::<S, MOST_ROWS, V, ADD>(s),
                    (_, false) => {
                        for n in 0..some {
                            let out = out.add(n * out_stride);
                            Block { a: a.add(n * a_stride), out, ..block }.run::<S, 1, 1, ADD>(s);
                        }
                    }
                }
            }
            column += if wide { V * S::LANES } else { S::LANES };
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
    /// What is asked for, with the stride of `b`; any address.
    ahead: *const f32,
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
                for n in (0..V * S::LANES).step_by(LINE) {
                    s.prefetch(self.ahead.wrapping_add(d * self.b_stride + n).cast());
                }
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

/// Rows of a block: the query heads of a group, in one go or two.
const MOST_ROWS: usize = 6;

/// Elements of a cache line.
const LINE: usize = 16;
