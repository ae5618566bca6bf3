//! Loopback: order, reuse, faults.

use super::*;
use crate::ids::{ExpertRange, ShardId};
use crate::session::pair::{Rows, ScaleBank, greeting};
use crate::wire::FailureCode;

fn worker(shard: u16, range: ExpertRange) -> InMemoryWorker {
    let (hello, welcome) = greeting(shard, range);
    InMemoryWorker { hello, welcome, bank: Box::new(ScaleBank(range)) }
}

fn two() -> Vec<InMemoryWorker> {
    vec![worker(0, ExpertRange::new(0, 4)), worker(1, ExpertRange::new(4, 8))]
}

#[test]
fn two_shards_answer() {
    let mut links = InMemoryLinks::new(two(), CallerSettings::default()).unwrap();
    assert!(links.shards().iter().all(|shard| shard.up && shard.backend == "scale"));
    assert!(links.recv().unwrap().is_none());
    let (low, high) = (Rows::to(&[&[1], &[2, 3]]), Rows::to(&[&[4, 5]]));
    for _ in 0..3 {
        let calls = [links.send(1, &high.batch()).unwrap(), links.send(0, &low.batch()).unwrap()];
        let (first, second) = (links.recv().unwrap().unwrap(), links.recv().unwrap().unwrap());
        assert_eq!((first.link(), first.call(), first.sums()), (0, calls[1], &low.sums()[..]));
        assert_eq!((second.link(), second.call(), second.sums()), (1, calls[0], &high.sums()[..]));
        links.recycle(first);
        links.recycle(second);
    }
}

#[test]
fn every_worker_that_does_not_fit_is_named() {
    let mut workers = two();
    workers[0].hello.shard = ShardId(3);
    workers[1].hello.fingerprint = [0; 32];
    let Err(error) = InMemoryLinks::new(workers, CallerSettings::default()) else { panic!() };
    assert_eq!(error.0.len(), 2);
    let text = error.to_string();
    assert!(text.starts_with("shard 3 (in memory): incompatible shard: coordinator has shard 3"), "{text}");
    assert!(text.contains("\nshard 1 (in memory): incompatible model fingerprint"), "{text}");
}

#[test]
fn a_refused_call_leaves_both_links_up() {
    let mut links = InMemoryLinks::new(two(), CallerSettings::default()).unwrap();
    let call = links.send(0, &Rows::to(&[&[7]]).batch()).unwrap();
    let error = links.recv().unwrap_err();
    assert!(matches!(error.fault, Fault::Refused { code: FailureCode::ForeignExpert, .. }));
    assert_eq!((error.link, error.calls), (0, vec![call]));
    links.send(0, &Rows::to(&[&[3]]).batch()).unwrap();
    assert!(links.recv().unwrap().is_some());
}

#[test]
fn a_drained_worker_takes_one_link_down_until_reconnected() {
    let mut links = InMemoryLinks::new(two(), CallerSettings::default()).unwrap();
    let rows = Rows::to(&[&[1]]);
    links.workers[0].server.drain();
    links.exchange(0);
    links.send(1, &Rows::to(&[&[5]]).batch()).unwrap();
    let error = links.recv().unwrap_err();
    assert_eq!(error.fault.to_string(), "worker is gone: closed by worker (draining)");
    assert!(!links.shards()[0].up && links.shards()[1].up);
    assert_eq!(links.send(0, &rows.batch()).unwrap_err().fault, Fault::Down);
    assert_eq!(links.recv().unwrap().unwrap().link(), 1);
    links.reconnect(0).unwrap();
    links.send(0, &rows.batch()).unwrap();
    assert_eq!(links.recv().unwrap().unwrap().sums(), rows.sums());
}
