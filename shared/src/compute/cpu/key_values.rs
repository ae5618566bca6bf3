//! Keys and values of one sequence and layer, in blocks of `KEYS` tokens, laid out as attention reads them.
//!
//! Token t lies in block t / KEYS, whatever was held or forgotten before: so which keys attention takes together, and with
//! that the bits of its results, depend on positions alone. A block's keys are transposed when they are written, once,
//! and not whenever a query looks. Blocks are shared between clones until either side writes, and only the written ones
//! are copied.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use super::Isa;
use super::heads::Heads;
use super::lines::Lines;
use super::simd::{Simd, for_isa};

/// Keys and values of consecutive tokens, f32.
#[derive(Clone, Debug)]
pub struct KeyValues {
    heads: usize,
    head_dim: usize,
    blocks: VecDeque<Arc<Block>>,
    /// Number of the first block held; those before are forgotten.
    first: usize,
    /// Position after the last token.
    len: usize,
}

/// `[heads, 2, KEYS · head_dim]`: each head's keys `[head_dim, KEYS]`, then its values `[KEYS, head_dim]`.
#[derive(Clone)]
struct Block(Lines<f32>);

impl KeyValues {
    /// Without tokens: of so many key-value heads, `head_dim` elements each.
    pub const fn new(heads: usize, head_dim: usize) -> Self {
        Self { heads, head_dim, blocks: VecDeque::new(), first: 0, len: 0 }
    }

    /// Tokens that the blocks of so many consecutive ones have room for, wherever those begin. A block stays until all of
    /// its tokens are forgotten, so there is one even if nothing is seen.
    pub const fn room_for(tokens: usize) -> usize {
        tokens.saturating_sub(1).next_multiple_of(KEYS) + KEYS
    }

    /// Position after the last token: tokens held, and before them those forgotten.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there was no token yet.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The blocks held: an address that clones share as long as they share the block, and its bytes.
    pub fn blocks(&self) -> impl Iterator<Item = (usize, u64)> {
        let bytes = (self.heads * 2 * KEYS * self.head_dim * size_of::<f32>()) as u64;
        self.blocks.iter().map(move |block| (Arc::as_ptr(block).addr(), bytes))
    }

    /// Puts tokens at position `at` and behind it: rotated keys and values, `[heads, tokens, head_dim]`. What was at `at`
    /// or behind it is forgotten.
    ///
    /// # Panics
    /// If the shapes do not belong together, or tokens from `at` back to the first block held are missing.
    pub fn extend(&mut self, isa: Isa, at: usize, keys: Heads<'_>, values: Heads<'_>) {
        let shape = |of: &Heads<'_>| (of.heads, of.rows, of.head_dim);
        assert!(shape(&keys) == (self.heads, keys.rows, self.head_dim), "keys of another cache");
        assert!(shape(&values) == shape(&keys), "a value for each key");
        assert!((self.first * KEYS..=self.len).contains(&at), "tokens at {at} after {}", self.len);
        self.truncate(at);
        self.len = at + keys.rows;
        while self.first + self.blocks.len() < self.len.div_ceil(KEYS) {
            self.blocks.push_back(Arc::new(Block::zeros(self.heads, self.head_dim)));
        }
        for number in at / KEYS..self.len.div_ceil(KEYS) {
            let start = number * KEYS;
            let held = at.max(start)..self.len.min(start + KEYS);
            let (rows, column) = (held.start - at..held.end - at, held.start - start);
            let block = Arc::make_mut(&mut self.blocks[number - self.first]);
            for head in 0..self.heads {
                let (to_keys, to_values) = block.head_mut(self.heads, self.head_dim, head);
                let (count, stride) = (rows.len(), keys.row_stride);
                transpose(isa, keys.part(head, rows.clone()), stride, count, &mut to_keys[column..]);
                let from = values.part(head, rows.clone()).chunks(values.row_stride.max(1));
                let to = to_values.chunks_exact_mut(self.head_dim).skip(column);
                for (to, from) in to.zip(from).take(count) {
                    to.copy_from_slice(&from[..self.head_dim]);
                }
            }
        }
    }

    /// Forgets tokens at position `len` and behind it.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.blocks.truncate(self.len.div_ceil(KEYS).saturating_sub(self.first));
    }

    /// Forgets blocks whose tokens all lie before position `at`, which is not behind the last token.
    pub fn forget_before(&mut self, at: usize) {
        while (self.first + 1) * KEYS <= at && self.blocks.pop_front().is_some() {
            self.first += 1;
        }
    }

    /// A head's key and value at a position, if it is held: to look at; attention reads whole blocks.
    pub fn token(&self, head: usize, position: usize) -> Option<(Vec<f32>, &[f32])> {
        let number = (position < self.len).then_some(position / KEYS)?;
        let block = self.blocks.get(number.checked_sub(self.first)?)?;
        let (keys, values) = block.head(self.heads, self.head_dim, head);
        let column = position % KEYS;
        let key = keys.iter().skip(column).step_by(KEYS).copied().collect();
        Some((key, &values[column * self.head_dim..][..self.head_dim]))
    }

    /// Key-value heads.
    pub(super) const fn heads(&self) -> usize {
        self.heads
    }

    /// Elements of a key or value.
    pub(super) const fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Position of the first block held.
    pub(super) const fn begin(&self) -> usize {
        self.first * KEYS
    }

    /// A head's keys `[head_dim, KEYS]` and values `[KEYS, head_dim]` of the block that begins at a position. What belongs
    /// to no token is unspecified.
    #[inline(always)]
    pub(super) fn block(&self, head: usize, begin: usize) -> (&[f32], &[f32]) {
        self.blocks[begin / KEYS - self.first].head(self.heads, self.head_dim, head)
    }
}

impl Block {
    fn zeros(heads: usize, head_dim: usize) -> Self {
        let mut lines = Lines::default();
        lines.take(heads * 2 * KEYS * head_dim);
        Self(lines)
    }

    #[inline(always)]
    fn head(&self, heads: usize, head_dim: usize, head: usize) -> (&[f32], &[f32]) {
        debug_assert!(head < heads);
        let each = KEYS * head_dim;
        self.0.all()[2 * each * head..][..2 * each].split_at(each)
    }

    fn head_mut(&mut self, heads: usize, head_dim: usize, head: usize) -> (&mut [f32], &mut [f32]) {
        let each = KEYS * head_dim;
        self.0.take(2 * each * heads)[2 * each * head..][..2 * each].split_at_mut(each)
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} f32)", self.0.all().len())
    }
}

for_isa! {
    /// `count` rows of some stride to as many columns, [`KEYS`] elements from one element of a row to its next.
    fn transpose(rows: &[f32], row_stride: usize, count: usize, out: &mut [f32]) = transpose_with
}

#[inline(always)]
fn transpose_with<S: Simd>(s: S, rows: &[f32], row_stride: usize, count: usize, out: &mut [f32]) {
    let head_dim = rows.len() - (count - 1) * row_stride;
    // In squares, so that both sides stay in a few cache lines.
    for first in (0..count).step_by(SQUARE) {
        for from in (0..head_dim).step_by(SQUARE) {
            if count - first >= SQUARE && head_dim - from >= SQUARE {
                let end = (first + SQUARE - 1) * row_stride + from + SQUARE;
                let out_end = (from + SQUARE - 1) * KEYS + first + SQUARE;
                assert!(end <= rows.len() && out_end <= out.len(), "a square of keys");
                // SAFETY: the last row of the square lies in both.
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

/// Tokens of a block: the keys of a head are 32 KB for heads of 128.
pub(super) const KEYS: usize = 64;

/// Side of a square that is transposed at a time.
const SQUARE: usize = 16;
