//! Attention of some queries over cached keys and values: a block of keys at a time, with a running maximum, so that
//! the memory it takes does not grow with the context (arXiv 1805.02867, 2205.14135).
//!
//! A task is one key-value head with a few tokens: the query heads that share it go over its keys together. Each block
//! of keys is transposed once, scores and sums are outer products, and all numbers are f32. How much is done at a time
//! never depends on the number of threads, so neither do the bits of a result.

use std::ops::Range;

use super::Isa;
use super::lines::Lines;
use super::matrix::SharedSlice;
use super::pool::{Pool, Scratch};
use super::simd::{Simd, for_isa};

/// Queries of consecutive tokens, and what they look at.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// Rotated, a row a token. As many heads as keys have, or a multiple, whose groups follow each other.
    pub queries: Heads<'a>,
    /// What the queries are multiplied with: 1 / √head_dim.
    pub scale: f32,
    /// Rotated.
    pub keys: Heads<'a>,
    /// As many as keys. One that is not finite spoils every query of its block of keys, also those that do not see it.
    pub values: Heads<'a>,
    /// Which keys a query sees.
    pub visible: Visible,
    /// A logit for each head that takes part in the softmax and has no value.
    pub sinks: Option<&'a [f32]>,
}

/// Rows of each head, `[heads, rows, head_dim]`, however they lie: one head after the other, or one row.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a> {
    values: &'a [f32],
    heads: usize,
    rows: usize,
    head_dim: usize,
    /// Elements from one head to the next.
    head_stride: usize,
    /// Elements from one row of a head to its next.
    row_stride: usize,
}

/// Which keys a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visible {
    /// All of them.
    All,
    /// Those up to its own position; the last query has the last key's.
    Causal,
    /// As `Causal`, and of those the last so many, its own included.
    Window(usize),
}

impl<'a> Heads<'a> {
    /// `[heads, rows, head_dim]` with strides of `[head, row, 1]`; `None` if there is nothing, or `values` ends before it.
    pub fn new(values: &'a [f32], shape: [usize; 3], [head_stride, row_stride]: [usize; 2]) -> Option<Self> {
        let [heads, rows, head_dim] = shape;
        let last_head = heads.checked_sub(1)?.checked_mul(head_stride)?;
        let last_row = rows.checked_sub(1)?.checked_mul(row_stride)?;
        let whole = last_head.checked_add(last_row)?.checked_add(head_dim)?;
        (head_dim > 0 && values.len() >= whole).then_some(Self {
            values,
            heads,
            rows,
            head_dim,
            head_stride,
            row_stride,
        })
    }

    /// A head's rows in a range, which is not empty: from the first one's first element to the last one's last.
    #[inline(always)]
    fn part(&self, head: usize, rows: Range<usize>) -> &'a [f32] {
        let (first, last) = (rows.start * self.row_stride, (rows.end - 1) * self.row_stride);
        &self.values[head * self.head_stride..][first..last + self.head_dim]
    }
}

impl Visible {
    /// Keys that query `query` of `queries` sees of `keys`.
    fn range(self, query: usize, queries: usize, keys: usize) -> Range<usize> {
        // Its own key, plus one.
        let end = keys - queries + query + 1;
        match self {
            Self::All => 0..keys,
            Self::Causal => 0..end,
            Self::Window(window) => end.saturating_sub(window)..end,
        }
    }
}

impl Attention<'_> {
    /// Whether heads of that size can be computed here: whole vectors of any instruction set.
    pub const fn fits(head_dim: usize) -> bool {
        head_dim > 0 && head_dim.is_multiple_of(16)
    }

    /// Writes `[tokens, heads, head_dim]` to `out`.
    ///
    /// # Panics
    /// If the lengths do not belong together, or [`fits`](Self::fits) is false.
    pub fn run(&self, isa: Isa, pool: &Pool, out: &mut [f32]) {
        let Heads { heads: kv_heads, head_dim, rows: keys, .. } = self.keys;
        let Heads { heads, rows: tokens, .. } = self.queries;
        assert!(Self::fits(head_dim) && self.queries.head_dim == head_dim, "heads of {head_dim}");
        assert!(heads.is_multiple_of(kv_heads), "{heads} heads over {kv_heads}");
        let row = heads * head_dim;
        assert!(out.len() == tokens * row, "room for {tokens} tokens");
        assert!(tokens <= keys, "{tokens} queries over {keys} keys");
        let values = self.values;
        assert!(
            (values.heads, values.rows, values.head_dim) == (kv_heads, keys, head_dim),
            "a value for each key"
        );
        assert!(self.sinks.is_none_or(|sinks| sinks.len() == heads), "a sink for each head");
        let group = heads / kv_heads;
        let held = (ROWS / group).max(1);
        let blocks = tokens.div_ceil(held);
        let out = SharedSlice::new(out);
        pool.run(blocks * kv_heads, &|task, scratch| {
            // The last tokens see most, and begin first.
            let (block, kv_head) = (blocks - 1 - task / kv_heads, task % kv_heads);
            let tokens = block * held..tokens.min((block + 1) * held);
            let task = Task { attention: self, kv_head, group, tokens: tokens.clone() };
            let Scratch { left, .. } = scratch;
            let sums = run_task(isa, &task, left);
            for (token, sums) in tokens.zip(sums.chunks_exact(group * head_dim)) {
                let from = token * row + kv_head * group * head_dim;
                // SAFETY: each task has tokens or heads of its own.
                unsafe { out.part(from..from + sums.len()) }.copy_from_slice(sums);
            }
        });
    }
}

/// The query heads of one key-value head, for some tokens.
pub(super) struct Task<'a> {
    attention: &'a Attention<'a>,
    kv_head: usize,
    group: usize,
    tokens: Range<usize>,
}

/// A task's working memory, one after the other; rows are `[tokens, group]`.
pub(super) struct Memory<'a> {
    /// `[rows, head_dim]`, scaled.
    queries: &'a mut [f32],
    /// `[rows, head_dim]`: sums of values, each weighted by exp(score - maximum).
    sums: &'a mut [f32],
    /// `[head_dim, KEYS]`.
    keys: &'a mut [f32],
    /// `[rows, KEYS]`: scores, then weights.
    scores: &'a mut [f32],
    /// `[rows]`: largest score so far.
    largest: &'a mut [f32],
    /// `[rows]`: sum of weights so far.
    weights: &'a mut [f32],
}

/// Runs a task; the result, `[tokens, group, head_dim]`, lies at the beginning of `memory`.
fn run_task<'m>(isa: Isa, task: &Task<'_>, memory: &'m mut Lines<f32>) -> &'m [f32] {
    let rows = task.tokens.len() * task.group;
    let head_dim = task.attention.keys.head_dim;
    let whole = memory.take(rows * (2 * head_dim + KEYS + 2) + head_dim * KEYS);
    let (sums, rest) = whole.split_at_mut(rows * head_dim);
    let (queries, rest) = rest.split_at_mut(rows * head_dim);
    let (keys, rest) = rest.split_at_mut(head_dim * KEYS);
    let (scores, rest) = rest.split_at_mut(rows * KEYS);
    let (largest, weights) = rest.split_at_mut(rows);
    blocks(isa, task, Memory { queries, sums, keys, scores, largest, weights });
    &memory.take(rows * head_dim)[..]
}

for_isa! {
    /// All blocks of keys that a task's tokens see.
    fn blocks(task: &Task<'_>, memory: Memory<'_>) = blocks_with
}

#[inline(always)]
fn blocks_with<S: Simd>(s: S, task: &Task<'_>, memory: Memory<'_>) {
    let Attention { queries, keys, values, visible, .. } = *task.attention;
    let (head_dim, group) = (keys.head_dim, task.group);
    let tokens = queries.rows;
    let rows = task.tokens.len() * group;
    let first_head = task.kv_head * group;
    for (n, token) in task.tokens.clone().enumerate() {
        for head in 0..group {
            let to = &mut memory.queries[(n * group + head) * head_dim..][..head_dim];
            for (to, from) in to.iter_mut().zip(queries.part(first_head + head, token..token + 1)) {
                *to = from * task.attention.scale;
            }
        }
        let sinks = task.attention.sinks.map(|sinks| &sinks[first_head..first_head + group]);
        for head in 0..group {
            // A sink weighs exp(sink - sink) = 1 so far.
            memory.largest[n * group + head] = sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[head]);
            memory.weights[n * group + head] = if sinks.is_some() { 1.0 } else { 0.0 };
        }
    }
    memory.sums.fill(0.0);
    let seen = |token: usize| visible.range(token, tokens, keys.rows);
    let (begin, end) = (seen(task.tokens.start).start, seen(task.tokens.end - 1).end);
    let mut at = begin - begin % KEYS;
    while at < end {
        let held = at..end.min(at + KEYS);
        transpose(s, keys.part(task.kv_head, held.clone()), keys.row_stride, held.len(), memory.keys);
        // SAFETY: rows of queries and of scores, and `head_dim` rows of KEYS keys.
        unsafe {
            outer_product::<S, false>(
                s,
                (memory.queries, head_dim, head_dim),
                (memory.keys, KEYS, KEYS),
                (memory.scores, KEYS),
                rows,
            );
        }
        for (n, token) in task.tokens.clone().enumerate() {
            let seen = seen(token);
            let seen = seen.start.clamp(at, held.end) - at..seen.end.clamp(at, held.end) - at;
            for row in n * group..(n + 1) * group {
                let scores = &mut memory.scores[row * KEYS..][..KEYS];
                let sums = &mut memory.sums[row * head_dim..][..head_dim];
                weigh(s, scores, seen.clone(), sums, &mut memory.largest[row], &mut memory.weights[row]);
            }
        }
        let row_stride = values.row_stride;
        let values = values.part(task.kv_head, held.clone());
        // SAFETY: rows of weights and of sums, and a row of values for each key that there is.
        unsafe {
            outer_product::<S, true>(
                s,
                (memory.scores, KEYS, held.len()),
                (values, row_stride, head_dim),
                (memory.sums, head_dim),
                rows,
            );
        }
        at += KEYS;
    }
    for (sums, weight) in memory.sums.chunks_exact_mut(head_dim).zip(&*memory.weights) {
        for sum in sums {
            *sum /= weight;
        }
    }
}

/// Scores of a row to weights exp(score - largest); zero where the row does not see the key. What was summed before is
/// brought to the new largest score.
#[inline(always)]
fn weigh<S: Simd>(
    s: S,
    scores: &mut [f32],
    seen: Range<usize>,
    sums: &mut [f32],
    largest: &mut f32,
    weights: &mut f32,
) {
    if seen.is_empty() {
        scores.fill(0.0);
        return;
    }
    scores[..seen.start].fill(f32::NEG_INFINITY);
    scores[seen.end..].fill(f32::NEG_INFINITY);
    let vectors = scores.len() / S::LANES;
    // SAFETY: whole vectors of scores and of sums.
    unsafe {
        let mut most = s.splat(*largest);
        for n in 0..vectors {
            most = s.at_least(s.load(scores.as_ptr().add(n * S::LANES)), most);
        }
        let most = s.most(most);
        if most > *largest {
            let less = if *largest == f32::NEG_INFINITY { 0.0 } else { (*largest - most).exp() };
            let factor = s.splat(less);
            for n in 0..sums.len() / S::LANES {
                let at = sums.as_mut_ptr().add(n * S::LANES);
                s.store(at, s.mul(s.load(at), factor));
            }
            *weights *= less;
            *largest = most;
        }
        let (minus, one) = (s.splat(-*largest), s.splat(1.0));
        for n in 0..vectors {
            let at = scores.as_mut_ptr().add(n * S::LANES);
            s.store(at, exp(s, s.fma(s.load(at), one, minus)));
        }
        scores[..seen.start].fill(0.0);
        scores[seen.end..].fill(0.0);
        let mut sum = s.zero();
        for n in 0..vectors {
            sum = s.fma(s.load(scores.as_ptr().add(n * S::LANES)), one, sum);
        }
        *weights += s.sum(sum);
    }
}

/// eˣ for x up to 86, to 2 units of the last place; e⁻⁸⁶ for what is below -86. NaN stays NaN.
///
/// x = n ln 2 + r, and eʳ by its Taylor series up to r⁷: |r| ≤ ln 2 / 2, so the rest is below 6e-9.
#[inline(always)]
pub(super) fn exp<S: Simd>(s: S, x: S::Floats) -> S::Floats {
    let x = s.at_least(x, s.splat(-86.0));
    let n = s.round(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    // ln 2 in two parts, the first of so few bits that its product with n is exact.
    let r = s.fma(n, s.splat(-0.693_359_4), x);
    let r = s.fma(n, s.splat(2.121_944_4e-4), r);
    let mut sum = s.splat(1.0 / 5040.0);
    for term in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = s.fma(sum, r, s.splat(term));
    }
    s.scale_by_power(sum, n)
}

/// Rows of some stride to `[head_dim, KEYS]`; columns without a row are zero.
#[inline(always)]
fn transpose<S: Simd>(s: S, rows: &[f32], row_stride: usize, count: usize, out: &mut [f32]) {
    let head_dim = out.len() / KEYS;
    if count < KEYS {
        out.fill(0.0);
    }
    // In squares, so that both sides stay in a few cache lines.
    for first in (0..count).step_by(SQUARE) {
        for from in (0..head_dim).step_by(SQUARE) {
            if count - first >= SQUARE && head_dim - from >= SQUARE {
                let end = (first + SQUARE - 1) * row_stride + from + SQUARE;
                assert!(end <= rows.len() && (from + SQUARE) * KEYS <= out.len(), "a square of keys");
                // SAFETY: the last row of the square lies in both, and `first + SQUARE` is at most KEYS.
                unsafe {
                    let to = out.as_mut_ptr().add(from * KEYS + first);
                    s.transpose(rows.as_ptr().add(first * row_stride + from), row_stride, to, KEYS);
                }
                continue;
            }
            for row in first..count.min(first + SQUARE) {
                let square = &rows[row * row_stride + from..][..SQUARE.min(head_dim - from)];
                for (d, value) in square.iter().enumerate() {
                    out[(from + d) * KEYS + row] = *value;
                }
            }
        }
    }
}

/// `out[r, c] = Σ_d a[r, d] · b[d, c]`, or that much more if `ADD`. `a` is rows of a stride with `depth` elements to use,
/// `b` rows of a stride with as many as `out` has columns.
///
/// # Safety
/// `a` has `rows` rows, `b` `depth` rows of `columns`, whole vectors, and `out` `rows` rows of them.
#[inline(always)]
unsafe fn outer_product<S: Simd, const ADD: bool>(
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

/// Rows of queries in a task: many for each key that is transposed, few enough for the second-level cache.
const ROWS: usize = 128;

/// Keys at a time: their transpose is 32 KB for heads of 128.
const KEYS: usize = 64;

/// Side of a square that is transposed at a time.
const SQUARE: usize = 16;

/// Vectors of columns in a block: with [`Simd::MOST_ROWS`] rows all sums are in registers.
const WIDE: usize = 4;
