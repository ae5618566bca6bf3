//! A bank that gives rows back, so that what is measured is the exchange and not the experts.

use half::bf16;
use laguna_shared::compute::{ActivationType, BankError, ExpertBank, ExpertBatch};
use laguna_shared::ids::ExpertRange;
use laguna_shared::wire::Welcome;

use super::payload::{HIDDEN, LAYER};
use laguna_shared::ids::ShardId;

/// Every expert is the identity: a row's sum is the row times its weights' sum.
#[derive(Clone, Copy, Debug)]
pub struct EchoBank {
    /// Experts held.
    pub range: ExpertRange,
}

impl EchoBank {
    /// What a worker with this bank says of itself.
    pub fn welcome(&self, shard: ShardId) -> Welcome {
        Welcome::of(self, shard, [0; 32], HIDDEN as u32, vec![LAYER])
    }
}

impl ExpertBank for EchoBank {
    fn range(&self) -> ExpertRange {
        self.range
    }

    fn backend(&self) -> &'static str {
        "echo"
    }

    fn resident_bytes(&self) -> u64 {
        0
    }

    fn run(&mut self, batch: &ExpertBatch<'_>, out: &mut Vec<f32>) -> Result<(), BankError> {
        out.clear();
        batch.check(HIDDEN)?;
        let mut weights = batch.weights;
        for (row, count) in batch.rows.chunks_exact(HIDDEN * batch.activation.size()).zip(batch.counts) {
            let (own, rest) = weights.split_at(usize::from(*count));
            weights = rest;
            let weight: f32 = own.iter().sum();
            match batch.activation {
                ActivationType::Bf16 => out.extend(
                    row.as_chunks::<2>().0.iter().map(|raw| weight * bf16::from_le_bytes(*raw).to_f32()),
                ),
                ActivationType::F32 => {
                    out.extend(row.as_chunks::<4>().0.iter().map(|raw| weight * f32::from_le_bytes(*raw)));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::payload::{Payload, range_of};

    #[test]
    fn rows_come_back_weighted() {
        let mut sums = Vec::new();
        for payload in [Payload::Decode, Payload::Bulk] {
            let rows = payload.rows_for(0, 2);
            EchoBank { range: range_of(0, 2) }.run(&rows.batch(), &mut sums).unwrap();
            assert_eq!(sums.len(), rows.batch().counts.len() * HIDDEN);
            // Five slots of weight 0.1; element n is (n % 251) / 256.
            assert!((sums[128] - 0.25).abs() < 1e-6, "{}", sums[128]);
        }
    }
}
