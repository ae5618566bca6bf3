//! A node reads its own byte ranges only, and its memory stays near what it holds. Measured from outside, by what the
//! kernel counted, so on Linux only.
#![cfg(target_os = "linux")]
// In a test a panic is the report.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use laguna_tests::cluster::{Cluster, Plan, serving};
use laguna_tests::forge::Forge;
use laguna_tests::models;
use laguna_tests::run::{Run, Running};

const FORGE: Forge = Forge { hidden: 1024, experts: 128, width: 512 };

/// One dense and two sparse layers, some 230 MB. Kept in the target folder (/tmp may be memory) for the next run; it
/// appears there whole or not at all, whoever writes it first.
fn forged() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let Forge { hidden, experts, width } = FORGE;
    let place = target.join(format!("forged-{hidden}-{experts}-{width}"));
    if !place.exists() {
        let draft = tempfile::tempdir_in(target).unwrap();
        FORGE.write(draft.path());
        // Another test may have been quicker.
        if fs::rename(draft.path(), &place).is_ok() {
            let _ = draft.keep();
        }
    }
    place
}

/// Bytes that the process has read with read calls, files and all else.
fn bytes_read(process: &Running) -> u64 {
    number(&format!("/proc/{}/io", process.pid()), "rchar:")
}

/// The most bytes of memory that the process ever had.
fn peak_memory(process: &Running) -> u64 {
    number(&format!("/proc/{}/status", process.pid()), "VmHWM:") * 1024
}

fn number(path: &str, label: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap();
    let line = text.lines().find(|line| line.starts_with(label)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn size(folder: &Path) -> u64 {
    fs::metadata(folder.join("model.safetensors")).unwrap().len()
}

/// A worker that holds almost nothing: what the program itself takes.
fn baseline(bank: &str) -> (u64, u64) {
    let fixture = models::fixture("mlx_nvfp4");
    let cluster = Cluster::new(&fixture, 2);
    let worker = serving(cluster.worker(0).args(["--bank", bank]));
    (bytes_read(&worker), peak_memory(&worker))
}

#[test]
fn a_worker_reads_and_holds_its_own_experts_only() {
    let model = &forged();
    assert!(size(model) > 200 * MB, "{}", size(model));
    // MLX keeps the packed form; the reference bank too, decoding as it goes, or more: only reads are compared there.
    let (other_reads, other_memory) = baseline("mlx");
    let cluster = Cluster::new(model, 4);
    for shard in [0, 3] {
        let worker = serving(cluster.worker(shard).args(["--bank", "mlx"]));
        let share = FORGE.routed_bytes() / 4;
        assert!(worker.stderr().contains(&format!("experts {}..{}", 32 * shard, 32 * shard + 32)));
        let read = bytes_read(&worker) - other_reads;
        assert!(read >= share - share / 50, "{read} bytes read of {share}");
        // Samples for the digest are 64 bytes a matrix, and the headers are small.
        assert!(read <= share + share / 20, "{read} bytes read for {share}");
        let memory = peak_memory(&worker).saturating_sub(other_memory);
        assert!(memory <= share + share / 4 + 16 * MB, "{memory} bytes of memory at most for {share}");
    }
}

/// The `cpu` bank maps the file: read calls see only headers and samples, memory holds the shard and no more.
#[test]
fn a_worker_maps_its_own_experts_only() {
    let model = &forged();
    let (other_reads, other_memory) = baseline("cpu");
    let cluster = Cluster::new(model, 4);
    for shard in [0, 3] {
        let worker = serving(cluster.worker(shard).args(["--bank", "cpu"]));
        let share = FORGE.routed_bytes() / 4;
        let read = bytes_read(&worker).saturating_sub(other_reads);
        assert!(read <= share / 50, "{read} bytes read of a mapped {share}");
        let memory = peak_memory(&worker).saturating_sub(other_memory);
        assert!(memory >= share - share / 50, "{memory} bytes of memory for {share}: not loaded");
        assert!(memory <= share + share / 20, "{memory} bytes of memory at most for {share}");
    }
}

/// A coordinator that has its trunk: nobody listens, and it waits.
fn waiting(cluster: &Cluster, trunk: &str) -> Running {
    let mut run = cluster.coord(&["generate", "-p", "x", "--wait", "60", "--trunk", trunk]).start();
    run.until(|run| run.stderr().contains("waiting for workers"));
    run
}

#[test]
fn the_trunk_is_read_without_the_experts() {
    let model = &forged();
    let trunk = size(model) - FORGE.routed_bytes();
    let read = bytes_read(&waiting(&Cluster::new(model, 2), "mlx"));
    assert!(read >= trunk - trunk / 50, "{read} bytes read of {trunk}");
    assert!(read <= trunk + trunk / 4 + 8 * MB, "{read} bytes read for {trunk}, {} in the file", size(model));
    assert!(read < FORGE.routed_bytes() / 4, "no expert was read: {read}");
}

#[test]
fn the_trunk_is_mapped_without_the_experts() {
    let model = &forged();
    let trunk = size(model) - FORGE.routed_bytes();
    let other = peak_memory(&waiting(&Cluster::new(&models::fixture("mlx_nvfp4"), 2), "cpu"));
    let run = waiting(&Cluster::new(model, 2), "cpu");
    let read = bytes_read(&run);
    assert!(read <= trunk / 4, "{read} bytes read of a mapped {trunk}");
    let memory = peak_memory(&run).saturating_sub(other);
    assert!(memory >= trunk - trunk / 10, "{memory} bytes of memory for {trunk}: not loaded");
    assert!(memory <= trunk + trunk / 4 + 8 * MB, "{memory} bytes of memory at most for {trunk}");
}

#[test]
fn a_forged_checkpoint_runs_and_a_local_shard_is_read_alone() {
    let model = &forged();
    let folder = tempfile::tempdir().unwrap();
    let prompts = folder.path().join("prompts.json");
    fs::write(&prompts, r#"[{"key": "a", "input_ids": [2, 17, 300], "greedy": 2}]"#).unwrap();
    let [one, other] = ["one", "other"].map(|name| folder.path().join(name));
    let cluster = Cluster::planned(&Plan { model, workers: 1, local_shard: true, link: "" });
    let worker = cluster.start(0);
    let eval = |run: Run, out: &Path| {
        run.arg("--prompts").arg(&prompts).arg("--out").arg(out).finish().succeeded();
    };
    eval(cluster.coord(&["eval"]), &one);
    eval(Run::coord(["eval", "--loopback", "--model"]).arg(model), &other);
    laguna_tests::outputs::assert_same_bits(&one, &other);
    drop(worker);
}

/// A budget that cannot hold what the file asks for is refused before anything is loaded, with both numbers.
#[test]
fn too_little_memory_is_refused_before_loading() {
    let cluster = Cluster::new(&forged(), 2);
    cluster.edit(|text| text.replace("shard = 0\n", "shard = 0\nmemory = \"20 MB\"\n"));
    cluster.edit(|text| text.replace("shard = 1\n", "shard = 1\nmemory = \"20 MB\"\n"));
    let finished = cluster.coord(&["generate", "-p", "x", "--wait", "0"]).finish().failed(2);
    let numbers = ["the model does not fit", "shard-0", "budget 20.0 MB", "226.5 MB"];
    let (coordinator, worker) = (finished.says(&numbers), cluster.worker(0).finish().failed(2));
    assert_eq!(coordinator.message(), worker.message());
    assert!(!coordinator.stderr.contains("trunk: "), "nothing was loaded: {}", coordinator.stderr);
}

const MB: u64 = 1_000_000;
