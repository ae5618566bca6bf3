//! Real workers in processes of their own give the bits that one process gives, and serve on.
// In a test a panic is the report.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use laguna_tests::cluster::{Cluster, Plan, serving};
use laguna_tests::models;
use laguna_tests::outputs::{assert_same_bits, integers, table};
use laguna_tests::run::Run;
use serde_json::Value;

/// A prompt longer than nano's window of 64, one of a single token, and one between.
fn prompts(folder: &Path) -> PathBuf {
    let long: Vec<u32> = (0..150).map(|n| 100 + n * 7 % 1900).collect();
    let text = serde_json::json!([
        { "key": "long", "input_ids": long, "greedy": 4 },
        { "key": "one", "input_ids": [2], "greedy": 12 },
        { "key": "none", "input_ids": [2, 340, 807, 90, 1266] },
    ]);
    let path = folder.join("prompts.json");
    fs::write(&path, text.to_string()).unwrap();
    path
}

fn eval(run: Run, prompts: &Path, out: &Path) {
    run.arg("--prompts").arg(prompts).arg("--out").arg(out).finish().succeeded();
}

fn in_memory(shards: u16, prompts: &Path, out: &Path) {
    let loopback = format!("--loopback={shards}");
    eval(Run::coord(["eval", &loopback, "--model"]).arg(models::nano()), prompts, out);
}

/// `workers` processes, and one more shard in the coordinator if `local_shard`.
fn over_processes(workers: u16, local_shard: bool, bank: &str) {
    over_processes_with(workers, local_shard, bank, "f32");
}

fn over_processes_with(workers: u16, local_shard: bool, bank: &str, dtype: &str) {
    let folder = tempfile::tempdir().unwrap();
    let prompts = prompts(folder.path());
    let [one, other] = ["one", "other"].map(|name| folder.path().join(name));
    let nano = models::nano();
    let cluster = Cluster::planned(&Plan { model: &nano, workers, local_shard, link: "" });
    let _workers = cluster.start_all(&["--bank", bank]);
    let args = ["eval", "--bank", bank, "--dtype", dtype];
    eval(cluster.coord(&args), &prompts, &one);
    let loopback = format!("--loopback={}", workers + u16::from(local_shard));
    eval(Run::coord(args).arg(loopback).arg("--model").arg(&nano), &prompts, &other);
    assert_same_bits(&one, &other);
    // Again, on the same workers: they keep nothing.
    eval(cluster.coord(&args), &prompts, &one);
    assert_same_bits(&one, &other);
}

#[test]
fn one_worker_gives_the_bits_of_one_process() {
    over_processes(1, false, "mlx");
}

#[test]
fn two_workers_give_the_bits_of_one_process() {
    over_processes(2, false, "mlx");
    over_processes(2, false, "reference");
}

#[test]
fn three_workers_give_the_bits_of_one_process() {
    over_processes(3, false, "mlx");
}

#[test]
fn a_shard_in_the_coordinator_gives_the_bits_of_one_process() {
    over_processes(1, true, "mlx");
    over_processes(2, true, "reference");
}

/// On a Mac rows travel as bf16; here both ends are asked to.
#[test]
fn bf16_rows_give_the_bits_of_one_process() {
    over_processes_with(2, true, "mlx", "bf16");
    over_processes_with(1, false, "reference", "bf16");
}

#[test]
fn loopback_over_quic_gives_the_bits_of_memory() {
    let folder = tempfile::tempdir().unwrap();
    let prompts = prompts(folder.path());
    let [one, other] = ["one", "other"].map(|name| folder.path().join(name));
    for shards in [1, 3] {
        in_memory(shards, &prompts, &one);
        let loopback = format!("--loopback-quic={shards}");
        eval(Run::coord(["eval", &loopback, "--model"]).arg(models::nano()), &prompts, &other);
        assert_same_bits(&one, &other);
    }
}

#[test]
fn eval_writes_what_its_help_says() {
    let folder = tempfile::tempdir().unwrap();
    let prompts = prompts(folder.path());
    let out = folder.path().join("out");
    in_memory(2, &prompts, &out);
    let table = table(&out);
    let shape = |name: &str| {
        let entry = table.iter().find(|(other, ..)| other == name);
        entry.map(|(_, dtype, shape)| (dtype.as_str(), shape.clone())).unwrap_or_else(|| panic!("no {name}"))
    };
    // nano: vocabulary 2048, 4 sparse layers, top-8.
    assert_eq!(shape("long.logits"), ("F32", vec![150, 2048]));
    assert_eq!(shape("long.topk_idx"), ("I32", vec![4, 150, 8]));
    assert_eq!(shape("long.topk_weights"), ("F32", vec![4, 150, 8]));
    assert_eq!(shape("long.greedy_ids"), ("I32", vec![4]));
    assert_eq!(shape("long.decode_logits"), ("F32", vec![4, 2048]));
    assert_eq!(shape("one.logits"), ("F32", vec![1, 2048]));
    assert_eq!(shape("one.decode_logits"), ("F32", vec![12, 2048]));
    assert_eq!(shape("none.greedy_ids"), ("I32", vec![0]));
    let chosen = integers(&out, "long.topk_idx");
    assert!(chosen.chunks(8).all(|row| row.is_sorted_by(|a, b| a < b) && row[0] >= 0 && row[7] < 256));
    let leftovers = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(leftovers, 2, "only the prompts and the output lie there");
}

#[test]
fn verify_agrees_over_processes_with_both_banks() {
    for (bank, fixture) in [("mlx", "nvfp4_ct"), ("reference", "mlx_affine4")] {
        let fixture = models::fixture(fixture);
        let cluster = Cluster::planned(&Plan { model: &fixture, workers: 2, local_shard: true, link: "" });
        let _workers = cluster.start_all(&["--bank", bank]);
        let run = cluster.coord(&["verify", "--json", "--bank", bank, "--reference"]).arg(&fixture);
        let finished = run.finish().succeeded();
        let report: Value = serde_json::from_str(finished.text().trim()).unwrap();
        assert_eq!(report["passed"], true, "{report}");
        assert!(report["prompts"].as_array().unwrap().len() >= 7, "{report}");
    }
}

/// nano's own expectations: `(prompt, greedy text)` of the raw ones.
fn expected_texts() -> Vec<(String, String)> {
    let text = fs::read_to_string(models::nano().join("expected/prompts.json")).unwrap();
    let prompts: Vec<Value> = serde_json::from_str(&text).unwrap();
    let of = |prompt: &Value, key: &str| prompt[key].as_str().unwrap().to_owned();
    let all = prompts.iter().map(|prompt| (of(prompt, "text"), of(prompt, "greedy_text")));
    // The last is a conversation, already rendered; its marks are text to `generate`.
    all.filter(|(prompt, _)| !prompt.starts_with('〈')).collect()
}

#[test]
fn generate_writes_the_expected_text_over_processes() {
    let cluster = Cluster::new(&models::nano(), 2);
    let _workers = cluster.start_all(&[]);
    let texts = expected_texts();
    assert_eq!(texts.len(), 3);
    for (prompt, expected) in texts {
        let run = cluster.coord(&["generate", "--greedy", "-n", "96", "-p", &prompt]);
        let finished = run.finish().succeeded();
        assert_eq!(finished.text(), expected + "\n", "{prompt:?}");
        finished.says(&["prompt:", "decode: 96 tokens", "tok/s", "µs p50", "µs p99"]);
    }
}

#[test]
fn generate_answers_a_message_as_expected() {
    let text = fs::read_to_string(models::nano().join("expected/prompts.json")).unwrap();
    let prompts: Vec<Value> = serde_json::from_str(&text).unwrap();
    let chat = prompts.last().unwrap();
    let rendered = chat["text"].as_str().unwrap();
    let message = rendered.split("<user>").nth(1).unwrap().split("</user>").next().unwrap();
    let run =
        Run::coord(["generate", "--loopback", "--chat", "--greedy", "-n", "96", "-p", message, "--model"]);
    let finished = run.arg(models::nano()).finish().succeeded();
    assert_eq!(finished.text(), chat["greedy_text"].as_str().unwrap().to_owned() + "\n");
}

#[test]
fn the_same_seed_gives_the_same_text_wherever_the_shards_are() {
    let cluster = Cluster::new(&models::nano(), 2);
    let _workers = cluster.start_all(&[]);
    let args = ["generate", "-n", "24", "-p", "def ", "--temperature", "1.2"];
    let text = |run: Run, seed: &str| run.args(["--seed", seed]).finish().succeeded().text();
    let first = text(cluster.coord(&args), "7");
    assert_eq!(text(cluster.coord(&args), "7"), first);
    assert_eq!(text(Run::coord(args).arg("--loopback").arg("--model").arg(models::nano()), "7"), first);
    assert_ne!(text(cluster.coord(&args), "8"), first);
    // Without a seed one is chosen and said, and gives the same text again.
    let free = cluster.coord(&args).finish().succeeded();
    let seed = free.stderr.lines().find_map(|line| line.strip_prefix("seed ")).unwrap().to_owned();
    assert_eq!(text(cluster.coord(&args), &seed), free.text());
}

#[test]
fn a_worker_serves_the_next_coordinator_after_one_that_left_or_died() {
    let cluster = Cluster::new(&models::nano(), 1);
    let worker = cluster.start(0);
    let short = ["generate", "--greedy", "-n", "8", "-p", "import os"];
    let first = cluster.coord(&short).finish().succeeded().text();
    // One that dies in the middle of its work.
    let mut dying = cluster.coord(&["generate", "--greedy", "-n", "1500", "-p", "class Stack:\n"]).start();
    dying.until(|run| run.stdout().len() > 20);
    dying.signal("KILL");
    drop(dying);
    assert_eq!(cluster.coord(&short).finish().succeeded().text(), first);
    // Two at once, and each gets its own rows.
    let pair = [cluster.coord(&short).start(), cluster.coord(&short).start()];
    for run in pair {
        assert_eq!(run.wait().succeeded().text(), first);
    }
    worker.signal("TERM");
    worker.wait().succeeded();
}

#[test]
fn a_coordinator_waits_for_workers_that_still_load() {
    let cluster = Cluster::new(&models::nano(), 2);
    let first = cluster.start(0);
    let mut early = cluster.coord(&["generate", "--greedy", "-n", "4", "-p", "x", "--wait", "60"]).start();
    early.until(|run| run.stderr().contains("waiting for workers"));
    assert!(early.stderr().contains(&cluster.address(1)), "{}", early.stderr());
    sleep(Duration::from_millis(200));
    let second = serving(cluster.worker(1));
    early.wait().succeeded();
    drop((first, second));
}

#[test]
fn workers_with_unequal_ranges_and_replicas_agree_with_the_reference() {
    let fixture = models::fixture("mlx_nvfp4");
    let cluster = Cluster::new(&fixture, 2);
    // 16 experts: 0..12 and 8..16; the four between are held twice.
    cluster.edit(|text| {
        text.replace("shard = 0\n", "shard = 0\nexperts = \"0..12\"\n")
            .replace("shard = 1\n", "shard = 1\nexperts = \"8..16\"\n")
    });
    let _workers = cluster.start_all(&[]);
    cluster.coord(&["verify", "--reference"]).arg(&fixture).finish().succeeded();
}
