//! Buffers that begin at a cache line, so that no vector in them lies across two.

use bytemuck::{Pod, Zeroable};

/// Elements in whole cache lines. Grows and never shrinks: what was needed once will be again.
#[derive(Clone, Debug)]
pub(super) struct Lines<T> {
    lines: Vec<Line>,
    element: std::marker::PhantomData<T>,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl<T> Default for Lines<T> {
    fn default() -> Self {
        Self { lines: Vec::new(), element: std::marker::PhantomData }
    }
}

impl<T: Pod> Lines<T> {
    /// The first `len` elements; what they hold is left from before, or zero.
    pub(super) fn take(&mut self, len: usize) -> &mut [T] {
        let lines = (len * size_of::<T>()).div_ceil(size_of::<Line>());
        if self.lines.len() < lines {
            self.lines.resize(lines, Line([0; 64]));
        }
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..len]
    }

    /// Everything that was ever taken.
    pub(super) fn all(&self) -> &[T] {
        bytemuck::cast_slice(&self.lines)
    }
}
