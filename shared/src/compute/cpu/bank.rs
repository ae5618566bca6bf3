//! The expert bank: `Σ weight · down(silu(gate x) · up x)`, in three phases that all threads share.
//!
//! 1. Tiles of gate and up of every expert in use, for all of its rows: the inner values.
//! 2. Tiles of down: every slot's result, for as many columns at a time as bounded memory allows.
//! 3. Each row's sum, in slot order.
//!
//! Which thread computes a tile changes nothing, so the same batch gives the same bits.

use std::ops::Range;
use std::sync::Arc;

use half::bf16;

use super::batch::Order;
use super::isa::Isa;
use super::lines::Lines;
use super::matrix::{CpuMatrix, Inputs, SharedSlice, tile_rows};
use super::pointwise;
use super::pool::{Pool, Scratch};
use super::rows::{FloatRows, SplitBuffer, stride, width};
use crate::compute::{ActivationType, BankError, BankLoadError, ExpertBank, ExpertBatch};
use crate::ids::ExpertRange;
use crate::weights::Checkpoint;
use crate::weights::inventory::{
    Inventory, LayerSource, MatrixSource, MlpSource, Slice, SparseSource, SwigluSource,
};

/// A range of experts of every sparse layer, in the checkpoint's own mapped bytes.
#[derive(Debug)]
pub struct CpuBank {
    range: ExpertRange,
    hidden: usize,
    /// By layer; `None` for dense ones. Experts in order from `range.start`.
    layers: Vec<Option<Vec<Expert>>>,
    pool: Arc<Pool>,
    backend: String,
    order: Order,
    buffers: Buffers,
}

#[derive(Debug)]
struct Expert {
    gate: CpuMatrix,
    up: CpuMatrix,
    down: CpuMatrix,
}

/// Memory between phases, kept from call to call.
#[derive(Debug, Default)]
struct Buffers {
    /// `[rows, stride of hidden]`.
    x: Lines<f32>,
    x_split: SplitBuffer,
    /// `[positions, stride of inner]`.
    inner: Lines<f32>,
    inner_split: SplitBuffer,
    /// `[positions, some columns]`.
    results: Lines<f32>,
}

impl CpuBank {
    /// Maps the experts of `range` in every sparse layer and reads them into memory. `progress` is told the bytes read.
    ///
    /// # Errors
    /// If a file cannot be mapped or read, or the range is not the model's.
    pub fn load(
        checkpoint: &Checkpoint,
        inventory: &Inventory,
        range: ExpertRange,
        pool: Arc<Pool>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, BankLoadError> {
        Self::load_on(Isa::best(), checkpoint, inventory, range, pool, progress)
    }

    /// [`CpuBank::load`] with other instructions than the fastest: for tests and comparisons.
    ///
    /// # Errors
    /// As [`CpuBank::load`].
    pub fn load_on(
        isa: Isa,
        checkpoint: &Checkpoint,
        inventory: &Inventory,
        range: ExpertRange,
        pool: Arc<Pool>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, BankLoadError> {
        let held: Vec<Option<(&SparseSource, &[SwigluSource])>> =
            inventory.layers.iter().map(|layer| held(layer, range)).collect::<Result<_, _>>()?;
        // All at once, so that they are read in the order of the files.
        let matrices =
            held.iter().flatten().flat_map(|(_, held)| *held).flat_map(|s| [&s.gate, &s.up, &s.down]);
        let slices: Vec<Slice> = matrices.flat_map(MatrixSource::slices).collect();
        checkpoint.populate(&slices, progress)?;

        let mut hidden = 0;
        let mut layers = Vec::with_capacity(inventory.layers.len());
        for held in held {
            let Some((sparse, held)) = held else {
                layers.push(None);
                continue;
            };
            hidden = sparse.router.cols;
            let load =
                |source: &MatrixSource| CpuMatrix::map(checkpoint, source).map(|matrix| matrix.on(isa));
            let mut loaded = Vec::with_capacity(held.len());
            for source in held {
                let expert =
                    Expert { gate: load(&source.gate)?, up: load(&source.up)?, down: load(&source.down)? };
                expert.check(hidden, &source.gate.name)?;
                loaded.push(expert);
            }
            layers.push(Some(loaded));
        }
        let threads = pool.threads();
        let backend =
            format!("cpu ({}, {threads} thread{})", isa.name(), if threads == 1 { "" } else { "s" });
        Ok(Self {
            range,
            hidden,
            layers,
            pool,
            backend,
            order: Order::default(),
            buffers: Buffers::default(),
        })
    }
}

/// A sparse layer, and its experts of `range`; `None` for a dense one.
fn held(
    layer: &LayerSource,
    range: ExpertRange,
) -> Result<Option<(&SparseSource, &[SwigluSource])>, BankLoadError> {
    let MlpSource::Sparse(sparse) = &layer.mlp else { return Ok(None) };
    let held = sparse.experts.get(usize::from(range.start)..usize::from(range.end));
    let experts = sparse.experts.len();
    let held = held.filter(|held| !held.is_empty()).ok_or(BankLoadError::BadRange { range, experts })?;
    Ok(Some((sparse, held)))
}

impl Expert {
    /// The inventory promises it; the phases rely on it.
    fn check(&self, hidden: usize, name: &str) -> Result<(), BankLoadError> {
        let inner = self.gate.rows();
        let shapes = [&self.gate, &self.up, &self.down].map(|matrix| (matrix.rows(), matrix.cols()));
        if shapes == [(inner, hidden), (inner, hidden), (hidden, inner)] && inner > 0 {
            return Ok(());
        }
        Err(BankLoadError::Backend {
            backend: "cpu",
            tensor: name.to_owned(),
            message: format!("gate, up and down {shapes:?} are no expert of rows of {hidden}"),
        })
    }

    fn bytes(&self) -> u64 {
        self.gate.bytes() + self.up.bytes() + self.down.bytes()
    }
}

impl ExpertBank for CpuBank {
    fn range(&self) -> ExpertRange {
        self.range
    }

    fn backend(&self) -> &str {
        &self.backend
    }

    fn resident_bytes(&self) -> u64 {
        self.layers.iter().flatten().flatten().map(Expert::bytes).sum()
    }

    fn run(&mut self, batch: &ExpertBatch<'_>, out: &mut Vec<f32>) -> Result<(), BankError> {
        out.clear();
        batch.check(self.hidden)?;
        let held = self.layers.get(usize::from(batch.layer.0)).and_then(Option::as_deref);
        let experts = held.ok_or(BankError::UnknownLayer { layer: batch.layer })?;
        self.order.arrange(batch, self.range)?;
        out.resize(batch.counts.len() * self.hidden, 0.0);
        if !out.is_empty() {
            Call { experts, order: &self.order, pool: &self.pool, hidden: self.hidden, batch }
                .run(&mut self.buffers, out);
        }
        Ok(())
    }
}

/// One call's view of everything.
struct Call<'a> {
    experts: &'a [Expert],
    order: &'a Order,
    pool: &'a Pool,
    hidden: usize,
    batch: &'a ExpertBatch<'a>,
}

impl Call<'_> {
    fn run(&self, buffers: &mut Buffers, out: &mut [f32]) {
        let Buffers { x, x_split, inner, inner_split, results } = buffers;
        self.read_rows(x, x_split);
        let x = Inputs {
            floats: FloatRows { values: x.all(), cols: self.hidden },
            split: x_split.rows(self.hidden),
        };

        self.gate_and_up(&x, inner, inner_split);
        let inner_cols = self.inner();
        let inner = Inputs {
            floats: FloatRows { values: inner.all(), cols: inner_cols },
            split: inner_split.rows(inner_cols),
        };

        let out = SharedSlice::new(out);
        let step = (RESULTS / self.order.len()).next_multiple_of(128).min(self.hidden);
        for from in (0..self.hidden).step_by(step) {
            let cols = from..self.hidden.min(from + step);
            self.down(&inner, cols.clone(), results);
            self.sum(results.all(), cols, &out);
        }
    }

    /// Inner width: the same for all experts of a layer in any model known; the widest counts.
    fn inner(&self) -> usize {
        self.experts.iter().map(|expert| expert.gate.rows()).max().unwrap_or_default()
    }

    /// The batch's rows as f32, and split if an expert will want them so.
    fn read_rows(&self, x: &mut Lines<f32>, x_split: &mut SplitBuffer) {
        let (rows, stride) = (self.batch.counts.len(), stride(self.hidden));
        let splits = self.any_splits(|expert| [&expert.gate, &expert.up]);
        let x = SharedSlice::new(x.take(rows * stride));
        let target = x_split.take(if splits { rows } else { 0 }, self.hidden);
        self.pool.run(rows, &|row, _| {
            // SAFETY: each task has a row of its own.
            let out = unsafe { x.part(row * stride..row * stride + width(self.hidden)) };
            let (out, padding) = out.split_at_mut(self.hidden);
            read_row(self.batch, row, out);
            padding.fill(0.0);
            if splits {
                // SAFETY: as above.
                unsafe { target.write(self.experts[0].gate.isa(), row as u32, 0..self.hidden, out) };
            }
        });
    }

    /// `silu(gate x) · up x` of every position.
    fn gate_and_up(&self, x: &Inputs<'_>, inner: &mut Lines<f32>, inner_split: &mut SplitBuffer) {
        let (groups, inner_cols) = (self.order.groups(), self.inner());
        let (stride, width) = (stride(inner_cols), width(inner_cols));
        let splits = self.any_splits(|expert| [&expert.down, &expert.down]);
        let inner = SharedSlice::new(inner.take(self.order.len() * stride));
        let target = inner_split.take(if splits { self.order.len() } else { 0 }, inner_cols);
        let tile = tile_rows(inner_cols * groups.len(), self.pool.threads());
        let tiles = inner_cols.div_ceil(tile);
        self.pool.run(groups.len() * tiles, &|task, scratch| {
            let group = groups[task / tiles];
            let expert = &self.experts[group.expert];
            let cols = task % tiles * tile..inner_cols.min((task % tiles + 1) * tile);
            let which = self.order.rows(group);
            let Scratch { work, left, right } = scratch;
            let (gate, up) = (left.take(group.len() * tile), right.take(group.len() * tile));
            expert.gate.multiply(cols.clone(), x, which, gate, tile, work);
            expert.up.multiply(cols.clone(), x, which, up, tile, work);

            let split = expert.down.route(group.len()).reads_split();
            let pairs = gate.chunks_exact_mut(tile).zip(up.chunks_exact(tile));
            for (position, (gate, up)) in group.positions().zip(pairs) {
                let values = &mut gate[..cols.len()];
                pointwise::silu_mul(expert.gate.isa(), values, &up[..values.len()]);
                let end = if cols.end == inner_cols { width } else { cols.end };
                // SAFETY: each task has its expert's positions and columns of its own.
                unsafe {
                    if split {
                        target.write(expert.down.isa(), position as u32, cols.clone(), values);
                    } else {
                        let out = inner.part(position * stride + cols.start..position * stride + end);
                        out[..values.len()].copy_from_slice(values);
                        out[values.len()..].fill(0.0);
                    }
                }
            }
        });
    }

    /// `[positions, cols]`: every expert's results in some columns.
    fn down(&self, inner: &Inputs<'_>, cols: Range<usize>, results: &mut Lines<f32>) {
        let (groups, width) = (self.order.groups(), cols.len());
        let results = SharedSlice::new(results.take(self.order.len() * width));
        let tile = tile_rows(width * groups.len(), self.pool.threads());
        let tiles = width.div_ceil(tile);
        self.pool.run(groups.len() * tiles, &|task, scratch| {
            let group = groups[task / tiles];
            let part = task % tiles * tile..width.min((task % tiles + 1) * tile);
            let rows = cols.start + part.start..cols.start + part.end;
            let Scratch { work, left, .. } = scratch;
            let sums = left.take(group.len() * tile);
            let down = &self.experts[group.expert].down;
            down.multiply(rows, inner, self.order.positions(group), sums, tile, work);
            for (position, sums) in group.positions().zip(sums.chunks_exact(tile)) {
                // SAFETY: each task has its expert's positions and columns of its own.
                let out = unsafe { results.part(position * width + part.start..position * width + part.end) };
                out.copy_from_slice(&sums[..out.len()]);
            }
        });
    }

    /// Each row's weighted sum, in some columns.
    fn sum(&self, results: &[f32], cols: Range<usize>, out: &SharedSlice<'_, f32>) {
        let (rows, width) = (self.batch.counts.len(), cols.len());
        self.pool.run(rows.div_ceil(SUMMED), &|task, _| {
            for row in task * SUMMED..rows.min((task + 1) * SUMMED) {
                let start = row * self.hidden + cols.start;
                // SAFETY: each row belongs to one task.
                let out = unsafe { out.part(start..start + width) };
                for (slot, position) in self.order.of_row(row) {
                    let weight = self.batch.weights[slot];
                    for (out, result) in out.iter_mut().zip(&results[position * width..][..width]) {
                        *out += weight * result;
                    }
                }
            }
        });
    }

    /// Whether some group is multiplied from split rows by either of two matrices.
    fn any_splits(&self, matrices: impl Fn(&Expert) -> [&CpuMatrix; 2]) -> bool {
        self.order.groups().iter().any(|group| {
            matrices(&self.experts[group.expert]).iter().any(|matrix| matrix.route(group.len()).reads_split())
        })
    }
}

fn read_row(batch: &ExpertBatch<'_>, row: usize, out: &mut [f32]) {
    let bytes = out.len() * batch.activation.size();
    let raw = &batch.rows[row * bytes..][..bytes];
    match batch.activation {
        ActivationType::F32 => {
            for (out, raw) in out.iter_mut().zip(raw.as_chunks::<4>().0) {
                *out = f32::from_le_bytes(*raw);
            }
        }
        ActivationType::Bf16 => {
            for (out, raw) in out.iter_mut().zip(raw.as_chunks::<2>().0) {
                *out = bf16::from_le_bytes(*raw).to_f32();
            }
        }
    }
}

/// Most results held at a time, in elements: 16 MB.
const RESULTS: usize = 4 << 20;

/// Rows that one task sums.
const SUMMED: usize = 8;
