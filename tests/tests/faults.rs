//! Every way in which two nodes do not fit, or one of them goes: the message, the exit code, and how soon.
//!
//! Peers that have the right key and break the protocol are in `misbehaviour.rs`.
// In a test a panic is the report.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use laguna_tests::cluster::{Cluster, Plan, serving};
use laguna_tests::models::{self, Copy};
use laguna_tests::run::{Finished, Run, Running};

/// A short answer through the cluster; `--wait 0`, so that nothing is waited for.
fn short(cluster: &Cluster) -> Run {
    cluster.coord(&["generate", "--greedy", "-n", "8", "-p", "import os", "--wait", "0"])
}

/// An answer that takes much longer than any of these tests.
fn long(cluster: &Cluster) -> Running {
    let prompt = "class Stack:\n    \"\"\"A last-in first-out";
    let mut run = cluster.coord(&["generate", "--greedy", "-n", "1900", "-p", prompt]).start();
    run.until(|run| run.stdout().len() > 10);
    run
}

/// The worker serves the right coordinator still.
#[track_caller]
fn assert_serves(cluster: &Cluster) {
    short(cluster).finish().succeeded();
}

/// How the one mistaken worker of a cluster is named: number and address.
fn named(cluster: &Cluster, shard: usize) -> String {
    format!("error: shard {shard} ({}): ", cluster.address(shard))
}

fn stop(worker: Running) -> Finished {
    worker.signal("TERM");
    worker.wait().succeeded()
}

#[test]
fn a_coordinator_with_another_key_is_told_so_and_not_admitted() {
    let cluster = Cluster::new(&models::nano(), 1);
    let worker = cluster.start(0);
    let stranger = cluster.elsewhere();
    let right = stranger.pin("coordinator");
    fs::remove_file(stranger.key("coordinator")).unwrap();
    let other = Cluster::new(&models::nano(), 1);
    fs::copy(other.key("coordinator"), stranger.key("coordinator")).unwrap();
    let wrong = other.pin("coordinator");

    // Its own topology file contradicts the key: seen before anything is loaded.
    let message = format!("this key's pin is {wrong}, but the topology gives the coordinator {right}");
    short(&stranger).finish().failed(2).says(&[&message, "coordinator.pem"]).within(SOON);

    // Its own topology file is wrong too: the worker does not admit it.
    stranger.edit(|text| text.replace(&right, &wrong));
    let refused = short(&stranger).finish().failed(1).within(SOON);
    refused.says(&[
        &named(&cluster, 0),
        "not authenticated: worker does not admit this coordinator's key",
        "give both ends the keys of the same `laguna-coord keygen`",
    ]);
    assert_serves(&cluster);
    stop(worker).says(&["a node with an unknown key was refused", &wrong]);
}

#[test]
fn a_worker_with_another_key_is_not_trusted() {
    let cluster = Cluster::new(&models::nano(), 1);
    let impostor = cluster.elsewhere();
    let (right, other) = (cluster.pin("shard-0"), Cluster::new(&models::nano(), 1));
    let wrong = other.pin("shard-0");
    fs::copy(other.key("shard-0"), impostor.key("shard-0")).unwrap();

    // With the true topology file it does not even start.
    let refused = impostor.worker(0).finish().failed(2).within(SOON);
    refused.says(&[&format!("this key's pin is {wrong}"), "gives shard-0 the pin", &right, "shard-0.pem"]);

    impostor.edit(|text| text.replace(&right, &wrong));
    let worker = serving(impostor.worker(0));
    let refused = short(&cluster).finish().failed(1).within(SOON);
    let keys = format!("not authenticated: worker shows the key {wrong}, the coordinator expects {right}");
    refused.says(&[&named(&cluster, 0), &keys]);
    stop(worker);
}

#[test]
fn a_worker_at_another_shards_address_is_not_taken_for_it() {
    let cluster = Cluster::new(&models::nano(), 2);
    let right = cluster.start(1);
    // Shard 1 at shard 0's address: its key gives it away.
    let listen = cluster.address(0);
    let second = cluster.elsewhere();
    let wrong = serving(second.worker(1).args(["--listen", &listen]));
    let refused = short(&cluster).finish().failed(1).within(SOON);
    let (shown, expected) = (cluster.pin("shard-1"), cluster.pin("shard-0"));
    refused.says(&[
        &named(&cluster, 0),
        &format!("worker shows the key {shown}, the coordinator expects {expected}"),
    ]);
    drop((right, wrong));
}

#[test]
fn a_worker_started_as_another_shard_names_both_numbers() {
    let cluster = Cluster::new(&models::nano(), 2);
    // The same keys and addresses, but this machine's file numbers the shards the other way round.
    let swapped = cluster.elsewhere();
    let swap = |text: &str, a: &str, b: &str| text.replace(a, "\u{1}").replace(b, a).replace('\u{1}', b);
    swapped.edit(|text| swap(&text, "shard = 0\n", "shard = 1\n"));
    fs::copy(cluster.key("shard-0"), swapped.key("shard-1")).unwrap();
    fs::copy(cluster.key("shard-1"), swapped.key("shard-0")).unwrap();
    let wrong = serving(swapped.worker(1));
    let right = cluster.start(1);
    let refused = short(&cluster).finish().failed(1).within(SOON);
    refused.says(&[
        &named(&cluster, 0),
        "incompatible shard: coordinator has shard 0, worker has shard 1",
        "both ends need the same release, the same model and the same topology file",
    ]);
    stop(wrong).says(&["coordinator turned away", "coordinator has shard 0, worker has shard 1"]);
    drop(right);
}

#[test]
fn another_range_names_both_ranges() {
    let cluster = Cluster::new(&models::nano(), 2);
    let other = cluster.elsewhere();
    other.edit(|text| text.replace("shard = 0\n", "shard = 0\nexperts = \"0..100\"\n"));
    let wrong = serving(other.worker(0));
    let right = cluster.start(1);
    let refused = short(&cluster).finish().failed(1).within(SOON);
    refused.says(&[&named(&cluster, 0), "expert range: coordinator has 0..128, worker has 0..100"]);
    drop((wrong, right));
}

/// The fault that a coordinator reports when its worker serves `copy`.
#[track_caller]
fn with_copy(copy: &Copy) -> Finished {
    let cluster = Cluster::new(&models::nano(), 1);
    let _worker = serving(cluster.worker(0).arg("--model").arg(copy.path()));
    short(&cluster).finish().failed(1).says(&[&named(&cluster, 0)]).within(SOON)
}

/// After `label`, two different SHA-256 in hexadecimal: `coordinator has …, worker has …`.
#[track_caller]
fn assert_two_digests(finished: &Finished, label: &str) {
    let rest = finished.message().split_once(label).unwrap_or_else(|| panic!("{}", finished.stderr)).1;
    let values = rest.split_once("coordinator has ").and_then(|(_, rest)| rest.split_once(", worker has "));
    let (ours, theirs) = values.unwrap_or_else(|| panic!("{}", finished.stderr));
    let theirs = &theirs[..64];
    for digest in [ours, theirs] {
        assert!(digest.len() == 64 && digest.chars().all(|c| c.is_ascii_hexdigit()), "{digest:?}");
    }
    assert_ne!(ours, theirs);
}

#[test]
fn other_weights_are_recognised_by_their_digest() {
    // One global scale; and one expert's codes.
    for (tensor, from) in [
        ("model.layers.3.mlp.experts.200.down_proj.weight_global_scale", 2),
        ("model.layers.1.mlp.experts.3.gate_proj.weight_packed", 0),
    ] {
        let copy = Copy::of(&models::nano());
        copy.edit_tensor(tensor, |bytes| bytes[from..].iter_mut().for_each(|byte| *byte ^= 0x11));
        assert_two_digests(&with_copy(&copy), "incompatible weight digest: ");
    }
}

#[test]
fn another_model_is_recognised_by_its_fingerprint() {
    let copy = Copy::of(&models::nano());
    copy.edit_json("config.json", |config| config["rms_norm_eps"] = 1e-5.into());
    assert_two_digests(&with_copy(&copy), "incompatible model fingerprint: ");
}

#[test]
fn nothing_listens() {
    let cluster = Cluster::new(&models::nano(), 2);
    let one = cluster.start(1);
    let refused = short(&cluster).finish().failed(1).within(SOON);
    let refused =
        refused.says(&[&named(&cluster, 0), "worker is gone: nothing listens there; start the worker"]);
    assert!(!refused.stderr.contains("error: shard 1"), "{}", refused.stderr);
    drop(one);
    // Each worker that is missing is named.
    let refused = short(&cluster).finish().failed(1).within(SOON);
    let second = format!("shard 1 ({}): worker is gone: nothing listens", cluster.address(1));
    refused.says(&[&named(&cluster, 0), &second]);
}

#[test]
fn a_worker_that_sleeps_while_it_is_called_up() {
    let nano = models::nano();
    let link = "connect_timeout_ms = 400";
    let cluster = Cluster::planned(&Plan { model: &nano, workers: 1, local_shard: false, link });
    let worker = cluster.start(0);
    worker.signal("STOP");
    let refused = short(&cluster).finish().failed(1).within(SOON);
    refused.says(&[&named(&cluster, 0), "no connection within 0.4 s; check that the worker runs"]);
    worker.signal("CONT");
    assert_serves(&cluster);
}

/// The coordinator's end after `event`, which must come within `limit` of it.
#[track_caller]
fn ends(run: Running, limit: Duration, event: impl FnOnce()) -> Finished {
    event();
    let began = Instant::now();
    let finished = run.wait().failed(1);
    let took = began.elapsed();
    assert!(took <= limit, "it took {took:?}\n{}", finished.stderr);
    finished
}

#[test]
fn a_worker_killed_in_the_middle_of_a_call() {
    let cluster = Cluster::new(&models::nano(), 2);
    let [first, second] = [0, 1].map(|shard| cluster.start(shard));
    let run = long(&cluster);
    // Asleep, it owes an answer for certain; and the coordinator, whose patience is 30 s, does not give it up.
    second.signal("STOP");
    sleep(Duration::from_millis(1500));
    assert!(!run.stderr().contains("error"), "{}", run.stderr());
    let finished = ends(run, CERTAIN, || second.signal("KILL"));
    finished.says(&[&named(&cluster, 1), "worker is gone: nothing listens there; start the worker there"]);
    // The other one, and a new one in its place, serve on.
    drop(second);
    let again = cluster.start(1);
    assert_serves(&cluster);
    drop((first, again));
}

#[test]
fn a_worker_killed_between_tokens() {
    let cluster = Cluster::new(&models::nano(), 1);
    let worker = cluster.start(0);
    let run = long(&cluster);
    // While the coordinator sleeps, every call is answered: the worker owes nothing when it dies.
    run.signal("STOP");
    sleep(Duration::from_millis(300));
    worker.signal("KILL");
    sleep(Duration::from_millis(100));
    let finished = ends(run_on(run), CERTAIN, || {});
    finished.says(&[&named(&cluster, 0), "worker is gone: "]);
}

fn run_on(run: Running) -> Running {
    run.signal("CONT");
    run
}

#[test]
fn a_worker_that_is_asked_to_end_drains() {
    let cluster = Cluster::new(&models::nano(), 2);
    let [first, second] = [0, 1].map(|shard| cluster.start(shard));
    let run = long(&cluster);
    let finished = ends(run, CERTAIN, || first.signal("TERM"));
    let text = finished.message().to_owned();
    assert!(text.starts_with(&named(&cluster, 0)), "{text}");
    assert!(text.contains("draining") && text.contains("start the worker again"), "{text}");
    let ended = first.wait().succeeded();
    ended.says(&["draining", "shard 0: stopped"]);
    stop(second);
}

#[test]
fn a_worker_without_a_coordinator_ends_at_once() {
    let cluster = Cluster::new(&models::nano(), 1);
    for signal in ["TERM", "INT"] {
        let worker = cluster.start(0);
        let asked = Instant::now();
        worker.signal(signal);
        worker.wait().succeeded();
        assert!(asked.elapsed() < Duration::from_secs(2), "{signal}: {:?}", asked.elapsed());
    }
}

#[test]
fn a_call_that_is_not_answered_in_time() {
    let nano = models::nano();
    let link = "call_timeout_ms = 700";
    let cluster = Cluster::planned(&Plan { model: &nano, workers: 2, local_shard: false, link });
    let workers = cluster.start_all(&[]);
    let run = long(&cluster);
    let finished = ends(run, CERTAIN, || workers[1].signal("STOP"));
    let message = finished.message().to_owned();
    assert!(message.starts_with(&named(&cluster, 1)), "{message}");
    let rest = message.split_once("no reply to call ").unwrap_or_else(|| panic!("{message}")).1;
    let (number, rest) = rest.split_once(" (layer ").unwrap_or_else(|| panic!("{message}"));
    assert!(number.parse::<u64>().is_ok_and(|n| n > 0), "{message}");
    assert!(
        rest.contains("1 rows) within 0.7 s; see whether the worker is overloaded or asleep"),
        "{message}"
    );
    // Awake again it serves the next one.
    workers[1].signal("CONT");
    assert_serves(&cluster);
}

#[test]
fn a_port_that_is_taken() {
    let cluster = Cluster::new(&models::nano(), 1);
    let first = cluster.start(0);
    let second = cluster.worker(0).finish().failed(1).within(SOON);
    second.says(&[&format!("cannot listen at {}", cluster.address(0)), "in use"]);
    assert_serves(&cluster);
    drop(first);
}

/// For a process that loads nano and finds a fault, on a laden machine.
const SOON: Duration = Duration::from_secs(8);

/// From a fault to the end of the coordinator: "within a second of certainty", and a laden machine.
const CERTAIN: Duration = Duration::from_secs(2);
