//! The expert bank on MLX: every projection of a layer's experts is one stack, gathered by expert id.

use std::collections::BTreeMap;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};

use super::array::{activation_dtype, append_f32, from_rows};
use super::packed::{Matrix, MatrixBytes};
use crate::compute::{ActivationType, BankError, BankLoadError, ExpertBank, ExpertBatch};
use crate::ids::{ExpertRange, LayerId};
use crate::weights::inventory::{Inventory, MatrixSource, MlpSource, SparseSource, SwigluSource};
use crate::weights::{Checkpoint, stack_experts_with_progress};

/// A shard's routed experts, stacked per layer and projection.
#[derive(Debug)]
pub struct MlxBank {
    range: ExpertRange,
    hidden: usize,
    layers: BTreeMap<LayerId, ExpertStack>,
    /// What products are made in, if not what suits this machine.
    compute: Option<Dtype>,
    order: SlotOrder,
}

#[derive(Debug)]
struct ExpertStack {
    gate: Projection,
    up: Projection,
    down: Projection,
}

#[derive(Debug)]
struct Projection {
    weight: Matrix,
    /// NVFP4 global scale of each expert, `[experts]`, applied after the product; `None` where all are 1. On the host, where
    /// the slots' experts are known: looking them up in MLX is three operations more.
    multipliers: Option<Vec<f32>>,
}

/// Slots of a batch in the order they are computed, and where each row finds its own afterwards.
#[derive(Debug, Default)]
struct SlotOrder {
    /// `(local expert, row, slot in the batch)`.
    slots: Vec<(u32, u32, u32)>,
    rows: Vec<u32>,
    experts: Vec<u32>,
    weights: Vec<f32>,
    /// `[rows, widest row]`: positions in `slots`; `slots.len()` where a row has fewer.
    places: Vec<u32>,
    widest: usize,
    sorted: bool,
}

impl MlxBank {
    /// Reads the experts of `range` in every sparse layer. `progress` is told the bytes of each stack read.
    ///
    /// # Errors
    /// If a slice cannot be read, a layer mixes formats within a projection, the range is not the model's, or MLX is out
    /// of memory.
    pub fn load(
        checkpoint: &Checkpoint,
        inventory: &Inventory,
        range: ExpertRange,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, BankLoadError> {
        let mut layers = BTreeMap::new();
        let mut hidden = 0;
        for (layer, source) in (0..).map(LayerId).zip(&inventory.layers) {
            if let MlpSource::Sparse(sparse) = &source.mlp {
                layers.insert(layer, ExpertStack::load(checkpoint, sparse, range, progress)?);
                hidden = sparse.router.cols;
            }
        }
        Ok(Self { range, hidden, layers, compute: None, order: SlotOrder::default() })
    }

    /// The same bank with its products made in that type, whatever suits this machine: for comparisons.
    #[must_use]
    pub fn computing_in(self, activation: ActivationType) -> Self {
        Self { compute: Some(activation_dtype(activation)), ..self }
    }

    fn compute(&self, stack: &ExpertStack, batch: &ExpertBatch<'_>) -> Result<Array, Exception> {
        let order = &self.order;
        let slots = order.slots.len() as i32;
        let compute = self.compute.unwrap_or_else(|| compute_type(batch.activation));
        let x = from_rows(batch.rows, batch.counts.len(), batch.hidden, batch.activation)?
            .as_dtype(compute)?
            .expand_dims(1)?;
        let rows = Array::from_slice(&order.rows, &[slots]);
        let experts = Array::from_slice(&order.experts, &[slots]);
        let each = Array::arange::<_, u32>(None, slots, None)?;

        let gate = stack.gate.apply(&x, &rows, &experts, order)?;
        let up = stack.up.apply(&x, &rows, &experts, order)?;
        let inner = ops::sigmoid(&gate)?.multiply(&gate)?.multiply(&up)?.as_dtype(compute)?;
        let out = stack.down.apply(&inner, &each, &experts, order)?;

        let weights = Array::from_slice(&order.weights, &[slots, 1]);
        let out = out.reshape(&[slots, batch.hidden as i32])?.multiply(weights)?;
        let rows = batch.counts.len() as i32;
        if !order.sorted && order.places.len() == order.slots.len() {
            // Every row has the same number of slots, and they lie in order.
            return out.reshape(&[rows, order.widest as i32, batch.hidden as i32])?.sum_axis(1, None);
        }
        // A row of zeros for the places that a row does not fill.
        let zeros = ops::zeros_dtype(&[1, batch.hidden as i32], Dtype::Float32)?;
        let places = Array::from_slice(&order.places, &[rows, order.widest as i32]);
        ops::concatenate(&[out, zeros], 0)?.take_axis(places, 0)?.sum_axis(1, None)
    }
}

impl ExpertBank for MlxBank {
    fn range(&self) -> ExpertRange {
        self.range
    }

    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn resident_bytes(&self) -> u64 {
        self.layers
            .values()
            .flat_map(|stack| [&stack.gate, &stack.up, &stack.down])
            .map(|p| {
                let multipliers = p.multipliers.as_deref().map_or(0, size_of_val);
                p.weight.resident_bytes() + multipliers as u64
            })
            .sum()
    }

    fn run(&mut self, batch: &ExpertBatch<'_>, out: &mut Vec<f32>) -> Result<(), BankError> {
        out.clear();
        batch.check(self.hidden)?;
        if batch.counts.is_empty() {
            return Ok(());
        }
        self.order.arrange(batch, self.range)?;
        let stack = self.layers.get(&batch.layer).ok_or(BankError::UnknownLayer { layer: batch.layer })?;
        self.compute(stack, batch)
            .and_then(|sums| append_f32(&sums, out))
            .map_err(|e| BankError::Backend { backend: BACKEND, message: e.to_string() })
    }
}

impl ExpertStack {
    fn load(
        checkpoint: &Checkpoint,
        sparse: &SparseSource,
        range: ExpertRange,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, BankLoadError> {
        let experts = sparse.experts.len();
        let owned = sparse
            .experts
            .get(usize::from(range.start)..usize::from(range.end))
            .filter(|owned| !owned.is_empty())
            .ok_or(BankLoadError::BadRange { range, experts })?;
        let mut load = |pick: fn(&SwigluSource) -> &MatrixSource| {
            let matrices: Vec<&MatrixSource> = owned.iter().map(pick).collect();
            let stack = stack_experts_with_progress(checkpoint, &matrices, progress)?;
            let weight = Matrix::new(
                &MatrixBytes {
                    experts: Some(owned.len()),
                    rows: stack.rows,
                    cols: stack.cols,
                    format: stack.format,
                    weight: &stack.weight,
                    scales: &stack.scales,
                    biases: &stack.biases,
                },
                STORED_FLOATS,
            )
            .map_err(|e| BankLoadError::Backend {
                backend: BACKEND,
                tensor: matrices[0].name.clone(),
                message: e.to_string(),
            })?;
            let multipliers = stack.multipliers.iter().any(|&m| m != 1.0).then_some(stack.multipliers);
            Ok::<_, BankLoadError>(Projection { weight, multipliers })
        };
        Ok(Self { gate: load(|s| &s.gate)?, up: load(|s| &s.up)?, down: load(|s| &s.down)? })
    }
}

impl Projection {
    /// `[rows, 1, cols]` → `[slots, 1, out]`, f32. `experts` are those of `order`.
    fn apply(&self, x: &Array, rows: &Array, experts: &Array, order: &SlotOrder) -> Result<Array, Exception> {
        let y = self.weight.gather(x, rows, experts, order.sorted)?.as_dtype(Dtype::Float32)?;
        let Some(multipliers) = &self.multipliers else { return Ok(y) };
        // `arrange` saw to it that every expert is held.
        let each: Vec<f32> = order.experts.iter().map(|&expert| multipliers[expert as usize]).collect();
        y.multiply(Array::from_slice(&each, &[each.len() as i32, 1, 1]))
    }
}

impl SlotOrder {
    /// Lays out a batch: as it comes for few slots, grouped by expert for many (each expert's weights are then read
    /// once).
    fn arrange(&mut self, batch: &ExpertBatch<'_>, range: ExpertRange) -> Result<(), BankError> {
        self.slots.clear();
        let mut slot = 0_u32;
        for (row, &count) in (0_u32..).zip(batch.counts) {
            for _ in 0..count {
                let expert = batch.experts[slot as usize];
                let local = range.local(expert).ok_or(BankError::ForeignExpert { expert, range })?;
                self.slots.push((local as u32, row, slot));
                slot += 1;
            }
        }
        self.sorted = self.slots.len() >= SORT_FROM;
        if self.sorted {
            self.slots.sort_unstable();
        }
        self.rows.clear();
        self.rows.extend(self.slots.iter().map(|s| s.1));
        self.experts.clear();
        self.experts.extend(self.slots.iter().map(|s| s.0));
        self.weights.clear();
        self.weights.extend(self.slots.iter().map(|s| batch.weights[s.2 as usize]));

        self.widest = batch.counts.iter().copied().max().map_or(0, usize::from);
        self.places.clear();
        self.places.resize(batch.counts.len() * self.widest, self.slots.len() as u32);
        // First place of each row's slots, in the batch's numbering.
        let first: Vec<u32> = batch
            .counts
            .iter()
            .scan(0, |sum, &count| {
                let first = *sum;
                *sum += u32::from(count);
                Some(first)
            })
            .collect();
        for (place, &(_, row, slot)) in (0_u32..).zip(&self.slots) {
            let column = (slot - first[row as usize]) as usize;
            self.places[row as usize * self.widest + column] = place;
        }
        Ok(())
    }
}

/// The type that this machine's MLX multiplies in: f32 on Linux, where its CPU backend is 8 times slower with bf16 and
/// gathers plain matrices in f32 only; elsewhere that of the rows.
const fn compute_type(activation: ActivationType) -> Dtype {
    if cfg!(target_os = "linux") { Dtype::Float32 } else { activation_dtype(activation) }
}

/// What plain weights, affine scales and biases become when loaded; `None` keeps them as stored.
const STORED_FLOATS: Option<Dtype> = if cfg!(target_os = "linux") { Some(Dtype::Float32) } else { None };

const BACKEND: &str = "mlx";

/// Slots from which grouping by expert pays: below it, most experts have one row and sorting saves no reads.
const SORT_FROM: usize = 64;
