//! Attention of some queries over cached keys and values: a block of keys at a time, with a running maximum, so that
//! the memory it takes does not grow with the context (arXiv 1805.02867, 2205.14135).
//!
//! A task is one key-value head with a few tokens: the query heads that share it go over its keys together. Scores and
//! sums are outer products, and all numbers are f32. Every `PART` keys the running sums begin anew and are merged in
//! order, so that the parts of a long context can be tasks too where tokens are few. How much is done at a time never
//! depends on the number of threads, or on what else is computed, so neither do the bits of a result, as long as all
//! values are finite.

use std::ops::Range;

use super::Isa;
use super::heads::Heads;
use super::key_values::{KEYS, KeyValues};
use super::lines::Lines;
use super::matrix::SharedSlice;
use super::outer_product::outer_product;
use super::pool::{Pool, Scratch};
use super::simd::{Simd, for_isa};

/// Queries of consecutive tokens, and what they look at.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// Rotated, a row a token. As many heads as keys have, or a multiple, whose groups follow each other. The last token
    /// is the last one of `cached`.
    pub queries: Heads<'a>,
    /// What the queries are multiplied with: 1 / √head_dim.
    pub scale: f32,
    /// What the queries see must not be forgotten. A value that is not finite spoils every query of its block of keys,
    /// also those that do not see it.
    pub cached: &'a KeyValues,
    /// Which keys a query sees.
    pub visible: Visible,
    /// A logit for each head that takes part in the softmax and has no value.
    pub sinks: Option<&'a [f32]>,
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
    /// If the lengths do not belong together, keys are missing, or [`fits`](Self::fits) is false.
    pub fn run(&self, isa: Isa, pool: &Pool, out: &mut [f32]) {
        let (kv_heads, head_dim, keys) = (self.cached.heads(), self.cached.head_dim(), self.cached.len());
        let Heads { heads, rows: tokens, .. } = self.queries;
        assert!(Self::fits(head_dim) && self.queries.head_dim == head_dim, "heads of {head_dim}");
        assert!(heads.is_multiple_of(kv_heads), "{heads} heads over {kv_heads}");
        let row = heads * head_dim;
        assert!(out.len() == tokens * row, "room for {tokens} tokens");
        assert!(tokens <= keys, "{tokens} queries over {keys} keys");
        assert!(self.sinks.is_none_or(|sinks| sinks.len() == heads), "a sink for each head");
        let group = heads / kv_heads;
        let held = (ROWS / group).max(1);
        let blocks = tokens.div_ceil(held);
        let task = |kv_head, tokens| Task { attention: self, kv_head, group, tokens };
        assert!(self.cached.begin() <= task(0, 0..tokens).keys().start, "forgotten keys");
        let out = SharedSlice::new(out);
        let write = |task: &Task<'_>, sums: &[f32]| {
            for (token, sums) in task.tokens.clone().zip(sums.chunks_exact(group * head_dim)) {
                let from = token * row + task.kv_head * group * head_dim;
                // SAFETY: each task has tokens or heads of its own.
                unsafe { out.part(from..from + sums.len()) }.copy_from_slice(sums);
            }
        };
        let parts = task(0, 0..tokens).parts();
        if blocks > 1 || parts.len() == 1 {
            pool.run(blocks * kv_heads, &|index, Scratch { left, .. }| {
                // The last tokens see most: whoever is done first takes from the end, where the first ones are.
                let (block, kv_head) = (blocks - 1 - index / kv_heads, index % kv_heads);
                let task = task(kv_head, block * held..tokens.min((block + 1) * held));
                write(&task, run_task(isa, &task, left));
            });
            return;
        }
        let (rows, size) = (tokens * group, State::size(tokens * group, head_dim));
        let mut states = vec![0.0; kv_heads * parts.len() * size];
        let shared = SharedSlice::new(&mut states);
        pool.run(kv_heads * parts.len(), &|index, Scratch { left, .. }| {
            let task = task(index / parts.len(), 0..tokens);
            let (state, work) = left.take(size + task.work()).split_at_mut(size);
            let part = parts.start + index % parts.len();
            run_part(isa, &task, part, State::of(state, rows, head_dim), work);
            // SAFETY: each task has a state of its own.
            unsafe { shared.part(index * size..(index + 1) * size) }.copy_from_slice(state);
        });
        for (kv_head, states) in states.chunks_exact_mut(parts.len() * size).enumerate() {
            let task = task(kv_head, 0..tokens);
            let mut states = states.chunks_exact_mut(size).map(|state| State::of(state, rows, head_dim));
            let Some(mut total) = states.next() else { continue };
            states.for_each(|state| total.merge(&state));
            write(&task, task.finish(total));
        }
    }
}

/// The query heads of one key-value head, for some tokens.
pub(super) struct Task<'a> {
    attention: &'a Attention<'a>,
    kv_head: usize,
    group: usize,
    tokens: Range<usize>,
}

/// What rows of queries have seen so far; rows are `[tokens, group]`.
pub(super) struct State<'a> {
    /// `[rows, head_dim]`: sums of values, each weighted by exp(score - largest).
    sums: &'a mut [f32],
    /// `[rows]`: largest score.
    largest: &'a mut [f32],
    /// `[rows]`: sum of weights; 0 if nothing was seen.
    weights: &'a mut [f32],
}

/// A part's working memory.
pub(super) struct Memory<'a> {
    state: State<'a>,
    /// `[rows, head_dim]`, scaled.
    queries: &'a mut [f32],
    /// `[rows, KEYS]`: scores, then weights.
    scores: &'a mut [f32],
}

impl Task<'_> {
    fn rows(&self) -> usize {
        self.tokens.len() * self.group
    }

    /// Positions of the keys that a token sees.
    fn seen(&self, token: usize) -> Range<usize> {
        let Attention { queries, cached, visible, .. } = self.attention;
        visible.range(token, queries.rows, cached.len())
    }

    /// From the first key that a token sees to the last.
    fn keys(&self) -> Range<usize> {
        self.seen(self.tokens.start).start..self.seen(self.tokens.end - 1).end
    }

    /// Numbers of the parts that those lie in.
    fn parts(&self) -> Range<usize> {
        let keys = self.keys();
        keys.start / PART..keys.end.div_ceil(PART)
    }

    /// Elements that running a part takes besides its state.
    fn work(&self) -> usize {
        self.rows() * (self.attention.cached.head_dim() + KEYS)
    }

    /// Sums of all parts to what attention gives, `[tokens, group, head_dim]`.
    fn finish<'m>(&self, total: State<'m>) -> &'m [f32] {
        let State { sums, largest, weights } = total;
        let sinks = self.attention.sinks.map(|sinks| &sinks[self.kv_head * self.group..][..self.group]);
        let head_dim = self.attention.cached.head_dim();
        for (row, sums) in sums.chunks_exact_mut(head_dim).enumerate() {
            let (mut factor, mut weight) = (1.0, weights[row]);
            if let Some(sinks) = sinks {
                let sink = sinks[row % self.group];
                let most = largest[row].max(sink);
                factor = (largest[row] - most).exp();
                weight = weight * factor + (sink - most).exp();
            }
            for sum in sums {
                *sum = *sum * factor / weight;
            }
        }
        sums
    }
}

impl<'a> State<'a> {
    /// Elements of a state: whole cache lines.
    const fn size(rows: usize, head_dim: usize) -> usize {
        (rows * (head_dim + 2)).next_multiple_of(16)
    }

    fn of(memory: &'a mut [f32], rows: usize, head_dim: usize) -> Self {
        let (sums, rest) = memory.split_at_mut(rows * head_dim);
        let (largest, rest) = rest.split_at_mut(rows);
        Self { sums, largest, weights: &mut rest[..rows] }
    }

    /// Adds what the same rows saw elsewhere. To have seen nothing, here or there, changes no bit.
    fn merge(&mut self, other: &State<'_>) {
        let head_dim = self.sums.len() / self.weights.len();
        for (row, (sums, others)) in
            self.sums.chunks_exact_mut(head_dim).zip(other.sums.chunks_exact(head_dim)).enumerate()
        {
            let (largest, weight) = (&mut self.largest[row], &mut self.weights[row]);
            let (other_largest, other_weight) = (other.largest[row], other.weights[row]);
            if other_weight == 0.0 {
                continue;
            }
            if *weight == 0.0 {
                sums.copy_from_slice(others);
                (*largest, *weight) = (other_largest, other_weight);
                continue;
            }
            let most = largest.max(other_largest);
            let (factor, other_factor) = ((*largest - most).exp(), (other_largest - most).exp());
            for (sum, other) in sums.iter_mut().zip(others) {
                *sum = *sum * factor + other * other_factor;
            }
            *weight = *weight * factor + other_weight * other_factor;
            *largest = most;
        }
    }
}

/// Runs a task; gives `[tokens, group, head_dim]`.
fn run_task<'m>(isa: Isa, task: &Task<'_>, memory: &'m mut Lines<f32>) -> &'m [f32] {
    let (rows, head_dim) = (task.rows(), task.attention.cached.head_dim());
    let parts = task.parts();
    let size = State::size(rows, head_dim);
    let other = if parts.len() > 1 { size } else { 0 };
    let (total, rest) = memory.take(size + other + task.work()).split_at_mut(size);
    let (other, work) = rest.split_at_mut(other);
    run_part(isa, task, parts.start, State::of(total, rows, head_dim), work);
    let mut total = State::of(total, rows, head_dim);
    for part in parts.skip(1) {
        run_part(isa, task, part, State::of(other, rows, head_dim), work);
        total.merge(&State::of(other, rows, head_dim));
    }
    task.finish(total)
}

/// Runs one part of a task's keys, from nothing seen on.
fn run_part(isa: Isa, task: &Task<'_>, part: usize, state: State<'_>, work: &mut [f32]) {
    let (queries, scores) = work.split_at_mut(task.rows() * task.attention.cached.head_dim());
    let keys = task.keys();
    let keys = keys.start.max(part * PART)..keys.end.min((part + 1) * PART);
    blocks(isa, task, keys, Memory { state, queries, scores });
}

for_isa! {
    /// All blocks with some keys that a task's tokens see.
    fn blocks(task: &Task<'_>, keys: Range<usize>, memory: Memory<'_>) = blocks_with
}

#[inline(always)]
fn blocks_with<S: Simd>(s: S, task: &Task<'_>, keys: Range<usize>, memory: Memory<'_>) {
    let Attention { queries, cached, .. } = *task.attention;
    let Memory { state, queries: scaled, scores } = memory;
    let (head_dim, group, rows) = (cached.head_dim(), task.group, task.rows());
    for (n, token) in task.tokens.clone().enumerate() {
        for head in 0..group {
            let to = &mut scaled[(n * group + head) * head_dim..][..head_dim];
            let from = queries.part(task.kv_head * group + head, token..token + 1);
            for (to, from) in to.iter_mut().zip(from) {
                *to = from * task.attention.scale;
            }
        }
    }
    state.sums.fill(0.0);
    state.largest.fill(f32::NEG_INFINITY);
    state.weights.fill(0.0);
    let mut at = keys.start - keys.start % KEYS;
    while at < keys.end {
        let end = keys.end.min(at + KEYS);
        let (block_keys, block_values) = cached.block(task.kv_head, at);
        // SAFETY: rows of queries and of scores, and `head_dim` rows of KEYS keys.
        unsafe {
            outer_product::<S, false>(
                s,
                (scaled, head_dim, head_dim),
                (block_keys, KEYS),
                (scores, KEYS),
                rows,
                block_values.as_ptr(),
            );
        }
        for (n, token) in task.tokens.clone().enumerate() {
            let seen = task.seen(token);
            let seen = seen.start.clamp(at, end) - at..seen.end.clamp(at, end) - at;
            for row in n * group..(n + 1) * group {
                let scores = &mut scores[row * KEYS..][..KEYS];
                let sums = &mut state.sums[row * head_dim..][..head_dim];
                weigh(s, scores, seen.clone(), sums, &mut state.largest[row], &mut state.weights[row]);
            }
        }
        let next = if end < keys.end { cached.block(task.kv_head, end).0 } else { block_values }.as_ptr();
        // SAFETY: rows of weights and of sums, and a row of values for each key that there is.
        unsafe {
            outer_product::<S, true>(
                s,
                (scores, KEYS, end - at),
                (block_values, head_dim),
                (state.sums, head_dim),
                rows,
                next,
            );
        }
        at += KEYS;
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

/// Rows of queries in a task: many for each block of keys, few enough for the second-level cache.
const ROWS: usize = 128;

/// Keys in a part, whole blocks: 4 MB of keys and values for heads of 128, so that beginning a task does not show.
const PART: usize = 64 * KEYS;
