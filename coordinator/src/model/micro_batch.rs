//! A pass in parts, each a layer's exchange apart: while the experts of one compute and its rows travel, the trunk works
//! on the next.
//!
//! Rows stay in order, so the keys of a part's earlier rows are always in the cache before its own queries look. Workers in
//! this process gain nothing by it; they get the same parts all the same, so that a topology gives the same bits wherever
//! its workers are.

use std::ops::Range;

use mlx_rs::Array;

use super::Segment;
use super::layer::Begun;

/// Consecutive ids of one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Index among the pass's segments.
    pub(super) segment: usize,
    /// Among the segment's ids; not empty.
    pub(super) ids: Range<usize>,
}

/// Some rows of a pass.
#[derive(Debug)]
pub(super) struct MicroBatch {
    /// Among the pass's rows.
    pub(super) rows: Range<usize>,
    pub(super) pieces: Vec<Piece>,
    /// What the last layer made of them; `None` while a layer has it.
    pub(super) begun: Option<Begun>,
}

impl MicroBatch {
    /// Cuts a pass into at most `parts`, all of nearly the same number of rows.
    pub(super) fn cut(segments: &[Segment<'_>], parts: usize) -> Vec<Self> {
        let total: usize = segments.iter().map(|segment| segment.ids.len()).sum();
        let each = total.div_ceil(parts.max(1)).max(1);
        let mut batches = Vec::with_capacity(parts);
        for start in (0..total).step_by(each) {
            let rows = start..total.min(start + each);
            let mut first = 0;
            let mut pieces = Vec::with_capacity(segments.len());
            for (segment, Segment { ids, .. }) in segments.iter().enumerate() {
                let ids = rows.start.clamp(first, first + ids.len()) - first
                    ..rows.end.clamp(first, first + ids.len()) - first;
                first += segments[segment].ids.len();
                if !ids.is_empty() {
                    pieces.push(Piece { segment, ids });
                }
            }
            batches.push(Self { rows, pieces, begun: None });
        }
        batches
    }

    /// Gives it the residual stream to begin with.
    pub(super) fn start(&mut self, x: Array) {
        self.begun = Some(Begun::Whole(x));
    }
}

/// Micro-batches of a pass of so many rows, whose calls `travel` or do not.
pub(super) const fn parts(rows: usize, travel: bool) -> usize {
    if travel && rows / IN_FLIGHT >= LEAST_ROWS { IN_FLIGHT } else { 1 }
}

/// Rows of a prompt's pass, so that its micro-batches have `chunk`.
pub(super) const fn pass_rows(chunk: usize, travel: bool) -> usize {
    if travel && chunk >= LEAST_ROWS { chunk.saturating_mul(IN_FLIGHT) } else { chunk }
}

/// Micro-batches under way at a time.
const IN_FLIGHT: usize = 2;

/// Rows below which a micro-batch is not worth it: the experts' time then goes to reading their weights, which each does
/// anew.
const LEAST_ROWS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_micro_batch_has_more_rows_than_a_chunk() {
        for chunk in [1, 32, 63, 64, 65, 512, usize::MAX] {
            assert_eq!((parts(chunk, false), pass_rows(chunk, false)), (1, chunk), "nothing to wait for");
            let pass = pass_rows(chunk, true);
            assert!(pass.div_ceil(parts(pass, true)) <= chunk, "chunk {chunk}, pass {pass}");
        }
        assert_eq!((pass_rows(512, true), parts(1024, true)), (1024, 2));
        assert_eq!((parts(128, true), parts(127, true), parts(1, true)), (2, 1, 1));
    }
}
