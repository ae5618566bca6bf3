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

/// Every report of the README's table names tests, and they exist.
#[test]
fn every_report_has_its_tests() {
    let root = laguna_tests::programs::workspace();
    let sources: String =
        ["coordinator/src", "tests/tests"].iter().map(|part| sources(&root.join(part))).collect();
    let readme = fs::read_to_string(root.join("tests/README.md")).unwrap();
    for report in 1..=48 {
        let row = readme.lines().find(|line| line.starts_with(&format!("| {report} |")));
        let row = row.unwrap_or_else(|| panic!("report {report} is not in the table"));
        let named: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
        // `…` stands for the rest of a name that another row has, or that several tests share.
        let tests = named.iter().filter_map(|name| name.rsplit_once("::")).map(|(_, test)| test);
        let found: Vec<bool> = tests.map(|test| has_test(&sources, test)).collect();
        assert!(
            !found.is_empty() && found.iter().all(|found| *found),
            "report {report}: {named:?} {found:?}"
        );
    }
}

fn has_test(sources: &str, name: &str) -> bool {
    match name.strip_suffix('…') {
        Some(beginning) => sources.contains(&format!("fn {beginning}")),
        // A module stands for all of its tests.
        None => sources.contains(&format!("fn {name}(")) || name == "tests",
    }
}

/// Every Rust file below a folder, as one text.
fn sources(folder: &std::path::Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            text += &sources(&path);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            text += &fs::read_to_string(&path).unwrap();
        }
    }
    text
}
