//! The shipped topologies read, and hold Laguna S 2.1 as their comments say.

use std::path::{Path, PathBuf};

use laguna_topology::{
    Bytes, LayerBytes, LayerId, ModelBytes, NodeName, Pin, ShardId, Topology, plan, write_pins,
};

/// Laguna S 2.1, NVFP4: 47 sparse layers of 256 experts (three matrices of 3072 × 1024, 4.5 bits a weight).
fn laguna_s() -> ModelBytes {
    ModelBytes {
        num_experts: 256,
        layers: (1..48).map(|id| LayerBytes { layer: LayerId(id), expert: Bytes(5_308_428) }).collect(),
        trunk: Bytes(7_410_000_000),
        kv_per_token: Bytes(49_152),
        kv_fixed: Bytes(75_500_000),
    }
}

fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn load(name: &str) -> Topology {
    Topology::load(&shipped(name)).unwrap_or_else(|error| panic!("{error}"))
}

fn ranges(topology: &Topology) -> Vec<(u16, NodeName, String)> {
    let plan = plan(topology, &laguna_s()).unwrap_or_else(|error| panic!("{error}"));
    plan.shards().iter().map(|shard| (shard.id.0, shard.node, shard.range.to_string())).collect()
}

#[test]
fn two_macs() {
    let topology = load("two-macs.toml");
    let worker = NodeName::Worker(ShardId(0));
    let ranges = ranges(&topology);
    assert_eq!(ranges, [(0, worker, "0..151".into()), (1, NodeName::Coordinator, "151..256".into())]);
    assert_eq!(topology.key_file(worker), shipped("keys/shard-0.pem"));
    assert!(topology.model.ends_with("models/Laguna-S-2.1-NVFP4"));
}

#[test]
fn two_macs_give_experts_for_context() {
    let mut topology = load("two-macs.toml");
    topology.coordinator.context = Some(262_144);
    assert_eq!(ranges(&topology)[1].2, "164..256");
    topology.coordinator.context = Some(1_048_576);
    let error = plan(&topology, &laguna_s()).unwrap_err().to_string();
    assert!(error.contains("256 experts need 63.9 GB"), "{error}");
    assert!(error.contains("KV for 1048576 tokens 51.6 GB"), "{error}");
}

#[test]
fn three_macs() {
    let topology = load("three-macs.toml");
    let ranges: Vec<_> = ranges(&topology).into_iter().map(|(_, _, range)| range).collect();
    assert_eq!(ranges, ["0..128", "128..256"]);
    assert_eq!(topology.coordinator.shard, None);
}

#[test]
fn loopback() {
    let topology = load("loopback.toml");
    assert_eq!(topology.model, shipped("../tests/nano"));
    let listen: Vec<_> = topology.workers.iter().map(|worker| worker.listen.to_string()).collect();
    assert_eq!(listen, ["127.0.0.1:4433", "127.0.0.1:4434"]);
    assert_eq!(ranges(&topology).len(), 2);
}

#[test]
fn keygen_can_write_into_each() {
    for name in ["two-macs.toml", "three-macs.toml", "loopback.toml"] {
        let topology = load(name);
        let missing = topology.require_pins().unwrap_err();
        assert_eq!(missing.nodes, topology.nodes().collect::<Vec<_>>(), "{name}");

        let text = std::fs::read_to_string(shipped(name)).unwrap();
        let pins: Vec<_> = topology.nodes().zip(1..).map(|(node, byte)| (node, Pin([byte; 32]))).collect();
        let written = write_pins(&text, &pins).unwrap();
        let kept: Vec<_> = written.lines().filter(|line| !line.starts_with("pin = \"sha256:")).collect();
        assert_eq!(kept, text.lines().collect::<Vec<_>>(), "{name}");
        let again = Topology::parse(&written, Path::new("")).unwrap();
        let found: Vec<_> = again.nodes().map(|node| (node, again.pin(node).unwrap())).collect();
        assert_eq!(found, pins, "{name}");
        assert_eq!(again.require_pins().unwrap().coordinator, Pin([1; 32]));
    }
}
