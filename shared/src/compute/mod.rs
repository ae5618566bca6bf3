//! Routed experts as a function: rows in, one weighted sum per row out.
//!
//! - [`reference`](mod@reference): plain Rust, f32; the oracle
//! - [`cpu`]: SIMD over the checkpoint's own bytes; the default on Linux
//! - [`mlx`]: MLX's gathered products; Metal on a Mac

pub mod cpu;
pub mod mlx;
pub mod reference;

use crate::ids::{ExpertId, ExpertRange, LayerId};
use crate::weights::CheckpointError;

/// Element type of activations, in memory and on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActivationType {
    /// bfloat16, little-endian.
    Bf16,
    /// IEEE single, little-endian.
    F32,
}

impl ActivationType {
    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }
}

/// Rows of one sparse layer and the experts they go to: a borrowed view, the same for local and remote shards.
#[derive(Clone, Copy, Debug)]
pub struct ExpertBatch<'a> {
    /// Decoder layer.
    pub layer: LayerId,
    /// Element type of `rows`.
    pub activation: ActivationType,
    /// Elements per row.
    pub hidden: usize,
    /// Experts of each row, `[rows]`; row r's slots follow row r-1's in `experts` and `weights`. Never 0.
    pub counts: &'a [u16],
    /// Global expert ids, `[slots]`.
    pub experts: &'a [ExpertId],
    /// Router weights, `[slots]`.
    pub weights: &'a [f32],
    /// `[rows, hidden]`, row-major, little-endian.
    pub rows: &'a [u8],
}

/// A range of routed experts, in every sparse layer, that can be applied to rows.
pub trait ExpertBank: Send {
    /// Experts held.
    fn range(&self) -> ExpertRange;

    /// Name of the implementation as `--bank` takes it, and what it runs on where there is a choice.
    fn backend(&self) -> &str;

    /// Bytes of weights resident.
    fn resident_bytes(&self) -> u64;

    /// Writes `Σ weightᵢ · expertᵢ(x)` for each row to `out`, `[rows, hidden]`, summed in slot order.
    ///
    /// `out` is cleared first. Same batch, same bits.
    fn run(&mut self, batch: &ExpertBatch<'_>, out: &mut Vec<f32>) -> Result<(), BankError>;
}

/// Why a bank could not answer.
#[derive(Debug, thiserror::Error)]
pub enum BankError {
    /// The batch names a layer without routed experts.
    #[error("{layer} has no routed experts here")]
    UnknownLayer {
        /// As asked.
        layer: LayerId,
    },
    /// The batch names an expert of another shard.
    #[error("{expert} is outside this shard's range {range}")]
    ForeignExpert {
        /// As asked.
        expert: ExpertId,
        /// As held.
        range: ExpertRange,
    },
    /// The batch contradicts itself or the model.
    #[error("malformed batch: {0}")]
    Malformed(String),
    /// The backend failed.
    #[error("{backend} backend: {message}")]
    Backend {
        /// Name of the implementation.
        backend: &'static str,
        /// What it said.
        message: String,
    },
}

impl ExpertBatch<'_> {
    /// Checks that the slices agree with each other and with rows of `hidden` elements.
    ///
    /// # Errors
    /// [`BankError::Malformed`], with both numbers.
    pub fn check(&self, hidden: usize) -> Result<(), BankError> {
        let malformed = |what: String| Err(BankError::Malformed(what));
        if self.hidden != hidden {
            return malformed(format!(
                "rows of {} elements, but the model's hidden size is {hidden}",
                self.hidden
            ));
        }
        let slots: usize = self.counts.iter().map(|&c| usize::from(c)).sum();
        if self.counts.contains(&0) {
            return malformed("a row without experts".into());
        }
        if slots != self.experts.len() || slots != self.weights.len() {
            return malformed(format!(
                "{slots} slots counted, {} experts and {} weights given",
                self.experts.len(),
                self.weights.len()
            ));
        }
        let bytes = self.counts.len().checked_mul(hidden).and_then(|n| n.checked_mul(self.activation.size()));
        if bytes != Some(self.rows.len()) {
            return malformed(format!(
                "{} bytes for {} rows of {hidden}",
                self.rows.len(),
                self.counts.len()
            ));
        }
        Ok(())
    }
}

/// Why a bank could not be filled.
#[derive(Debug, thiserror::Error)]
pub enum BankLoadError {
    /// A slice could not be read, or the experts of a layer do not form one stack.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The backend refused a tensor or ran out of memory.
    #[error("{backend} backend, at {tensor}: {message}")]
    Backend {
        /// Name of the implementation.
        backend: &'static str,
        /// First tensor of the stack.
        tensor: String,
        /// What it said.
        message: String,
    },
    /// The range does not lie within the model's experts, or holds none.
    #[error("experts {range} cannot be held: the model has {experts} routed experts per layer")]
    BadRange {
        /// As asked.
        range: ExpertRange,
        /// As the checkpoint has.
        experts: usize,
    },
}
