//! Plans: every expert held, budgets kept, ranges of the file untouched, and all the numbers when it does not fit.

use std::path::Path;

use laguna_topology::{
    Bytes, ExpertId, ExpertRange, LayerBytes, LayerId, ModelBytes, NodeName, Plan, PlanError, ShardId,
    Topology, plan,
};
use proptest::prelude::*;

/// A model of so many experts, `expert` bytes each over two layers of different formats.
fn model(num_experts: u16, expert: u64) -> ModelBytes {
    let layers = [(1, expert / 4), (2, expert - expert / 4)];
    ModelBytes {
        num_experts,
        layers: layers.map(|(id, bytes)| LayerBytes { layer: LayerId(id), expert: Bytes(bytes) }).to_vec(),
        trunk: Bytes(10_000_000),
        kv_per_token: Bytes(1_000),
        kv_fixed: Bytes(5_000),
    }
}

/// A coordinator with a shard, if `own` says so, and one worker for each of `workers`; lines of their tables.
fn topology(own: Option<&str>, workers: &[&str]) -> Topology {
    let mut text = format!("model = \"m\"\n[coordinator]\ncontext = 1000\n{}\n", own.unwrap_or(""));
    for (index, lines) in workers.iter().enumerate() {
        text += &format!("[[worker]]\naddress = \"w:{}\"\n{lines}\n", index + 1);
    }
    Topology::parse(&text, Path::new("")).expect("sound")
}

fn ranges(plan: &Plan) -> Vec<String> {
    plan.shards().iter().map(|shard| format!("{}: {}", shard.id.0, shard.range)).collect()
}

#[test]
fn even_without_budgets() {
    let plan = plan(&topology(None, &["shard = 5", "shard = 1", "shard = 3"]), &model(8, 100)).unwrap();
    assert_eq!(ranges(&plan), ["1: 0..3", "3: 3..6", "5: 6..8"]);
    assert_eq!(plan.owner(ExpertId(6)), Some(ShardId(5)));
    assert_eq!(plan.owner(ExpertId(8)), None);
    assert_eq!(plan.shard(ShardId(3)).unwrap().node, NodeName::Worker(ShardId(3)));
    let needs: Vec<_> = plan.nodes().iter().map(|node| (node.node.to_string(), node.held().0)).collect();
    let expected = [("coordinator", 11_005_000), ("shard-5", 200), ("shard-1", 300), ("shard-3", 300)];
    assert_eq!(needs, expected.map(|(node, held)| (node.to_string(), held)));
}

#[test]
fn loopback_needs_no_file() {
    assert_eq!(ranges(&Plan::even(8, 3).unwrap()), ["0: 0..3", "1: 3..6", "2: 6..8"]);
    assert_eq!(ranges(&Plan::even(2, 1).unwrap()), ["0: 0..2"]);
    assert_eq!(Plan::even(u16::MAX, usize::from(u16::MAX)).unwrap().shards().len(), usize::from(u16::MAX));
    assert_eq!(Plan::even(8, 0), Err(PlanError::NoShards));
    assert_eq!(Plan::even(0, 1), Err(PlanError::NoExperts));
    let error = Plan::even(8, 9).unwrap_err();
    assert_eq!(error.to_string(), "9 shards for 8 experts: each needs at least 1, so ask for at most 8");
    assert!(Plan::even(8, 1 << 40).is_err());
}

#[test]
fn fixed_ranges_stay_and_gaps_are_filled_in_order() {
    let workers =
        ["shard = 0\nexperts = \"10..20\"", "shard = 1", "shard = 2", "shard = 3\nexperts = \"15..25\""];
    let plan = plan(&topology(None, &workers), &model(32, 100)).unwrap();
    assert_eq!(ranges(&plan), ["0: 10..20", "1: 0..10", "2: 25..32", "3: 15..25"]);
    assert_eq!(plan.owner(ExpertId(17)), Some(ShardId(0)));
    assert_eq!(plan.holders(ExpertId(17)).collect::<Vec<_>>(), [ShardId(0), ShardId(3)]);
    assert_eq!(plan.owner(ExpertId(22)), Some(ShardId(3)));
}

#[test]
fn a_range_within_another_opens_no_gap() {
    let workers = ["shard = 0\nexperts = \"0..20\"", "shard = 1\nexperts = \"5..10\"", "shard = 2"];
    let plan = plan(&topology(None, &workers), &model(32, 100)).unwrap();
    assert_eq!(ranges(&plan), ["0: 0..20", "1: 5..10", "2: 20..32"]);
}

#[test]
fn a_coordinator_can_hold_everything() {
    let plan = plan(&topology(Some("shard = 4"), &[]), &model(8, 100)).unwrap();
    assert_eq!(ranges(&plan), ["4: 0..8"]);
    assert_eq!(plan.shards()[0].node, NodeName::Coordinator);
}

#[test]
fn budgets_size_the_shards() {
    // 8 experts of 10 MB. The coordinator's trunk and KV take 11 MB of its 66 MB, the margin 2 MB: 5 experts.
    let workers = ["shard = 1\nmemory = \"52 MB\""];
    let uneven =
        plan(&topology(Some("shard = 0\nmemory = \"66 MB\""), &workers), &model(8, 10_000_000)).unwrap();
    assert_eq!(ranges(&uneven), ["0: 0..4", "1: 4..8"]);
    let workers = ["shard = 1\nmemory = \"104 MB\""];
    let uneven =
        plan(&topology(Some("shard = 0\nmemory = \"45 MB\""), &workers), &model(8, 10_000_000)).unwrap();
    assert_eq!(ranges(&uneven), ["0: 0..2", "1: 2..8"]);
    assert!(uneven.nodes().iter().all(|node| node.short_by().is_none() && node.range.is_some()));
    // A node without a budget takes what the others cannot.
    let mixed = plan(&topology(Some("shard = 0\nmemory = \"25 MB\""), &["shard = 1"]), &model(8, 10_000_000))
        .unwrap();
    assert_eq!(ranges(&mixed), ["0: 0..1", "1: 1..8"]);
}

#[test]
fn what_does_not_fit_says_so_with_all_numbers() {
    let workers = ["shard = 1\nmemory = \"40 MB\"", "shard = 2\nmemory = \"5 MB\"\nexperts = \"7..8\""];
    let topology = topology(Some("shard = 0\nmemory = \"30 MB\""), &workers);
    let error = plan(&topology, &model(8, 10_000_000)).unwrap_err();
    let expected = "\
the model does not fit: its 8 experts need 80.0 MB and the rest 11.0 MB, 91.0 MB in all beside margins; \
budgets allow 30.0 MB + 40.0 MB + 5.0 MB = 75.0 MB
  coordinator: trunk 10.0 MB + KV for 1000 tokens 1.0 MB + margin 343.9 kB = 11.3 MB, budget 30.0 MB: \
room for 18.1 MB of experts, 1 of them
  shard-1: margin 0 B = 0 B, budget 40.0 MB: room for 38.8 MB of experts, 3 of them
  shard-2: experts 7..8 10.0 MB + margin 312.5 kB = 10.3 MB, budget 5.0 MB: 5.3 MB short
  raise a budget, add a worker, or plan for a shorter context";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_coordinator_without_a_shard_must_fit_too() {
    let error = plan(&topology(Some("memory = \"11 MB\""), &["shard = 0"]), &model(8, 100)).unwrap_err();
    assert!(error.to_string().contains("11.3 MB, budget 11.0 MB: 348.9 kB short"), "{error}");
}

#[test]
fn ranges_that_do_not_suit_the_model_are_named_by_line() {
    let faults = |own: Option<&str>, workers: &[&str], experts| match plan(
        &topology(own, workers),
        &model(experts, 100),
    ) {
        Err(PlanError::Faulty(faults)) => faults.to_string(),
        other => panic!("{other:?}"),
    };
    let shown = faults(None, &["shard = 0\nexperts = \"0..12\"", "shard = 1\nexperts = \"9..10\""], 8);
    let expected = "line 5: `experts` of shard 0 is \"0..12\" and the model has 8 experts: write \"0..8\"\n\
                    line 9: `experts` of shard 1 is \"9..10\" and the model has 8 experts: write a range below 8, or leave `experts` out";
    assert_eq!(shown, expected);
    let shown = faults(None, &["shard = 0\nexperts = \"0..3\"", "shard = 1\nexperts = \"5..7\""], 8);
    assert!(shown.starts_with("line 5: no shard holds experts 3..5 and 7..8: extend"), "{shown}");
    let shown = faults(Some("shard = 9"), &["shard = 0\nexperts = \"0..8\""], 8);
    assert!(shown.starts_with("line 2: shard 9 has no `experts` and other shards hold all 8"), "{shown}");
    let shown = faults(Some("shard = 9"), &["shard = 0\nexperts = \"2..4\""], 8);
    assert!(
        shown.starts_with("line 2: experts 0..2 and 4..8 are left, and shards without `experts`: 1"),
        "{shown}"
    );
}

#[test]
fn more_shards_than_experts() {
    let three = topology(None, &["shard = 0", "shard = 1", "shard = 2"]);
    assert_eq!(plan(&three, &model(2, 100)), Err(PlanError::TooManyShards { shards: 3, experts: 2 }));
    assert_eq!(plan(&three, &model(0, 100)), Err(PlanError::NoExperts));
}

/// One node: a budget in MB and a range, either of which may be absent.
type Given = (Option<u64>, Option<(u16, u16)>);

fn given() -> impl Strategy<Value = Given> {
    let range = (0u16..60, 1u16..30).prop_map(|(start, len)| (start, start + len));
    (prop::option::of(1u64..600), prop::option::weighted(0.3, range))
}

proptest! {
    #[test]
    fn every_plan_is_complete_and_within_budgets(
        own in prop::option::of(given()),
        workers in prop::collection::vec(given(), 0..6),
        experts in 1u16..64,
    ) {
        prop_assume!(own.is_some() || !workers.is_empty());
        let lines = |(index, (memory, range)): (usize, &Given)| {
            let memory = memory.map(|mb| format!("memory = \"{mb} MB\"\n")).unwrap_or_default();
            let range = range.map(|(start, end)| format!("experts = \"{start}..{end}\"\n")).unwrap_or_default();
            format!("shard = {index}\n{memory}{range}")
        };
        let texts: Vec<_> = workers.iter().enumerate().map(lines).collect();
        let own = own.map(|own| lines((workers.len(), &own)));
        let topology = topology(own.as_deref(), &texts.iter().map(String::as_str).collect::<Vec<_>>());
        let model = model(experts, 10_000_001);
        let Ok(plan) = plan(&topology, &model) else { return Ok(()) };
        prop_assert_eq!(plan.num_experts(), usize::from(experts));
        prop_assert_eq!(plan.shards().len(), topology.shards().count());
        let mut planned: Vec<ExpertRange> = Vec::new();
        for (shard, planned_shard) in topology.shards().zip(plan.shards()) {
            prop_assert!(!planned_shard.range.is_empty() && planned_shard.range.end <= experts);
            match shard.node.experts() {
                Some(range) => prop_assert_eq!(range, planned_shard.range),
                None => {
                    // Ascending in shard order, so no overlap; and on nobody's fixed range.
                    prop_assert!(planned.last().is_none_or(|last| last.end <= planned_shard.range.start));
                    planned.push(planned_shard.range);
                }
            }
        }
        for expert in ExpertRange::new(0, experts).experts() {
            let holders: Vec<_> = plan.holders(expert).collect();
            prop_assert_eq!(plan.owner(expert), holders.first().copied());
            prop_assert!(!holders.is_empty() && holders.is_sorted());
            if planned.iter().any(|range| range.contains(expert)) {
                prop_assert_eq!(holders.len(), 1);
            }
        }
        for node in plan.nodes() {
            prop_assert_eq!(node.experts, node.range.map_or(Bytes(0), |range| model.experts(range)));
            prop_assert!(node.budget.is_none_or(|budget| node.needs() <= budget));
        }
    }

    #[test]
    fn even_plans_differ_by_at_most_one(experts in 1u16..2000, shards in 1usize..100) {
        prop_assume!(shards <= usize::from(experts));
        let plan = Plan::even(experts, shards).unwrap();
        let sizes: Vec<_> = plan.shards().iter().map(|shard| shard.range.len()).collect();
        prop_assert!(sizes.is_sorted_by(|a, b| a >= b) && sizes[0] - sizes[shards - 1] <= 1);
        prop_assert_eq!(plan.num_experts(), usize::from(experts));
    }
}
