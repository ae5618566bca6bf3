//! What lies between the machines: links that lose, delay, reorder, or go silent. The bits are the same through all of
//! them, and nothing hangs.
// In a test a panic is the report.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use laguna_tests::cluster::{Cluster, Plan};
use laguna_tests::models;
use laguna_tests::outputs::assert_same_bits;
use laguna_tests::relay::pipe::Traffic;
use laguna_tests::relay::{Link, Relay};
use laguna_tests::run::Run;

/// A prompt of several chunks' worth of rows, so that calls are larger than any datagram, and steps of one row.
fn prompts(folder: &Path) -> PathBuf {
    let long: Vec<u32> = (0..300).map(|n| 100 + n * 7 % 1900).collect();
    let text = serde_json::json!([
        { "key": "long", "input_ids": long, "greedy": 4 },
        { "key": "one", "input_ids": [2], "greedy": 12 },
    ]);
    let path = folder.join("prompts.json");
    fs::write(&path, text.to_string()).unwrap();
    path
}

/// Two workers, each behind a relay, give the bits of one process; returns what the relays saw.
#[track_caller]
fn assert_bits_through(link: &Link, seed: u64) -> Vec<Traffic> {
    let folder = tempfile::tempdir().unwrap();
    let prompts = prompts(folder.path());
    let [near, far] = ["near", "far"].map(|name| folder.path().join(name));
    let eval = |run: Run, out: &Path| {
        run.arg("--prompts").arg(&prompts).arg("--out").arg(out).finish().succeeded();
    };
    eval(Run::coord(["eval", "--loopback=2", "--model"]).arg(models::nano()), &near);
    let cluster = Cluster::new(&models::nano(), 2);
    let _workers = cluster.start_all(&[]);
    let (distant, relays) = cluster.behind(link, seed);
    eval(distant.coord(&["eval"]), &far);
    assert_same_bits(&near, &far);
    relays.iter().flat_map(Relay::traffic).collect()
}

#[test]
fn lossy_jittery_reordering_links_give_the_bits_of_memory() {
    let [delay, jitter] = [Duration::from_micros(600), Duration::from_micros(500)];
    let link = Link { delay, jitter, reorder: true, loss: 0.02, ..Link::default() };
    let traffic = assert_bits_through(&link, 11);
    assert!(traffic.iter().map(|one| one.lost).sum::<u64>() > 5, "{traffic:?}");
    assert!(traffic.iter().all(|one| one.carried > 50), "{traffic:?}");
}

#[test]
fn a_link_that_loses_one_in_a_hundred_completes() {
    let link = Link { loss: 0.01, delay: Duration::from_micros(100), ..Link::default() };
    let cluster = Cluster::new(&models::nano(), 1);
    let _worker = cluster.start(0);
    let (distant, relays) = cluster.behind(&link, 3);
    let generate = |cluster: &Cluster| {
        let run = cluster.coord(&["generate", "--greedy", "-n", "192", "-p", "class Stack:\n"]);
        run.finish().succeeded().text()
    };
    assert_eq!(generate(&distant), generate(&cluster));
    let [out, back] = relays[0].traffic();
    assert!(out.lost + back.lost > 0, "{out:?} {back:?}");
}

/// Discovery probes upwards from 1200 bytes and has to notice that larger ones vanish.
#[test]
fn a_small_mtu_is_found_and_a_narrow_queue_is_survived() {
    let link = Link { mtu: Some(1400), ..Link::default() };
    let traffic = assert_bits_through(&link, 1);
    assert!(traffic.iter().map(|one| one.too_large).sum::<u64>() > 0, "{traffic:?}");
    // 64 KB of queue for chunks of several hundred: most of a burst finds it full.
    let link = Link { rate: Some(200_000_000), queue: 64 << 10, mtu: Some(8972), ..Link::default() };
    let traffic = assert_bits_through(&link, 2);
    assert!(traffic.iter().map(|one| one.overflowed).sum::<u64>() > 0, "{traffic:?}");
}

#[test]
fn a_link_that_goes_silent_in_the_middle_of_a_call() {
    let nano = models::nano();
    let link = "call_timeout_ms = 800";
    let cluster = Cluster::planned(&Plan { model: &nano, workers: 2, local_shard: false, link });
    let workers = cluster.start_all(&[]);
    let (distant, relays) = cluster.behind(&Link::default(), 1);
    let mut run = distant.coord(&["generate", "--greedy", "-n", "1900", "-p", "class Stack:\n"]).start();
    run.until(|run| run.stdout().len() > 10);
    // Asleep, the second worker owes an answer for certain when its link goes.
    workers[1].signal("STOP");
    sleep(Duration::from_millis(100));
    relays[1].cut();
    let cut = Instant::now();
    workers[1].signal("CONT");
    let finished = run.wait().failed(1);
    assert!(cut.elapsed() < BOUND, "{:?}\n{}", cut.elapsed(), finished.stderr);
    let named = format!("error: shard 1 ({}): no reply to call ", distant.address(1));
    assert!(finished.message().starts_with(&named), "{}", finished.stderr);
    let finished = finished.says(&["(layer ", "1 rows) within 0.8 s"]);
    assert!(!finished.stderr.contains("error: shard 0"), "{}", finished.stderr);
    // The worker is well, and the link mended: both serve the next coordinator.
    relays[1].mend();
    distant.coord(&["generate", "--greedy", "-n", "4", "-p", "x"]).finish().succeeded();
}

#[test]
fn a_link_that_is_silent_from_the_start() {
    let nano = models::nano();
    let link = "connect_timeout_ms = 400";
    let cluster = Cluster::planned(&Plan { model: &nano, workers: 1, local_shard: false, link });
    let _worker = cluster.start(0);
    let (distant, relays) = cluster.behind(&Link::default(), 1);
    relays[0].cut();
    let finished = distant.coord(&["generate", "--greedy", "-n", "4", "-p", "x", "--wait", "0"]).finish();
    let named = format!("error: shard 0 ({}): ", distant.address(0));
    finished.failed(1).says(&[&named, "no connection within 0.4 s"]).within(BOUND);
}

/// A time-out of less than a second, a process that loads nano, and a laden machine.
const BOUND: Duration = Duration::from_secs(8);
