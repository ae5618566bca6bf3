//! Why there is no plan, with every number that went into it.

use std::fmt;

use crate::fault::Faults;
use crate::ids::ExpertId;
use crate::memory::{Bytes, NodeMemory};

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The model is dense.
    #[error("the model has 0 routed experts: nothing to spread over shards")]
    NoExperts,
    /// Nobody to hold them.
    #[error("0 shards cannot hold any expert: ask for at least 1")]
    NoShards,
    /// Some would hold nothing.
    #[error("{shards} shards for {experts} experts: each needs at least 1, so ask for at most {experts}")]
    TooManyShards {
        /// Shards asked for.
        shards: usize,
        /// Experts there are for them.
        experts: usize,
    },
    /// The ranges in the file do not fit this model; by line.
    #[error(transparent)]
    Faulty(Faults),
    /// Experts that no shard holds.
    #[error("no shard holds {} of the experts, the first of them {}", .0.len(), .0.first().map_or(0, |expert| expert.0))]
    Unowned(Vec<ExpertId>),
    /// The model is larger than the budgets.
    #[error(transparent)]
    DoesNotFit(Box<Shortage>),
}

/// A model that the memory budgets do not hold. Displays one line a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Routed experts in every sparse layer.
    pub num_experts: u16,
    /// One expert, summed over the sparse layers.
    pub expert: Bytes,
    /// Tokens the KV cache was planned for.
    pub context: u64,
    /// Every node. `range` is `None`, and `experts` zero, where the file leaves the range to the plan.
    pub nodes: Vec<NodeMemory>,
    /// Nodes in `nodes`, by index, that hold a shard whose range is left to the plan.
    pub unranged: Vec<usize>,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.expert.saturating_mul(u64::from(self.num_experts));
        let trunk: Bytes = self.nodes.iter().map(|node| node.trunk.saturating_add(node.kv)).sum();
        let budgets: Vec<_> = self.nodes.iter().filter_map(|node| node.budget).collect();
        let listed: Vec<_> = budgets.iter().map(ToString::to_string).collect();
        write!(
            f,
            "the model does not fit: its {} experts need {all} and the rest {trunk}, {} in all beside margins; \
             budgets allow {} = {}",
            self.num_experts,
            all.saturating_add(trunk),
            listed.join(" + "),
            budgets.into_iter().sum::<Bytes>(),
        )?;
        for (index, node) in self.nodes.iter().enumerate() {
            write!(f, "\n  {}: ", node.node)?;
            if node.trunk > Bytes(0) || node.kv > Bytes(0) {
                write!(f, "trunk {} + KV for {} tokens {} + ", node.trunk, self.context, node.kv)?;
            }
            if let Some(range) = node.range {
                write!(f, "experts {range} {} + ", node.experts)?;
            }
            write!(f, "margin {} = {}", node.margin(), node.needs())?;
            match node.budget {
                None => f.write_str(", no budget")?,
                Some(budget) => write!(f, ", budget {budget}")?,
            }
            if let Some(short) = node.short_by() {
                write!(f, ": {short} short")?;
            } else if self.unranged.contains(&index)
                && let Some(room) = node.room()
            {
                write!(
                    f,
                    ": room for {room} of experts, {} of them",
                    room.0.checked_div(self.expert.0).unwrap_or(0)
                )?;
            }
        }
        f.write_str("\n  raise a budget, add a worker, or plan for a shorter context")
    }
}

impl std::error::Error for Shortage {}
