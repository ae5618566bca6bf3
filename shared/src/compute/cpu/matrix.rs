//! One weight matrix over bytes that are not copied, and how some of its rows are multiplied.

use std::marker::PhantomData;
use std::ops::Range;
use std::slice;

use super::affine::{self, AffineRows};
use super::isa::Isa;
use super::nibbles::{self, NibbleRows};
use super::plain::{self, PlainRows};
use super::pool::Work;
use super::rows::{FloatRows, SplitRows, stride};
use super::split::{self, CodeRows};
use super::{decode, panel};
use crate::weights::inventory::{MatrixFormat, MatrixSource, Slice};
use crate::weights::load::multiplier;
use crate::weights::mapped::WeightBytes;
use crate::weights::nvfp4::GROUP;
use crate::weights::{Checkpoint, CheckpointError};

/// A matrix `[rows, cols]` in the format and the bytes of the checkpoint.
#[derive(Debug)]
pub struct CpuMatrix {
    rows: usize,
    cols: usize,
    format: MatrixFormat,
    weight: WeightBytes,
    scales: WeightBytes,
    biases: WeightBytes,
    multiplier: f32,
    /// NVFP4 without negative or NaN scales: all that anyone has published.
    splits: bool,
    isa: Isa,
}

/// A matrix's parts, borrowed.
#[derive(Clone, Copy, Debug)]
pub(super) struct MatrixView<'a> {
    rows: usize,
    pub(super) cols: usize,
    pub(super) format: MatrixFormat,
    weight: &'a [u8],
    scales: &'a [u8],
    biases: &'a [u8],
    pub(super) multiplier: f32,
}

/// Rows to multiply with, in every form that some matrix may want.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inputs<'a> {
    pub(super) floats: FloatRows<'a>,
    pub(super) split: SplitRows<'a>,
}

/// How a matrix is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// [`split`]; reads split rows.
    Split,
    /// [`nibbles`]; reads split rows.
    Nibbles,
    /// [`plain`]; reads f32 rows.
    Plain,
    /// [`affine`]; reads f32 rows.
    Affine,
    /// [`panel`]; reads f32 rows.
    Panel,
}

impl Route {
    /// Whether it reads split rows; else f32.
    pub(super) const fn reads_split(self) -> bool {
        matches!(self, Self::Split | Self::Nibbles)
    }
}

/// A matrix that cannot be.
#[derive(Debug, thiserror::Error)]
pub enum MatrixError {
    /// A part has another length than shape and format ask for.
    #[error("a matrix [{rows}, {cols}] in {format:?} has {expected} bytes of {part}, not {found}")]
    Length {
        /// Output features.
        rows: usize,
        /// Input features.
        cols: usize,
        /// As asked.
        format: MatrixFormat,
        /// Weights, scales or biases.
        part: &'static str,
        /// Bytes.
        expected: usize,
        /// Bytes.
        found: usize,
    },
    /// The format does not divide rows of that width.
    #[error("rows of {cols} do not divide into the groups of {format:?}")]
    Groups {
        /// Input features.
        cols: usize,
        /// As asked.
        format: MatrixFormat,
    },
}

impl CpuMatrix {
    /// A matrix of `weight`, `[rows, packed columns]`, and `[rows, groups]` of `scales` and `biases` where the format
    /// has them, else empty. `multiplier` is a factor on every weight: the NVFP4 global scale, or 1.
    ///
    /// # Errors
    /// If a part has not the length that shape and format ask for.
    pub fn new(
        (rows, cols): (usize, usize),
        format: MatrixFormat,
        weight: WeightBytes,
        scales: WeightBytes,
        biases: WeightBytes,
        multiplier: f32,
    ) -> Result<Self, MatrixError> {
        let (fits, packed, groups, biased) = match format {
            MatrixFormat::Plain(float) => (true, cols.saturating_mul(float.size()), 0, 0),
            MatrixFormat::Nvfp4 => (cols.is_multiple_of(GROUP), cols / 2, cols / GROUP, 0),
            MatrixFormat::Affine { bits, group_size, scale_type } => {
                // A group's codes are whole bytes.
                let fits = (1..=8).contains(&bits)
                    && group_size > 0
                    && group_size.is_multiple_of(8)
                    && cols.is_multiple_of(group_size);
                let groups = cols / group_size.max(1) * scale_type.size();
                (fits, cols.saturating_mul(bits as usize) / 8, groups, groups)
            }
        };
        if !fits {
            return Err(MatrixError::Groups { cols, format });
        }
        let parts = [("weights", packed, &weight), ("scales", groups, &scales), ("biases", biased, &biases)];
        for (part, row, bytes) in parts {
            let (expected, found) = (rows.saturating_mul(row), bytes.len());
            if expected != found {
                return Err(MatrixError::Length { rows, cols, format, part, expected, found });
            }
        }
        let splits = format == MatrixFormat::Nvfp4
            && scales.iter().fold(true, |all, scale| all & (*scale < NAN_SCALE));
        Ok(Self { rows, cols, format, weight, scales, biases, multiplier, splits, isa: Isa::best() })
    }

    /// Maps a matrix of a checkpoint and reads it into memory. `progress` is told bytes as they are there.
    ///
    /// # Errors
    /// If a file cannot be mapped or read, or is not what it was when the checkpoint was opened.
    pub fn load(
        checkpoint: &Checkpoint,
        source: &MatrixSource,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, CheckpointError> {
        let slices: Vec<Slice> = source.slices().collect();
        checkpoint.populate(&slices, progress)?;
        Self::map(checkpoint, source)
    }

    /// Maps a matrix of a checkpoint. It reads quickly if [`Checkpoint::populate`] was told of its slices.
    ///
    /// # Errors
    /// As [`CpuMatrix::load`].
    pub(super) fn map(checkpoint: &Checkpoint, source: &MatrixSource) -> Result<Self, CheckpointError> {
        let part = |slice| match slice {
            None => Ok(WeightBytes::default()),
            Some(slice) => checkpoint.map(slice),
        };
        let (weight, scales, biases) =
            (part(Some(source.weight))?, part(source.scales)?, part(source.biases)?);
        let multiplier = multiplier(checkpoint, source)?;
        Self::new((source.rows, source.cols), source.format, weight, scales, biases, multiplier)
            .map_err(|e| CheckpointError::Unusable { name: source.name.clone(), reason: e.to_string() })
    }

    /// The same matrix with other instructions: slower ones, for tests and comparisons.
    #[must_use]
    pub fn on(self, isa: Isa) -> Self {
        Self { isa, ..self }
    }

    /// Output features.
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    pub const fn cols(&self) -> usize {
        self.cols
    }

    /// Whether the weights are floats, not codes.
    pub const fn is_plain(&self) -> bool {
        matches!(self.format, MatrixFormat::Plain(_))
    }

    /// Bytes of weights, scales and biases.
    pub fn bytes(&self) -> u64 {
        (self.weight.len() + self.scales.len() + self.biases.len()) as u64
    }

    /// Appends row `row` of the matrix as f32, `[cols]`: an embedding look-up.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn append_row(&self, row: usize, out: &mut Vec<f32>) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let start = out.len();
        out.resize(start + stride(self.cols), 0.0);
        decode::decode_rows(self.isa, &self.view(), row..row + 1, &mut out[start..]);
        out.truncate(start + self.cols);
        if self.multiplier != 1.0 {
            out[start..].iter_mut().for_each(|weight| *weight *= self.multiplier);
        }
    }

    /// How a product with `n` rows is made.
    pub(super) fn route(&self, n: usize) -> Route {
        match self.format {
            MatrixFormat::Nvfp4 if self.splits && n <= FEW && self.isa.multiplies_bytes() => Route::Split,
            MatrixFormat::Plain(_) if n <= FEW && self.cols.is_multiple_of(16) => Route::Plain,
            MatrixFormat::Affine { bits: 4, group_size, .. }
                if n <= self.isa.few_nibbles() && nibbles::fits(group_size) =>
            {
                Route::Nibbles
            }
            // Decoding for each row anew pays for fewer rows; what comes out is the same.
            MatrixFormat::Affine { bits: 4, group_size, .. } if n <= 2 && group_size.is_multiple_of(16) => {
                Route::Affine
            }
            MatrixFormat::Affine { bits: 8, group_size, .. } if n <= 3 && group_size.is_multiple_of(16) => {
                Route::Affine
            }
            _ => Route::Panel,
        }
    }

    /// `out[n, r] = x[which[n]] · w[rows.start + r]`; `out` has `stride` elements from one n to the next.
    pub(super) fn multiply(
        &self,
        rows: Range<usize>,
        x: &Inputs<'_>,
        which: &[u32],
        out: &mut [f32],
        stride: usize,
        work: &mut Work,
    ) {
        let Self { cols, multiplier, isa, .. } = *self;
        let view = self.view();
        match (self.route(which.len()), self.format) {
            (Route::Split, _) => {
                let codes = &view.weight[rows.start * cols / 2..rows.end * cols / 2];
                let scales = &view.scales[rows.start * cols / GROUP..rows.end * cols / GROUP];
                split::multiply(
                    isa,
                    CodeRows { cols, codes, scales, multiplier },
                    x.split,
                    which,
                    out,
                    stride,
                );
            }
            (Route::Plain, MatrixFormat::Plain(float)) => {
                let bytes = cols * float.size();
                let weights = &view.weight[rows.start * bytes..rows.end * bytes];
                plain::multiply(
                    isa,
                    PlainRows { cols, float, weights, multiplier },
                    x.floats,
                    which,
                    out,
                    stride,
                );
            }
            (Route::Nibbles, MatrixFormat::Affine { group_size, scale_type, .. }) => {
                let group_bytes = cols / group_size * scale_type.size();
                let groups = rows.start * group_bytes..rows.end * group_bytes;
                let w = NibbleRows {
                    cols,
                    group_size,
                    scale_type,
                    codes: &view.weight[rows.start * cols / 2..rows.end * cols / 2],
                    scales: &view.scales[groups.clone()],
                    biases: &view.biases[groups],
                    multiplier,
                };
                nibbles::multiply(isa, w, x.split, which, out, stride, &mut work.sums);
            }
            (Route::Affine, MatrixFormat::Affine { bits, group_size, scale_type }) => {
                let (code_bytes, group_bytes) =
                    (cols * bits as usize / 8, cols / group_size * scale_type.size());
                let groups = rows.start * group_bytes..rows.end * group_bytes;
                let w = AffineRows {
                    cols,
                    bits,
                    group_size,
                    scale_type,
                    codes: &view.weight[rows.start * code_bytes..rows.end * code_bytes],
                    scales: &view.scales[groups.clone()],
                    biases: &view.biases[groups],
                    multiplier,
                };
                affine::multiply(isa, w, x.floats, which, out, stride, &mut work.sums);
            }
            _ => panel::multiply(isa, &view, rows, x.floats, which, out, stride, work),
        }
    }

    fn view(&self) -> MatrixView<'_> {
        MatrixView {
            rows: self.rows,
            cols: self.cols,
            format: self.format,
            weight: &self.weight,
            scales: &self.scales,
            biases: &self.biases,
            multiplier: self.multiplier,
        }
    }

    pub(super) const fn isa(&self) -> Isa {
        self.isa
    }
}

impl<'a> MatrixView<'a> {
    pub(super) fn weight_row(&self, row: usize) -> &'a [u8] {
        self.row(self.weight, row)
    }

    pub(super) fn scales_row(&self, row: usize) -> &'a [u8] {
        self.row(self.scales, row)
    }

    pub(super) fn biases_row(&self, row: usize) -> &'a [u8] {
        self.row(self.biases, row)
    }

    fn row(&self, part: &'a [u8], row: usize) -> &'a [u8] {
        let len = part.len() / self.rows;
        &part[row * len..][..len]
    }
}

/// A slice that several threads write, each its own parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedSlice<'a, T> {
    start: *mut T,
    len: usize,
    borrowed: PhantomData<&'a mut [T]>,
}

// SAFETY: threads have disjoint parts, as `part` demands.
unsafe impl<T: Send> Send for SharedSlice<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedSlice<'_, T> {}

impl<'a, T> SharedSlice<'a, T> {
    pub(super) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), borrowed: PhantomData }
    }

    /// # Safety
    /// While the part is in use, nobody else asks for one that overlaps.
    pub(super) unsafe fn part(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "part {range:?} of {}", self.len);
        // SAFETY: it lies inside the slice, and nobody else has it.
        unsafe { slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

/// Rows of weights in a task: some tasks for each thread, so that all end at the same time, and not so few rows that
/// beginning a task shows.
pub(super) fn tile_rows(rows: usize, threads: usize) -> usize {
    (rows / (6 * threads)).next_multiple_of(16).clamp(16, 128)
}

/// Rows up to which weights are better read again for each than decoded once for all.
pub const FEW: usize = 4;

/// E4M3's NaN; above it are the negative ones.
const NAN_SCALE: u8 = 0x7f;
