//! Every bundled checkpoint, and those of `LAGUNA_SHARED` when set: resolved, counted, decoded, run.

use std::path::{Path, PathBuf};

use half::bf16;
use serde_json::Value;

use super::{Account, Checkpoint, Inventory, inventory::MlpSource, stack_experts};
use crate::{
    compute::{ActivationType, ExpertBank as _, ExpertBatch, reference::ReferenceBank},
    config::{ConfigOptions, GenerationConfig, ModelConfig},
    fingerprint::WeightDigest,
    ids::{ExpertId, ExpertRange},
};

/// Model directories of the bundle in `tests/`, and of the folder that `LAGUNA_SHARED` names.
fn model_dirs() -> Vec<PathBuf> {
    let bundle = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests");
    let outside = std::env::var_os("LAGUNA_SHARED").map(PathBuf::from);
    let mut dirs = Vec::new();
    for root in [Some(bundle), outside].into_iter().flatten() {
        dirs.push(root.join("nano"));
        let listed = std::fs::read_dir(root.join("fixtures")).into_iter().flatten().flatten();
        dirs.extend(listed.map(|entry| entry.path()));
    }
    dirs.retain(|dir| dir.join("config.json").exists());
    dirs.sort();
    dirs
}

fn config(dir: &Path) -> ModelConfig {
    ModelConfig::from_dir(dir, &ConfigOptions::default()).unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
}

fn open(dir: &Path) -> (Checkpoint, ModelConfig, Inventory) {
    let config = config(dir);
    let checkpoint = Checkpoint::open(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let inventory =
        Inventory::resolve(&checkpoint, &config).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    (checkpoint, config, inventory)
}

#[test]
fn every_checkpoint_resolves_and_is_accounted_for() {
    for dir in model_dirs() {
        let name = dir.display();
        let (checkpoint, config, inventory) = open(&dir);
        let generation = GenerationConfig::from_dir(&dir).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(generation.eos_token_ids, config.eos_token_ids, "{name}");
        let account = Account::of(&checkpoint, &inventory);
        let stored: u64 = checkpoint.tensors().map(|(_, info)| info.slice.len).sum();
        assert_eq!(account.total().bytes + account.unused_bytes, stored, "{name}");
        let all = ExpertRange::new(0, config.num_experts as u16);
        assert_eq!(account.shard_bytes(all) + account.trunk_bytes(), account.total().bytes, "{name}");
        WeightDigest::of(&checkpoint, &inventory, all).unwrap_or_else(|e| panic!("{name}: {e}"));
        for layer in &inventory.layers {
            let MlpSource::Sparse(sparse) = &layer.mlp else { continue };
            let sources: Vec<_> = sparse.experts.iter().map(|expert| &expert.gate).collect();
            let stack = stack_experts(&checkpoint, &sources).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(stack.count, config.num_experts, "{name}");
        }
    }
}

#[test]
fn every_checkpoint_rotates_as_its_goldens_say() {
    for dir in model_dirs() {
        let Ok(text) = std::fs::read_to_string(dir.join("expected/prompts.json")) else { continue };
        let goldens: Value = serde_json::from_str(&text).unwrap();
        let Some(rope) = goldens["rope"].as_object() else { continue };
        for layer in &config(&dir).layers {
            let kind = if layer.sliding_window.is_some() { "sliding_attention" } else { "full_attention" };
            let golden = &rope[kind];
            let expected = golden["inv_freq"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap());
            let found = layer.rope.inverse_frequencies();
            assert_eq!(found.len(), expected.len(), "{} {kind}", dir.display());
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - expected).abs() <= 1e-6 * expected, "{} {kind}", dir.display());
            }
            let factor = golden["attention_scaling"].as_f64().unwrap();
            assert!((layer.rope.attention_factor - factor).abs() < 1e-9, "{} {kind}", dir.display());
        }
    }
}

#[test]
fn every_checkpoint_runs_in_the_reference_bank() {
    for dir in model_dirs() {
        let name = dir.display();
        let (checkpoint, config, inventory) = open(&dir);
        let all = ExpertRange::new(0, config.num_experts as u16);
        let mut bank = ReferenceBank::load(&checkpoint, &inventory, &config, all, &mut |_| ()).unwrap();
        let numbers = (0..config.hidden_size).map(|n| bf16::from_f32((n as f32 * 0.7).cos()));
        let rows: Vec<u8> = numbers.flat_map(|x| x.to_le_bytes()).collect();
        let experts: Vec<_> = (0..config.num_experts_per_tok as u16).rev().map(ExpertId).collect();
        let counts = [config.num_experts_per_tok as u16];
        let weights = vec![0.25; experts.len()];
        let batch = |layer| ExpertBatch {
            layer,
            activation: ActivationType::Bf16,
            hidden: config.hidden_size,
            counts: &counts,
            experts: &experts,
            weights: &weights,
            rows: &rows,
        };
        for layer in config.sparse_layers() {
            let mut out = Vec::new();
            bank.run(&batch(layer), &mut out).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(out.iter().all(|x| x.is_finite()) && out.iter().any(|x| *x != 0.0), "{name} {layer}");
        }
    }
}
