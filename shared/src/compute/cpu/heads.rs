//! Rows of several heads, where they lie.

use std::ops::Range;

/// Rows of each head, `[heads, rows, head_dim]`, however they lie: one head after the other, or one row.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a> {
    values: &'a [f32],
    pub(super) heads: usize,
    pub(super) rows: usize,
    pub(super) head_dim: usize,
    /// Elements from one head to the next.
    head_stride: usize,
    /// Elements from one row of a head to its next.
    pub(super) row_stride: usize,
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
    pub(super) fn part(&self, head: usize, rows: Range<usize>) -> &'a [f32] {
        let (first, last) = (rows.start * self.row_stride, (rows.end - 1) * self.row_stride);
        &self.values[head * self.head_stride..][first..last + self.head_dim]
    }
}
