//! The finished plan: which shard holds which experts, and what each node will hold in bytes.

use crate::ids::{ExpertId, ExpertRange, ShardId};
use crate::memory::NodeMemory;
use crate::node::NodeName;
use crate::plan::error::PlanError;

/// Who holds which experts. Every expert below [`Plan::num_experts`] has at least one holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    shards: Vec<ShardPlan>,
    nodes: Vec<NodeMemory>,
    owners: Vec<ShardId>,
}

/// One shard of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardPlan {
    /// Its number.
    pub id: ShardId,
    /// Who holds it.
    pub node: NodeName,
    /// The experts it holds in every sparse layer; never empty.
    pub range: ExpertRange,
}

impl Plan {
    /// `shards` shards of equal size, the first ones larger by one where they do not divide evenly, all within the
    /// coordinator's own process: what `--loopback=N` runs. Accounts for no bytes.
    ///
    /// # Errors
    ///
    /// [`PlanError::NoShards`] for none, [`PlanError::TooManyShards`] for more than `num_experts`.
    pub fn even(num_experts: u16, shards: usize) -> Result<Self, PlanError> {
        if num_experts == 0 {
            return Err(PlanError::NoExperts);
        }
        let count = match u16::try_from(shards) {
            Ok(0) => return Err(PlanError::NoShards),
            Ok(count) if count <= num_experts => count,
            _ => return Err(PlanError::TooManyShards { shards, experts: usize::from(num_experts) }),
        };
        let (each, larger) = (num_experts / count, num_experts % count);
        let start = |shard: u16| shard * each + shard.min(larger);
        let shards = (0..count).map(|shard| ShardPlan {
            id: ShardId(shard),
            node: NodeName::Coordinator,
            range: ExpertRange::new(start(shard), start(shard + 1)),
        });
        Self::new(num_experts, shards.collect(), Vec::new()).map_err(PlanError::Unowned)
    }

    /// `Err` holds the experts that none of `shards` holds.
    pub(super) fn new(
        num_experts: u16,
        mut shards: Vec<ShardPlan>,
        nodes: Vec<NodeMemory>,
    ) -> Result<Self, Vec<ExpertId>> {
        shards.sort_by_key(|shard| shard.id);
        let mut owners = vec![None; usize::from(num_experts)];
        // From the last to the first, so that the lowest number stays.
        for shard in shards.iter().rev() {
            let end = usize::from(shard.range.end.min(num_experts));
            if let Some(held) = owners.get_mut(usize::from(shard.range.start)..end) {
                held.fill(Some(shard.id));
            }
        }
        let unowned: Vec<_> = (0..num_experts).zip(&owners).filter(|(_, owner)| owner.is_none()).collect();
        if !unowned.is_empty() {
            return Err(unowned.into_iter().map(|(expert, _)| ExpertId(expert)).collect());
        }
        let owners = owners.into_iter().flatten().collect();
        Ok(Self { shards, nodes, owners })
    }

    /// Routed experts in every sparse layer.
    pub fn num_experts(&self) -> usize {
        self.owners.len()
    }

    /// Every shard, ascending by number.
    pub fn shards(&self) -> &[ShardPlan] {
        &self.shards
    }

    /// The shard of this number.
    pub fn shard(&self, id: ShardId) -> Option<&ShardPlan> {
        self.shards.iter().find(|shard| shard.id == id)
    }

    /// Every process and the bytes it will hold, the coordinator first; empty for [`Plan::even`].
    pub fn nodes(&self) -> &[NodeMemory] {
        &self.nodes
    }

    /// The shard that computes `expert` as long as all nodes live: the lowest-numbered holder. `None` only for
    /// an expert that the model does not have.
    pub fn owner(&self, expert: ExpertId) -> Option<ShardId> {
        self.owners.get(usize::from(expert.0)).copied()
    }

    /// Every shard that holds `expert`, ascending: the owner, then those that can stand in for it.
    pub fn holders(&self, expert: ExpertId) -> impl Iterator<Item = ShardId> {
        self.shards.iter().filter(move |shard| shard.range.contains(expert)).map(|shard| shard.id)
    }
}
