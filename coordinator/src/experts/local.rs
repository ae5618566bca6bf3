//! A shard that the coordinator's own process holds: the same bank a worker has, without a wire.

use laguna_shared::compute::ExpertBank;
use laguna_shared::ids::ShardId;

use super::ExpertsError;
use super::RoutedRows;
use super::scatter::Group;

/// The local shard and its last partial sums.
pub struct LocalShard {
    shard: ShardId,
    bank: Box<dyn ExpertBank>,
    sums: Vec<f32>,
}

impl LocalShard {
    /// A shard held by `bank`.
    pub fn new(shard: ShardId, bank: Box<dyn ExpertBank>) -> Self {
        Self { shard, bank, sums: Vec::new() }
    }

    /// Its number.
    pub const fn shard(&self) -> ShardId {
        self.shard
    }

    /// Its experts.
    pub fn bank(&self) -> &dyn ExpertBank {
        self.bank.as_ref()
    }

    /// Computes the partial sums of a group's rows.
    ///
    /// # Errors
    /// What the bank says, with the shard's number.
    pub fn run(&mut self, group: &Group, routed: &RoutedRows) -> Result<(), ExpertsError> {
        self.bank
            .run(&group.batch(routed), &mut self.sums)
            .map_err(|source| ExpertsError::Local { shard: self.shard, source })
    }

    /// The partial sums computed last, `[rows, hidden]`.
    pub fn sums(&self) -> &[f32] {
        &self.sums
    }
}
