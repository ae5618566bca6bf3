//! `verify` agrees with every reference, for every bank and any number of shards, and can disagree.
// In a test a panic is the report.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use laguna_tests::models::{self, Copy, edit_tensor};
use laguna_tests::run::{Finished, Run};
use serde_json::Value;

fn verify(cluster: &str, bank: &str, references: &[PathBuf]) -> Run {
    let names = references.iter().map(|dir| dir.as_os_str());
    Run::coord(["verify", "--json", cluster, "--bank", bank, "--reference"]).args(names)
}

/// The reports, one a reference, as JSON.
fn reports(finished: &Finished) -> Vec<Value> {
    let text = finished.text();
    text.lines().map(|line| serde_json::from_str(line).expect("each line is a JSON object")).collect()
}

/// Every reference passed, by its own word and by its numbers.
#[track_caller]
fn assert_agrees(run: Run, references: &[PathBuf]) {
    let finished = run.within(ALL_REFERENCES).finish().succeeded();
    let reports = reports(&finished);
    assert_eq!(reports.len(), references.len());
    for (report, dir) in reports.iter().zip(references) {
        assert_eq!(report["reference"].as_str(), dir.to_str());
        assert_eq!(report["passed"], true, "{report}");
        let prompts = report["prompts"].as_array().expect("a list of prompts");
        assert!(prompts.len() >= 3, "{report}");
        let mut compared = 0;
        for prompt in prompts {
            assert_eq!(prompt["greedy_mismatches"], 0, "{report}");
            assert!(prompt["greedy_steps"].as_u64() > Some(0), "{report}");
            if !prompt["routing_mismatches"].is_null() {
                assert_eq!(prompt["routing_mismatches"], 0, "{report}");
            }
            for pass in ["prefill_max", "chunked_max", "decode_max"] {
                if let Some(difference) = prompt[pass].as_f64() {
                    assert!(difference <= TOLERANCE, "{pass}: {report}");
                    compared += 1;
                }
            }
        }
        assert!(compared >= 3, "logits were compared: {report}");
    }
}

fn bundled() -> Vec<PathBuf> {
    let mut all = models::fixtures();
    all.push(models::nano());
    all
}

#[test]
fn cpu_agrees_with_every_bundled_reference() {
    assert_agrees(verify("--loopback", "cpu", &bundled()), &bundled());
}

#[test]
fn mlx_agrees_with_every_bundled_reference() {
    assert_agrees(verify("--loopback", "mlx", &bundled()), &bundled());
}

#[test]
fn the_oracle_agrees_with_every_bundled_reference() {
    assert_agrees(verify("--loopback=1", "reference", &bundled()), &bundled());
}

#[test]
fn any_number_of_shards_agrees() {
    let some = [models::fixture("nvfp4_ct"), models::nano()];
    for cluster in ["--loopback=1", "--loopback=3", "--loopback=8", "--loopback-quic", "--loopback-quic=3"] {
        assert_agrees(verify(cluster, "cpu", &some), &some);
        assert_agrees(verify(cluster, "mlx", &some), &some);
    }
    let some = [models::fixture("mlx_fused_nvfp4")];
    for cluster in ["--loopback=2", "--loopback=3", "--loopback=8", "--loopback-quic"] {
        assert_agrees(verify(cluster, "reference", &some), &some);
    }
}

#[test]
fn any_size_of_chunk_agrees() {
    let some = [models::fixture("mlx_affine4"), models::fixture("bf16")];
    for chunk in ["1", "16", "61"] {
        for bank in ["cpu", "mlx"] {
            assert_agrees(verify("--loopback", bank, &some).args(["--chunk", chunk]), &some);
        }
    }
}

/// The whole matrix, over every reference of the project's shared folder, where LAGUNA_SHARED says where that is.
fn every_shared_reference(bank: &str) {
    let Some(all) = models::shared() else { return };
    for cluster in ["--loopback=1", "--loopback=2", "--loopback=3", "--loopback=8", "--loopback-quic"] {
        assert_agrees(verify(cluster, bank, &all), &all);
    }
}

#[test]
fn cpu_agrees_with_every_shared_reference() {
    every_shared_reference("cpu");
}

#[test]
fn mlx_agrees_with_every_shared_reference() {
    every_shared_reference("mlx");
}

#[test]
fn the_oracle_agrees_with_every_shared_reference() {
    every_shared_reference("reference");
}

/// `verify` must tell a spoiled copy from the original: exit code 1, and the report says where.
#[track_caller]
fn assert_differs(copy: &Copy) -> Value {
    let dir = [copy.path().to_owned()];
    let finished = verify("--loopback", "mlx", &dir).finish().failed(1).says(&["1 of 1 references differ"]);
    let report = reports(&finished).remove(0);
    assert_eq!(report["passed"], false);
    report
}

fn largest(report: &Value, pass: &str) -> f64 {
    let prompts = report["prompts"].as_array().expect("a list of prompts");
    prompts.iter().filter_map(|prompt| prompt[pass].as_f64()).fold(0.0, f64::max)
}

fn expected(copy: &Copy) -> PathBuf {
    copy.path().join(Path::new("expected/expected.safetensors"))
}

#[test]
fn one_byte_of_a_weight_is_noticed() {
    for tensor in ["model.layers.1.self_attn.v_proj.weight", "model.layers.2.mlp.experts.0.up_proj.weight"] {
        let copy = Copy::of(&models::fixture("bf16"));
        // The high byte of a bf16: sign and most of the exponent. 0x3f is a number near 1.
        copy.edit_tensor(tensor, |bytes| bytes[1] = if bytes[1] == 0x3f { 0xbf } else { 0x3f });
        assert!(largest(&assert_differs(&copy), "prefill_max") > TOLERANCE, "{tensor}");
    }
}

#[test]
fn one_expected_logit_is_noticed() {
    for (tensor, pass) in [("medium.logits", "chunked_max"), ("short.decode_logits", "decode_max")] {
        let copy = Copy::of(&models::fixture("bf16"));
        edit_tensor(&expected(&copy), tensor, |bytes| {
            let at = bytes.len() / 2 / 4 * 4;
            let word: [u8; 4] = bytes[at..at + 4].try_into().expect("four bytes");
            let changed = f32::from_le_bytes(word) + 0.002;
            bytes[at..at + 4].copy_from_slice(&changed.to_le_bytes());
        });
        let report = assert_differs(&copy);
        let difference = largest(&report, pass);
        assert!(difference > TOLERANCE && difference < 0.003, "{report}");
    }
}

#[test]
fn one_expected_expert_and_one_expected_token_are_noticed() {
    let copy = Copy::of(&models::fixture("bf16"));
    edit_tensor(&expected(&copy), "long.topk_idx", |bytes| bytes[0] ^= 1);
    let report = assert_differs(&copy);
    let total: u64 = numbers(&report, "routing_mismatches");
    // In one pass, and in chunks.
    assert_eq!(total, 2, "{report}");

    let copy = Copy::of(&models::fixture("bf16"));
    edit_tensor(&expected(&copy), "short.greedy_ids", |bytes| {
        let last = bytes.len() - 4;
        bytes[last] ^= 1;
    });
    let report = assert_differs(&copy);
    assert_eq!(numbers(&report, "greedy_mismatches"), 1, "{report}");
}

fn numbers(report: &Value, name: &str) -> u64 {
    let prompts = report["prompts"].as_array().expect("a list of prompts");
    prompts.iter().filter_map(|prompt| prompt[name].as_u64()).sum()
}

#[test]
fn not_a_number_never_passes() {
    let copy = Copy::of(&models::fixture("bf16"));
    copy.edit_tensor("model.norm.weight", |bytes| bytes[..2].copy_from_slice(&[0xc0, 0x7f]));
    assert_differs(&copy);
}

#[test]
fn one_differing_reference_among_good_ones_is_named() {
    let copy = Copy::of(&models::fixture("bf16"));
    edit_tensor(&expected(&copy), "short.greedy_ids", |bytes| bytes[0] ^= 1);
    let dirs = [models::fixture("mlx_nvfp4"), copy.path().to_owned(), models::fixture("bf16")];
    let finished = verify("--loopback", "mlx", &dirs).finish().failed(1);
    let finished = finished.says(&["1 of 3 references differ", &copy.path().display().to_string()]);
    let passed: Vec<bool> = reports(&finished).iter().map(|r| r["passed"] == true).collect();
    assert_eq!(passed, [true, false, true]);
}

/// Largest |Δlogit| of an f32 implementation, as the fixtures' README has it.
const TOLERANCE: f64 = 1e-3;

/// For all references in one process, on a laden machine.
const ALL_REFERENCES: std::time::Duration = std::time::Duration::from_secs(300);
