//! Products of matrices with the same rows of activations: the rows are prepared once, and the threads share the tiles
//! of all matrices, so that none waits at the end of a small one.

use std::cell::RefCell;

use super::lines::Lines;
use super::matrix::{CpuMatrix, Inputs, SharedSlice, tile_rows};
use super::pool::{Pool, Scratch};
use super::rows::{FloatRows, SplitBuffer, stride, width};

impl CpuMatrix {
    /// `out = x · Wᵀ`: `x` is `[n, cols]`, `out` `[n, rows]`, both row-major.
    ///
    /// The same rows give the same bits, whatever the number of threads. Allocates nothing once a thread has called it
    /// with as many rows.
    ///
    /// # Panics
    /// If the lengths do not belong together.
    pub fn matmul(&self, pool: &Pool, x: &[f32], out: &mut [f32]) {
        matmul_all(&[self], pool, x, out);
    }
}

/// `x · Wᵀ` with each matrix: `x` is `[n, cols]`, `out` each one's `[n, rows]`, one after the other.
///
/// Gives the bits that [`CpuMatrix::matmul`] gives, and allocates as little.
///
/// # Panics
/// If the lengths do not belong together, or the matrices have not the same columns and instructions.
pub fn matmul_all(matrices: &[&CpuMatrix], pool: &Pool, x: &[f32], out: &mut [f32]) {
    let Some(first) = matrices.first() else {
        assert!(out.is_empty(), "results of no matrix");
        return;
    };
    let (cols, isa) = (first.cols(), first.isa());
    let n = x.len() / cols.max(1);
    let rows: usize = matrices.iter().map(|matrix| matrix.rows()).sum();
    assert!(
        matrices.iter().all(|matrix| matrix.cols() == cols && matrix.isa() == isa),
        "matrices for the same rows"
    );
    assert_eq!(x.len(), n * cols, "x is rows of {cols} elements");
    assert_eq!(out.len(), n * rows, "out is {n} rows of {rows} elements");
    if out.is_empty() {
        return;
    }
    PREPARED.with_borrow_mut(|prepared| {
        prepared.fill(matrices, pool, x, n);
        let (inputs, which) = (prepared.inputs(cols), &prepared.which[..n]);
        let tile = tile_rows(rows, pool.threads());
        let out = SharedSlice::new(out);
        let work = |task: usize, scratch: &mut Scratch| {
            let Some(part) = Part::of(matrices, n, tile, task) else { return };
            let Part { matrix, first, tile: number } = part;
            let rows = number * tile..matrix.rows().min((number + 1) * tile);
            let Scratch { work, left: sums, .. } = scratch;
            if n == 1 {
                // SAFETY: each task has a range of its own.
                let out = unsafe { out.part(first + rows.start..first + rows.end) };
                return matrix.multiply(rows, &inputs, which, out, tile, work);
            }
            let sums = sums.take(n * tile);
            matrix.multiply(rows.clone(), &inputs, which, sums, tile, work);
            for (n, sums) in sums.chunks_exact(tile).enumerate() {
                let from = first + n * matrix.rows();
                // SAFETY: each task has a range of its own in every row.
                let out = unsafe { out.part(from + rows.start..from + rows.end) };
                out.copy_from_slice(&sums[..rows.len()]);
            }
        };
        let tasks = matrices.iter().map(|matrix| matrix.rows().div_ceil(tile)).sum();
        let bytes: u64 = matrices.iter().map(|matrix| matrix.bytes()).sum();
        if pool.sleeps() && bytes * n as u64 <= ALONE {
            pool.run_alone(tasks, &work);
        } else {
            pool.run(tasks, &work);
        }
    });
}

/// What a task computes.
struct Part<'a> {
    matrix: &'a CpuMatrix,
    /// Where the matrix's results begin.
    first: usize,
    /// Which of its tiles.
    tile: usize,
}

impl<'a> Part<'a> {
    fn of(matrices: &[&'a CpuMatrix], n: usize, tile: usize, task: usize) -> Option<Self> {
        let (mut first, mut left) = (0, task);
        for matrix in matrices {
            let tiles = matrix.rows().div_ceil(tile);
            if left < tiles {
                return Some(Self { matrix, first, tile: left });
            }
            left -= tiles;
            first += n * matrix.rows();
        }
        None
    }
}

/// A thread's rows, in every form that some matrix of its last product wanted.
#[derive(Debug, Default)]
struct Prepared {
    floats: Lines<f32>,
    split: SplitBuffer,
    /// 0, 1, 2 …
    which: Vec<u32>,
}

thread_local! {
    static PREPARED: RefCell<Prepared> = RefCell::default();
}

impl Prepared {
    fn fill(&mut self, matrices: &[&CpuMatrix], pool: &Pool, x: &[f32], n: usize) {
        let (cols, isa) = (matrices[0].cols(), matrices[0].isa());
        self.which.extend(self.which.len() as u32..n as u32);
        if matrices.iter().any(|matrix| matrix.route(n).reads_split()) {
            let target = self.split.take(n, cols);
            for (row, x) in (0..).zip(x.chunks_exact(cols)) {
                // SAFETY: the buffer is this thread's.
                unsafe { target.write(isa, row, 0..cols, x) };
            }
        }
        if matrices.iter().all(|matrix| matrix.route(n).reads_split()) {
            return;
        }
        let (stride, width) = (stride(cols), width(cols));
        let floats = SharedSlice::new(self.floats.take(n * stride));
        pool.run(n.div_ceil(COPIED), &|task, _| {
            for row in task * COPIED..n.min((task + 1) * COPIED) {
                // SAFETY: each row belongs to one task.
                let out = unsafe { floats.part(row * stride..row * stride + width) };
                let (out, padding) = out.split_at_mut(cols);
                out.copy_from_slice(&x[row * cols..][..cols]);
                padding.fill(0.0);
            }
        });
    }

    fn inputs(&self, cols: usize) -> Inputs<'_> {
        Inputs { floats: FloatRows { values: self.floats.all(), cols }, split: self.split.rows(cols) }
    }
}

/// Rows of x that one task copies: some are copied at once.
const COPIED: usize = 16;

/// Bytes of weights, times rows, that the caller multiplies itself if all others sleep. Waking one took 20 to 30 µs
/// here: bf16 broke even between 512 KB and 1 MB, affine codes of four bits between 320 and 640 KB. With threads that
/// still look for work, everything of more than one task is quicker together.
const ALONE: u64 = 512 << 10;
