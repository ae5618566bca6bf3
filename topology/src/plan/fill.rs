//! Keeps the ranges the file fixes, and places the others where experts are left, in shard order.

use crate::fault::{Fault, Faults};
use crate::ids::ExpertRange;
use crate::memory::{Bytes, NodeMemory};
use crate::node::NodeName;
use crate::plan::error::{PlanError, Shortage};
use crate::plan::layout::{Plan, ShardPlan};
use crate::plan::model::ModelBytes;
use crate::plan::split::{Room, sizes_over_gaps};
use crate::topology::{Shard, Topology};

/// Places every expert of the model on the shards of the topology.
///
/// Ranges in the file stay as they are, overlapping ones too. Shards without a range share what nobody holds: one
/// contiguous range each, ascending with the shard number, at least one expert each, sized by the budgets after
/// trunk, KV cache and margin are taken off. Where all of them have a budget, sizes are in proportion to what it
/// leaves; where none has, they are even; where some have, they are even up to what the budgets leave.
///
/// # Errors
///
/// [`PlanError::Faulty`] with every range that does not fit this model, by line; [`PlanError::DoesNotFit`] with
/// every node's account; [`PlanError::NoExperts`], [`PlanError::NoShards`] and [`PlanError::TooManyShards`] as named.
pub fn plan(topology: &Topology, model: &ModelBytes) -> Result<Plan, PlanError> {
    if model.num_experts == 0 {
        return Err(PlanError::NoExperts);
    }
    let shards: Vec<Shard<'_>> = topology.shards().collect();
    if shards.is_empty() {
        return Err(PlanError::NoShards);
    }
    let gaps = gaps(model.num_experts, &shards);
    let faults = faults(model.num_experts, &shards, &gaps);
    if !faults.is_empty() {
        return Err(PlanError::Faulty(Faults::new(topology.file.clone(), faults)));
    }
    let unranged: Vec<&Shard<'_>> = shards.iter().filter(|shard| shard.node.experts().is_none()).collect();
    let left: usize = gaps.iter().map(|gap| gap.len()).sum();
    if unranged.len() > left {
        return Err(PlanError::TooManyShards { shards: unranged.len(), experts: left });
    }

    let fixed = accounts(topology, model, |shard| shard.node.experts());
    let rooms: Vec<Room> = unranged.iter().map(|shard| room(&fixed, shard, model)).collect();
    let lengths: Vec<u64> = gaps.iter().map(|gap| gap.len() as u64).collect();
    let placed = match sizes_over_gaps(&lengths, &rooms) {
        Some((sizes, shards_in_gap)) => place(&gaps, &sizes, &shards_in_gap),
        None => return Err(shortage(topology, model, fixed, &unranged)),
    };
    let range = |shard: &Shard<'_>| {
        let place = unranged.iter().position(|other| other.id == shard.id);
        shard.node.experts().or_else(|| placed.get(place?).copied())
    };
    let nodes = accounts(topology, model, range);
    if nodes.iter().any(|node| node.short_by().is_some()) {
        return Err(shortage(topology, model, fixed, &unranged));
    }
    let planned = shards
        .iter()
        .filter_map(|shard| Some(ShardPlan { id: shard.id, node: shard.node.name(), range: range(shard)? }));
    Plan::new(model.num_experts, planned.collect(), nodes).map_err(PlanError::Unowned)
}

/// What no range in the file holds, ascending.
fn gaps(num_experts: u16, shards: &[Shard<'_>]) -> Vec<ExpertRange> {
    let mut fixed: Vec<_> = shards.iter().filter_map(|shard| shard.node.experts()).collect();
    fixed.push(ExpertRange::new(num_experts, num_experts));
    fixed.sort_by_key(|range| range.start);
    let mut gaps = Vec::new();
    let mut free = 0;
    for range in fixed {
        let gap = ExpertRange::new(free, range.start.min(num_experts));
        if !gap.is_empty() {
            gaps.push(gap);
        }
        free = free.max(range.end);
    }
    gaps
}

/// Every range that does not fit a model of so many experts.
fn faults(num_experts: u16, shards: &[Shard<'_>], gaps: &[ExpertRange]) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut fault = |shard: &Shard<'_>, message| faults.push(Fault { line: shard.node.line(), message });
    for shard in shards {
        let Some(range) = shard.node.experts().filter(|range| range.end > num_experts) else { continue };
        let advice = match range.start < num_experts {
            true => format!("write \"{}..{num_experts}\"", range.start),
            false => format!("write a range below {num_experts}, or leave `experts` out"),
        };
        fault(
            shard,
            format!(
                "`experts` of {} is \"{range}\" and the model has {num_experts} experts: {advice}",
                shard.id
            ),
        );
    }
    let list =
        |ranges: &[ExpertRange]| ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
    let unranged: Vec<_> = shards.iter().filter(|shard| shard.node.experts().is_none()).collect();
    match (unranged.as_slice(), gaps) {
        ([], []) => {}
        ([], gaps) => {
            // The shard that ends where the first gap begins is the one to extend, if there is one.
            let start = gaps.first().map_or(0, |gap| gap.start);
            let ends = |shard: &&Shard<'_>| shard.node.experts().is_some_and(|range| range.end == start);
            if let Some(shard) = shards.iter().find(ends).or_else(|| shards.first()) {
                let advice = "extend a range, or leave `experts` out of one shard to have it planned";
                fault(shard, format!("no shard holds experts {}: {advice}", list(gaps)));
            }
        }
        (unranged, []) => {
            for shard in unranged {
                let advice = format!(
                    "give it the range it should hold a second time, as in experts = \"0..{num_experts}\", or remove it"
                );
                fault(
                    shard,
                    format!(
                        "{} has no `experts` and other shards hold all {num_experts}: {advice}",
                        shard.id
                    ),
                );
            }
        }
        (unranged, gaps) if unranged.len() < gaps.len() => {
            let count = unranged.len();
            let advice = "a shard holds one range, so extend ranges around them until no more gaps than shards are left";
            for shard in unranged {
                let message = format!(
                    "experts {} are left, and shards without `experts`: {count}; {advice}",
                    list(gaps)
                );
                fault(shard, message);
            }
        }
        _ => {}
    }
    faults
}

/// Every process with what it holds, the coordinator first.
fn accounts(
    topology: &Topology,
    model: &ModelBytes,
    range: impl Fn(&Shard<'_>) -> Option<ExpertRange>,
) -> Vec<NodeMemory> {
    let shards: Vec<_> = topology.shards().collect();
    let account = |node| {
        let shard = shards.iter().find(|shard| shard.node.name() == node);
        let range = shard.and_then(&range);
        let experts = range.map_or(Bytes(0), |range| model.experts(range));
        match node {
            NodeName::Coordinator => NodeMemory {
                node,
                range,
                trunk: model.trunk,
                experts,
                kv: model.kv(topology.coordinator.planned_context()),
                budget: topology.coordinator.memory,
            },
            NodeName::Worker(_) => {
                let budget = shard.and_then(|shard| shard.node.memory());
                NodeMemory { node, range, trunk: Bytes(0), experts, kv: Bytes(0), budget }
            }
        }
    };
    topology.nodes().map(account).collect()
}

/// Experts that the node's budget leaves room for.
fn room(accounts: &[NodeMemory], shard: &Shard<'_>, model: &ModelBytes) -> Room {
    let account = accounts.iter().find(|account| account.node == shard.node.name())?;
    account.room()?.0.checked_div(model.expert().0)
}

/// Lays ranges of these sizes into the gaps, in order.
fn place(gaps: &[ExpertRange], sizes: &[u64], shards_in_gap: &[usize]) -> Vec<ExpertRange> {
    let mut sizes = sizes.iter();
    let mut placed = Vec::new();
    for (gap, &count) in gaps.iter().zip(shards_in_gap) {
        let mut start = gap.start;
        for &size in sizes.by_ref().take(count) {
            // The sizes of a gap add up to its length, so the end is within it.
            let end = start + size as u16;
            placed.push(ExpertRange::new(start, end));
            start = end;
        }
    }
    placed
}

fn shortage(
    topology: &Topology,
    model: &ModelBytes,
    nodes: Vec<NodeMemory>,
    unranged: &[&Shard<'_>],
) -> PlanError {
    let without_range = |node: &NodeMemory| unranged.iter().any(|shard| shard.node.name() == node.node);
    let unranged = (0..nodes.len()).filter(|index| nodes.get(*index).is_some_and(without_range)).collect();
    PlanError::DoesNotFit(Box::new(Shortage {
        num_experts: model.num_experts,
        expert: model.expert(),
        context: topology.coordinator.planned_context(),
        nodes,
        unranged,
    }))
}
