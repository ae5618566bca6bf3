//! The harness itself can fail: deadlines end processes, and comparisons see one bit.
// In a test a panic is the report.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::time::{Duration, Instant};

use laguna_tests::cluster::Cluster;
use laguna_tests::models::{self, edit_tensor};
use laguna_tests::outputs::assert_same_bits;
use laguna_tests::run::Run;

#[test]
fn a_process_that_never_ends_is_killed_at_its_deadline() {
    let cluster = Cluster::new(&models::nano(), 1);
    let began = Instant::now();
    let wait = || cluster.worker(0).within(Duration::from_millis(1500)).finish();
    let panic = std::panic::catch_unwind(wait).unwrap_err();
    let report = panic.downcast_ref::<String>().unwrap();
    assert!(report.contains("did not end in 1.5s"), "{report}");
    assert!(began.elapsed() < Duration::from_secs(20));
    // It is gone: its port is free again.
    drop(cluster.start(0));
}

#[test]
fn a_worker_dies_with_its_guard() {
    let cluster = Cluster::new(&models::nano(), 1);
    drop(cluster.start(0));
    drop(cluster.start(0));
}

#[test]
fn one_bit_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    let original = models::fixture("bf16").join("expected/expected.safetensors");
    for copy in [&a, &b] {
        fs::write(copy, fs::read(&original).unwrap()).unwrap();
    }
    assert_same_bits(&a, &b);
    edit_tensor(&b, "long.decode_logits", |bytes| bytes[77] ^= 1);
    let panic = std::panic::catch_unwind(|| assert_same_bits(&a, &b)).unwrap_err();
    let report = panic.downcast_ref::<String>().unwrap();
    assert!(report.contains("long.decode_logits: 1 bytes differ"), "{report}");
}

#[test]
#[should_panic(expected = "left: Some(2)")]
fn another_exit_code_fails_the_test() {
    Run::coord(["dance"]).finish().succeeded();
}

#[test]
#[should_panic(expected = "not said: \"sing\"")]
fn a_message_without_the_word_fails_the_test() {
    Run::coord(["dance"]).finish().failed(2).says(&["sing"]);
}
