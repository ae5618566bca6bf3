//! Experts in plain Rust: the oracle that other banks are measured against, and the path on machines without Metal.
//! Must not know where weights come from beyond [`Checkpoint`], nor who sent the rows.
//!
//! Weights stay packed as stored and are decoded to f32 each time an expert is used, once per call. Numbers:
//!
//! - a projection's element is a dot product in f64 (products of two f32 are exact there, so the order of the sum does
//!   not show), rounded to f32, then times the matrix's f32 multiplier (the NVFP4 global scale);
//! - `silu(gate) · up`, router weights and the sum over a row's slots, in slot order, are f32.

use half::bf16;

use super::{ActivationType, BankError, ExpertBank, ExpertBatch};
use crate::{
    config::ModelConfig,
    ids::{ExpertRange, LayerId},
    weights::{
        Checkpoint, CheckpointError, Inventory, RawMatrix,
        decode::decode_unscaled,
        inventory::{MatrixSource, MlpSource},
        read_matrix,
    },
};

/// A range of experts of every sparse layer, packed, in memory.
#[derive(Debug)]
pub struct ReferenceBank {
    range: ExpertRange,
    hidden: usize,
    /// By layer; `None` for dense ones. Experts in order from `range.start`.
    layers: Vec<Option<Vec<Expert>>>,
    scratch: Scratch,
}

#[derive(Debug)]
struct Expert {
    gate: RawMatrix,
    up: RawMatrix,
    down: RawMatrix,
}

/// Decoded weights of the expert in use, and one row's intermediate values.
#[derive(Debug, Default)]
struct Scratch {
    gate: Vec<f32>,
    up: Vec<f32>,
    down: Vec<f32>,
    inner: Vec<f32>,
}

impl ReferenceBank {
    /// Reads the experts of `range`, and nothing else, telling `progress` the bytes read since it was last called.
    pub fn load(
        checkpoint: &Checkpoint,
        inventory: &Inventory,
        config: &ModelConfig,
        range: ExpertRange,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, CheckpointError> {
        if range.is_empty() || usize::from(range.end) > config.num_experts {
            return Err(CheckpointError::Unusable {
                name: format!("experts {range}"),
                reason: format!("the model has experts 0..{}", config.num_experts),
            });
        }
        let mut read = |source: &MatrixSource| {
            let matrix = read_matrix(checkpoint, source)?;
            progress(matrix.bytes());
            Ok(matrix)
        };
        let mut layers = Vec::with_capacity(inventory.layers.len());
        for layer in &inventory.layers {
            let MlpSource::Sparse(sparse) = &layer.mlp else {
                layers.push(None);
                continue;
            };
            let held = &sparse.experts[usize::from(range.start)..usize::from(range.end)];
            let experts = held.iter().map(|source| {
                Ok(Expert { gate: read(&source.gate)?, up: read(&source.up)?, down: read(&source.down)? })
            });
            layers.push(Some(experts.collect::<Result<_, CheckpointError>>()?));
        }
        Ok(Self { range, hidden: config.hidden_size, layers, scratch: Scratch::default() })
    }

    fn layer(&self, layer: LayerId) -> Result<&[Expert], BankError> {
        let held = self.layers.get(usize::from(layer.0)).and_then(Option::as_deref);
        held.ok_or(BankError::UnknownLayer { layer })
    }

    /// One (expert, row, slot) per slot, in slot order, if the batch is whole.
    fn slots(&self, batch: &ExpertBatch<'_>) -> Result<Vec<Slot>, BankError> {
        let malformed = |what: String| Err(BankError::Malformed(what));
        let ExpertBatch { hidden, counts, experts, weights, rows, activation, .. } = *batch;
        if hidden != self.hidden {
            return malformed(format!("rows have {hidden} elements, the model {}", self.hidden));
        }
        if rows.len() != counts.len() * hidden * activation.size() {
            let wanted = counts.len();
            return malformed(format!(
                "{} bytes are not {wanted} rows of {hidden} {activation:?}",
                rows.len()
            ));
        }
        if let Some(row) = counts.iter().position(|count| *count == 0) {
            return malformed(format!("row {row} has no expert"));
        }
        let total: usize = counts.iter().map(|count| usize::from(*count)).sum();
        if total != experts.len() || total != weights.len() {
            let (ids, weights) = (experts.len(), weights.len());
            return malformed(format!("{total} slots, but {ids} expert ids and {weights} weights"));
        }
        if let Some(slot) = weights.iter().position(|weight| !weight.is_finite()) {
            return malformed(format!("weight of slot {slot} is {}", weights[slot]));
        }
        let row_of = counts.iter().enumerate().flat_map(|(row, n)| std::iter::repeat_n(row, usize::from(*n)));
        let slots = experts.iter().zip(row_of).enumerate().map(|(slot, (expert, row))| {
            match self.range.local(*expert) {
                Some(expert) => Ok(Slot { expert, row, slot }),
                None => Err(BankError::ForeignExpert { expert: *expert, range: self.range }),
            }
        });
        slots.collect()
    }
}

impl ExpertBank for ReferenceBank {
    fn range(&self) -> ExpertRange {
        self.range
    }

    fn backend(&self) -> &'static str {
        "reference"
    }

    fn resident_bytes(&self) -> u64 {
        let experts = self.layers.iter().flatten().flatten();
        experts.map(|expert| expert.gate.bytes() + expert.up.bytes() + expert.down.bytes()).sum()
    }

    fn run(&mut self, batch: &ExpertBatch<'_>, out: &mut Vec<f32>) -> Result<(), BankError> {
        out.clear();
        self.layer(batch.layer)?;
        let mut slots = self.slots(batch)?;
        let mut scratch = std::mem::take(&mut self.scratch);
        let rows = decode_rows(batch);
        let hidden = self.hidden;
        let mut results = vec![0.0; slots.len() * hidden];

        slots.sort_by_key(|slot| slot.expert);
        let experts = self.layer(batch.layer)?;
        for same in slots.chunk_by(|a, b| a.expert == b.expert) {
            let expert = &experts[same[0].expert];
            scratch.decode(expert);
            for Slot { row, slot, .. } in same {
                let x = &rows[row * hidden..][..hidden];
                scratch.apply(expert, x, &mut results[slot * hidden..][..hidden]);
            }
        }

        out.resize(batch.counts.len() * hidden, 0.0);
        let mut weighted = batch.weights.iter().zip(results.chunks_exact(hidden));
        for (count, sum) in batch.counts.iter().zip(out.chunks_exact_mut(hidden)) {
            for (weight, y) in weighted.by_ref().take(usize::from(*count)) {
                for (sum, y) in sum.iter_mut().zip(y) {
                    *sum += weight * y;
                }
            }
        }
        self.scratch = scratch;
        Ok(())
    }
}

/// A row's use of an expert.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Within the range.
    expert: usize,
    row: usize,
    /// Position in the batch.
    slot: usize,
}

impl Scratch {
    fn decode(&mut self, expert: &Expert) {
        for (matrix, out) in
            [(&expert.gate, &mut self.gate), (&expert.up, &mut self.up), (&expert.down, &mut self.down)]
        {
            out.resize(matrix.rows * matrix.cols, 0.0);
            decode_unscaled(matrix, out);
        }
    }

    /// `down(silu(gate x) · up x)` of the decoded expert.
    fn apply(&mut self, expert: &Expert, x: &[f32], out: &mut [f32]) {
        let Self { gate, up, down, inner } = self;
        let pairs = gate.chunks_exact(x.len()).zip(up.chunks_exact(x.len()));
        inner.clear();
        inner.extend(pairs.map(|(gate, up)| {
            let (g, u) = (dot(gate, x) * expert.gate.multiplier, dot(up, x) * expert.up.multiplier);
            g / (1.0 + (-g).exp()) * u
        }));
        for (row, out) in down.chunks_exact(inner.len()).zip(out) {
            *out = dot(row, inner) * expert.down.multiplier;
        }
    }
}

fn decode_rows(batch: &ExpertBatch<'_>) -> Vec<f32> {
    match batch.activation {
        ActivationType::F32 => {
            batch.rows.as_chunks::<4>().0.iter().map(|raw| f32::from_le_bytes(*raw)).collect()
        }
        ActivationType::Bf16 => {
            batch.rows.as_chunks::<2>().0.iter().map(|raw| bf16::from_le_bytes(*raw).to_f32()).collect()
        }
    }
}

/// Eight f64 lanes: independent, so that the additions overlap.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0_f64; 8];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    for (a, b) in a.iter().zip(b) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += f64::from(*a) * f64::from(*b);
        }
    }
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    (lanes.iter().sum::<f64>() + rest) as f32
}

#[cfg(test)]
#[path = "reference_tests.rs"]
mod tests;
