//! Real sockets on 127.0.0.1: what works, and every way it fails, with its error and how long that took.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::sleep;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use quinn::{ClientConfig, Endpoint};

mod actors;
mod interop;

use actors::{BusyBank, Puppet, Worker, dial, runtime, welcome_line};

use super::dial::any;
use super::identity::SERVER_NAME;
use super::*;
use crate::compute::{ActivationType, ExpertBatch};
use crate::ids::{ExpertId, ExpertRange, LayerId, ShardId};
use crate::session::pair::{Rows, ScaleBank, greeting};
use crate::session::{CallerSettings, ConnectError, Fault, Gone, InMemoryWorker, Links, Misbehaviour};
use crate::wire::dispatch::{WorkerTimes, encode_reply};
use crate::wire::frame::{CONTROL_LIMIT, ROWS_LIMIT};
use crate::wire::{CallId, CloseCode, Hello, Subject, Welcome, WireError};

fn connect(identity: &Identity, peers: &[&Peer]) -> Result<QuicLinks, ConnectError> {
    QuicLinks::connect(
        identity.clone(),
        peers.iter().map(|peer| (*peer).clone()).collect(),
        QuicSettings::default(),
    )
}

fn refused(identity: &Identity, peer: &Peer) -> Fault {
    match connect(identity, &[peer]) {
        Ok(_) => panic!("connected"),
        Err(ConnectError(mut errors)) => errors.remove(0).fault,
    }
}

fn two_workers(identity: &Identity) -> [Worker; 2] {
    [Worker::start(0, ExpertRange::new(0, 4), identity), Worker::start(1, ExpertRange::new(4, 8), identity)]
}

#[test]
fn two_workers_answer_and_one_drains() {
    let identity = Identity::generate().unwrap();
    let [first, second] = two_workers(&identity);
    let mut links = connect(&identity, &[&first.peer, &second.peer]).unwrap();
    assert!(links.shards().iter().all(|shard| shard.up));
    let (low, high) = (Rows::to(&[&[1], &[2, 3]]), Rows::to(&[&[4, 5]]));
    for _ in 0..20 {
        let calls = [links.send(0, &low.batch()).unwrap(), links.send(1, &high.batch()).unwrap()];
        for _ in 0..2 {
            let reply = links.recv().unwrap().unwrap();
            assert_eq!(reply.call(), calls[reply.link()]);
            assert_eq!(reply.sums(), [&low, &high][reply.link()].sums());
            links.recycle(reply);
        }
    }
    assert!(links.recv().unwrap().is_none());
    // The end is told with the other worker's reply, once a call is in flight.
    links.send(1, &high.batch()).unwrap();
    first.stop();
    let mut results = [links.recv(), links.recv()];
    results.sort_by_key(Result::is_ok);
    let [gone, reply] = results;
    assert_eq!(gone.unwrap_err().fault, Fault::PeerGone(Gone::Closed(CloseCode::Draining)));
    assert_eq!(reply.unwrap().unwrap().link(), 1);
    assert_eq!(links.send(0, &low.batch()).unwrap_err().fault, Fault::Down);
}

/// Calls closer than a spinning end's patience, and further apart; spinning and sleeping ends in every combination.
#[test]
fn an_end_may_spin_or_sleep_whatever_the_other_does() {
    let identity = Identity::generate().unwrap();
    for (here, there) in [(true, true), (true, false), (false, true), (false, false)] {
        let settings = ServeSettings {
            identity: Identity::generate().unwrap(),
            listen: ([127, 0, 0, 1], 0).into(),
            coordinators: vec![identity.pin()],
            mtu: None,
            spin: there,
        };
        let busy = BusyBank(ScaleBank(ExpertRange::new(0, 8)), || sleep(Duration::from_millis(6)));
        let worker = Worker::serve(0, Box::new(busy), &settings);
        let settings = QuicSettings { spin: here, ..QuicSettings::default() };
        let mut links = QuicLinks::connect(identity.clone(), vec![worker.peer.clone()], settings).unwrap();
        let rows = Rows::to(&[&[1, 2], &[3]]);
        for pause in [0, 0, 1, 10, 0] {
            sleep(Duration::from_millis(pause));
            links.send(0, &rows.batch()).unwrap();
            assert_eq!(links.recv().unwrap().unwrap().sums(), rows.sums());
        }
        // A worker that spins is stopped like any other.
        worker.stop();
        notice_while_idle(&mut links);
    }
}

#[test]
fn a_restarted_worker_is_reconnected() {
    let identity = Identity::generate().unwrap();
    let worker = Worker::start(0, ExpertRange::new(0, 8), &identity);
    let mut links = connect(&identity, &[&worker.peer]).unwrap();
    let rows = Rows::to(&[&[1]]);
    // The link is up: reconnecting replaces it.
    links.reconnect(0).unwrap();
    links.send(0, &rows.batch()).unwrap();
    assert!(links.recv().unwrap().is_some());
    worker.stop();
    let error = links.reconnect(0).unwrap_err();
    assert_eq!(error.fault, Fault::PeerGone(Gone::NothingListens));
    assert!(!links.shards()[0].up);
}

#[test]
fn loopback_answers_bulk_and_refuses_strangers() {
    let workers = (0..3).map(|shard| {
        let range = ExpertRange::new(shard * 4, shard * 4 + 4);
        let (mut hello, mut welcome) = greeting(shard, range);
        (hello.hidden, welcome.hidden) = (WIDE as u32, WIDE as u32);
        InMemoryWorker { hello, welcome, bank: Box::new(ScaleBank(range)) }
    });
    const WIDE: usize = 3072;
    let mut links = QuicLinks::loopback(workers.collect(), QuicSettings::default()).unwrap();
    let rows: Vec<f32> = (0..256 * WIDE).map(|n| n as f32).collect();
    for round in 0..3 {
        for link in 0..3 {
            let batch = ExpertBatch {
                layer: LayerId(1),
                activation: ActivationType::F32,
                hidden: WIDE,
                counts: &[1; 256],
                experts: &[ExpertId(link as u16 * 4); 256],
                weights: &[0.5; 256],
                rows: bytemuck::cast_slice(&rows),
            };
            links.send(link, &batch).unwrap();
        }
        for _ in 0..3 {
            let reply = links.recv().unwrap().unwrap();
            let scale = 0.5 * (reply.link() * 4 + 1) as f32;
            assert!(reply.sums().iter().zip(&rows).all(|(y, x)| *y == x * scale), "round {round}");
            links.recycle(reply);
        }
    }
}

#[test]
fn a_worker_with_another_key_is_not_trusted() {
    let identity = Identity::generate().unwrap();
    let worker = Worker::start(0, ExpertRange::new(0, 8), &identity);
    let expected = Identity::generate().unwrap().pin();
    let Fault::Unauthenticated(reason) = refused(&identity, &Peer { pin: expected, ..worker.peer.clone() })
    else {
        panic!()
    };
    assert!(
        reason.contains(&worker.peer.pin.to_string()) && reason.contains(&expected.to_string()),
        "{reason}"
    );
}

#[test]
fn an_unknown_coordinator_is_not_admitted() {
    let worker = Worker::start(0, ExpertRange::new(0, 8), &Identity::generate().unwrap());
    let stranger = Identity::generate().unwrap();
    let fault = refused(&stranger, &worker.peer);
    assert!(matches!(&fault, Fault::Unauthenticated(reason) if reason.contains("does not admit")), "{fault}");
}

#[test]
fn a_coordinator_without_a_certificate_is_not_admitted() {
    let identity = Identity::generate().unwrap();
    let worker = Worker::start(0, ExpertRange::new(0, 8), &identity);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let (_, pinned) = tls::client(&identity, worker.peer.pin).unwrap();
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(pinned)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"laguna-ep/1".to_vec()];
    let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(config).unwrap();
    runtime().block_on(async {
        let endpoint = Endpoint::client(any([127, 0, 0, 1].into())).unwrap();
        let config = ClientConfig::new(Arc::new(crypto));
        let address = worker.peer.address.parse().unwrap();
        let end = match endpoint.connect_with(config, address, SERVER_NAME).unwrap().await {
            Ok(connection) => connection.closed().await,
            Err(error) => error,
        };
        assert!(matches!(end, quinn::ConnectionError::ConnectionClosed(_)), "{end}");
    });
}

#[test]
fn what_does_not_fit_is_named_with_both_values() {
    let identity = Identity::generate().unwrap();
    let worker = Worker::start(0, ExpertRange::new(0, 8), &identity);
    let hello = worker.peer.hello.clone();
    let cases = [
        (Hello { weights: Some([9; 32]), ..hello.clone() }, Subject::Weights, "090909", "no digest"),
        (Hello { shard: ShardId(1), ..hello.clone() }, Subject::Shard, "shard 1", "shard 0"),
        (Hello { fingerprint: [8; 32], ..hello.clone() }, Subject::Model, "0808", "0707"),
        (Hello { build: "9.9.9".to_owned(), ..hello }, Subject::Build, "9.9.9", crate::wire::BUILD),
    ];
    for (hello, subject, ours, theirs) in cases {
        let Fault::Incompatible(mismatch) = refused(&identity, &Peer { hello, ..worker.peer.clone() }) else {
            panic!("{subject}")
        };
        assert_eq!(mismatch.subject, subject);
        assert!(mismatch.coordinator.starts_with(ours) && mismatch.worker.starts_with(theirs), "{mismatch}");
    }
}

#[test]
fn another_protocol_version_is_named_by_either_end() {
    let identity = Identity::generate().unwrap();
    let mut newer = welcome_line();
    newer[8] = 3;
    let puppet = Puppet::start(&identity, vec![newer]);
    let fault = refused(&identity, &puppet.peer);
    assert_eq!(fault.to_string(), "incompatible protocol version: coordinator has 1, worker has 3");

    let worker = Worker::start(0, ExpertRange::new(0, 8), &identity);
    let mut hello = BytesMut::new();
    worker.peer.hello.encode(&mut hello).unwrap();
    hello[8] = 2;
    let (answer, close) = say(&identity, &worker.peer, &hello);
    let refusal = crate::wire::Refusal::decode(&answer[8..]).unwrap().to_string();
    assert_eq!(refusal, "protocol version: coordinator has 2, worker has 1");
    assert_eq!(close, CloseCode::Refused);
}

#[test]
fn a_worker_closes_on_garbage_and_oversize_frames() {
    let identity = Identity::generate().unwrap();
    let worker = Worker::start(0, ExpertRange::new(0, 8), &identity);
    let oversize = |limit: usize, kind| [&(limit as u32 + 1).to_le_bytes()[..], &[kind, 0, 0, 0]].concat();
    for bytes in [b"GET / HTTP/1.1\r\n\r\n".to_vec(), oversize(CONTROL_LIMIT, 1), oversize(ROWS_LIMIT, 4)] {
        assert_eq!(say(&identity, &worker.peer, &bytes).1, CloseCode::ProtocolError);
    }
    // And goes on serving.
    assert!(connect(&identity, &[&worker.peer]).is_ok());
}

/// Sends bytes as an admitted coordinator; what the worker answers, and the code it closes with.
fn say(identity: &Identity, peer: &Peer, bytes: &[u8]) -> (Vec<u8>, CloseCode) {
    runtime().block_on(async {
        let connection = dial(identity, peer).await;
        let (mut send, mut recv) = connection.open_bi().await.unwrap();
        send.write_all(bytes).await.unwrap();
        let answer = recv.read_to_end(100_000).await.unwrap_or_default();
        match connection.closed().await {
            quinn::ConnectionError::ApplicationClosed(close) => {
                (answer, CloseCode::from_number(close.error_code.into_inner()))
            }
            other => panic!("{other}"),
        }
    })
}

#[test]
fn a_worker_that_misbehaves_is_left() {
    let identity = Identity::generate().unwrap();
    let puppet = Puppet::start(&identity, vec![BytesMut::from(&b"HTTP/1.1 400 Bad Request\r\n"[..])]);
    assert!(matches!(refused(&identity, &puppet.peer), Fault::PeerMisbehaved(Misbehaviour::Wire(_))));

    let mut wrong_rows = BytesMut::new();
    encode_reply(&mut wrong_rows, CallId(1), LayerId(1), 4, &[0.0; 8], WorkerTimes::default()).unwrap();
    let oversize = [&(ROWS_LIMIT as u32 + 1).to_le_bytes()[..], &[5, 0, 0, 0]].concat();
    let shape = Misbehaviour::Shape { call: CallId(1), what: "rows", expected: 1, got: 2 };
    let (length, limit) = (ROWS_LIMIT as u64 + 1, ROWS_LIMIT as u64);
    let long = Misbehaviour::Wire(WireError::TooLong { kind: "reply", length, limit });
    for (line, expected) in [(wrong_rows, shape), (BytesMut::from(&oversize[..]), long)] {
        let puppet = Puppet::start(&identity, vec![welcome_line(), line]);
        let worker = Worker::start(0, ExpertRange::new(0, 8), &identity);
        let mut links = connect(&identity, &[&puppet.peer, &worker.peer]).unwrap();
        let call = links.send(0, &Rows::to(&[&[1]]).batch()).unwrap();
        let error = links.recv().unwrap_err();
        assert_eq!((error.fault, error.calls), (Fault::PeerMisbehaved(expected), vec![call]));
        links.send(1, &Rows::to(&[&[1]]).batch()).unwrap();
        assert_eq!(links.recv().unwrap().unwrap().link(), 1);
    }
}

#[test]
fn a_worker_that_vanishes_during_a_call_is_noticed_at_once() {
    let identity = Identity::generate().unwrap();
    let Puppet { peer, vanish, .. } = Puppet::start(&identity, vec![welcome_line()]);
    let worker = Worker::start(1, ExpertRange::new(0, 8), &identity);
    let mut links = connect(&identity, &[&peer, &worker.peer]).unwrap();
    let call = links.send(0, &Rows::to(&[&[1]]).batch()).unwrap();
    let other = links.send(1, &Rows::to(&[&[1]]).batch()).unwrap();
    assert_eq!(links.recv().unwrap().unwrap().call(), other);
    drop(vanish);
    let began = Instant::now();
    let error = links.recv().unwrap_err();
    assert!(began.elapsed() < Duration::from_millis(1500), "{:?}", began.elapsed());
    assert_eq!((error.fault, error.calls), (Fault::PeerGone(Gone::NothingListens), vec![call]));
    links.send(1, &Rows::to(&[&[1]]).batch()).unwrap();
    assert!(links.recv().unwrap().is_some(), "the other link works");
}

#[test]
fn a_worker_that_was_started_again_during_a_call_is_noticed_at_once() {
    let identity = Identity::generate().unwrap();
    let Puppet { peer, identity: worker, vanish } = Puppet::start(&identity, vec![welcome_line()]);
    let mut links = connect(&identity, &[&peer]).unwrap();
    links.send(0, &Rows::to(&[&[1]]).batch()).unwrap();
    sleep(Duration::from_millis(300));
    drop(vanish);
    sleep(Duration::from_millis(100));
    let bank = Box::new(ScaleBank(ExpertRange::new(0, 8)));
    let again = Worker::again(0, bank, identity.pin(), worker, &peer.address);
    let began = Instant::now();
    let fault = links.recv().unwrap_err().fault;
    assert!(began.elapsed() < Duration::from_millis(1500), "{:?}", began.elapsed());
    assert_eq!(fault, Fault::PeerGone(Gone::Lost("worker was started anew".to_owned())));
    links.reconnect(0).unwrap();
    links.send(0, &Rows::to(&[&[1]]).batch()).unwrap();
    assert!(links.recv().unwrap().is_some());
    again.stop();
}

#[test]
fn a_call_leaves_before_its_reply_is_asked_for() {
    let identity = Identity::generate().unwrap();
    let (asked, witness) = channel();
    let bank = Box::new(BusyBank(ScaleBank(ExpertRange::new(0, 8)), move || asked.send(()).unwrap()));
    let worker = Worker::with(0, bank, identity.pin());
    let mut links = connect(&identity, &[&worker.peer]).unwrap();
    for _ in 0..5 {
        links.send(0, &Rows::to(&[&[1]]).batch()).unwrap();
        witness.recv_timeout(Duration::from_secs(5)).unwrap();
        links.recv().unwrap().unwrap();
    }
}

#[test]
fn a_reply_that_came_in_time_is_taken_by_whoever_looks_too_late() {
    let identity = Identity::generate().unwrap();
    let worker = Worker::start(0, ExpertRange::new(0, 8), &identity);
    let timeout = Duration::from_millis(500);
    let caller = CallerSettings { call_timeout: timeout, ..CallerSettings::default() };
    let settings = QuicSettings { caller, ..QuicSettings::default() };
    let mut links = QuicLinks::connect(identity, vec![worker.peer.clone()], settings).unwrap();
    let rows = Rows::to(&[&[1]]);
    links.send(0, &rows.batch()).unwrap();
    // As an engine does that computes the next micro-batch of a very long prompt.
    sleep(timeout + Duration::from_millis(200));
    assert_eq!(links.recv().unwrap().unwrap().sums(), rows.sums());
}

#[test]
fn nobody_there_is_noticed_at_once_and_by_name() {
    let identity = Identity::generate().unwrap();
    let worker = Worker::start(0, ExpertRange::new(0, 8), &identity);
    let gone = worker.peer.clone();
    worker.stop();
    let unknown = Peer { address: "no-such-host.invalid:4433".to_owned(), ..gone.clone() };
    let began = Instant::now();
    let Err(ConnectError(errors)) = connect(&identity, &[&gone, &unknown]) else { panic!() };
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    assert_eq!(errors.len(), 2);
    assert_eq!(errors[0].fault, Fault::PeerGone(Gone::NothingListens));
    assert!(errors[1].to_string().contains("cannot resolve no-such-host.invalid:4433"), "{}", errors[1]);
}

#[test]
fn a_slow_call_is_waited_for_and_finished_before_a_drain() {
    let identity = Identity::generate().unwrap();
    let bank = Box::new(BusyBank(ScaleBank(ExpertRange::new(0, 8)), || sleep(Duration::from_millis(700))));
    let worker = Worker::with(0, bank, identity.pin());
    let mut links = connect(&identity, &[&worker.peer]).unwrap();
    let rows = Rows::to(&[&[1]]);
    links.send(0, &rows.batch()).unwrap();
    sleep(Duration::from_millis(100));
    worker.stop.stop();
    let reply = links.recv().unwrap().unwrap();
    assert_eq!(reply.sums(), rows.sums());
    assert!(reply.times().compute >= Duration::from_millis(700));
    drop(worker);
    notice_while_idle(&mut links);
}

/// An idle engine that looks in now and then learns that its worker has gone, without calling.
fn notice_while_idle(links: &mut QuicLinks) {
    let noticed = (0..100).any(|_| {
        sleep(Duration::from_millis(20));
        links.progress();
        !links.shards()[0].up
    });
    assert!(noticed);
}

#[test]
fn a_worker_restarted_while_nobody_asks_is_noticed_and_reconnected() {
    let (identity, keys) = (Identity::generate().unwrap(), Identity::generate().unwrap());
    let range = ExpertRange::new(0, 8);
    let start =
        |listen: &str| Worker::again(0, Box::new(ScaleBank(range)), identity.pin(), keys.clone(), listen);
    let first = start("127.0.0.1:0");
    let mut links = connect(&identity, &[&first.peer]).unwrap();
    let address = first.peer.address.clone();
    first.stop();
    notice_while_idle(&mut links);
    let rows = Rows::to(&[&[1]]);
    assert_eq!(links.send(0, &rows.batch()).unwrap_err().fault, Fault::Down);

    let _second = start(&address);
    links.reconnect(0).unwrap();
    assert!(links.shards()[0].up);
    links.send(0, &rows.batch()).unwrap();
    assert_eq!(links.recv().unwrap().unwrap().sums(), rows.sums());
}

#[test]
fn a_welcome_of_the_test_bank_is_what_links_show() {
    let (hello, welcome) = greeting(2, ExpertRange::new(0, 8));
    let welcome = Welcome { free_memory_bytes: 77, ..welcome };
    let worker = InMemoryWorker { hello, welcome, bank: Box::new(ScaleBank(ExpertRange::new(0, 8))) };
    let links = QuicLinks::loopback(vec![worker], QuicSettings::default()).unwrap();
    let shard = &links.shards()[0];
    assert_eq!((shard.shard, shard.free_memory_bytes, shard.resident_bytes), (ShardId(2), 77, 4096));
    assert!(shard.address.starts_with("127.0.0.1:"));
}
