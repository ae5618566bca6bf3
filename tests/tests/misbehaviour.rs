//! Peers with the right key that say the wrong thing: a worker turns them away and serves on; a coordinator ends with
//! a typed error. Versions and releases that do not fit are here too, because no build of these programs has them.
// In a test a panic is the report.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use bytes::BytesMut;
use laguna_shared::compute::{ActivationType, ExpertBatch};
use laguna_shared::config::ConfigOptions;
use laguna_shared::ids::{ExpertId, ExpertRange, LayerId, ShardId};
use laguna_shared::wire::dispatch::{WorkerTimes, encode_call, encode_reply};
use laguna_shared::wire::frame::{CONTROL_LIMIT, ROWS_LIMIT};
use laguna_shared::wire::{BUILD, CallId, CloseCode, Failure, FailureCode, FrameKind, Hello, Refusal};
use laguna_tests::cluster::Cluster;
use laguna_tests::models;
use laguna_tests::raw::{self, Answer, Puppet, Script, frame_header, in_version, welcome};
use laguna_tests::run::{Finished, Run, Running};
use laguna_worker::model::OpenModel;

/// One worker for all of nano, in a process of its own.
struct Victim {
    cluster: Cluster,
    worker: Running,
}

impl Victim {
    fn start() -> Self {
        let cluster = Cluster::new(&models::nano(), 1);
        let worker = cluster.start(0);
        Self { cluster, worker }
    }

    fn say(&self, bytes: &[u8], enough: usize) -> Answer {
        let (own, worker) = (self.cluster.key("coordinator"), self.cluster.key("shard-0"));
        raw::say_to_worker(&self.cluster.address(0), &own, &worker, bytes, enough)
    }

    /// A proper coordinator is served still; and the worker has said what was wrong.
    #[track_caller]
    fn serves_on(self, said: &[&str]) {
        short(&self.cluster).finish().succeeded();
        self.worker.signal("TERM");
        let finished = self.worker.wait().succeeded().says(said);
        assert!(!finished.stderr.contains("panicked"), "{}", finished.stderr);
    }
}

fn short(cluster: &Cluster) -> Run {
    cluster.coord(&["generate", "--greedy", "-n", "4", "-p", "import os", "--wait", "0"])
}

/// What a coordinator of one worker says first.
fn hello() -> Hello {
    let model = OpenModel::open(&models::nano(), &ConfigOptions::default()).unwrap();
    model.hello(ShardId(0), ExpertRange::new(0, 256), ActivationType::F32).unwrap()
}

/// The reason in the one frame that a worker sends before it closes.
#[track_caller]
fn refusal(answer: &Answer) -> String {
    let [(FrameKind::Refusal, payload)] = answer.frames.as_slice() else { panic!("{answer:?}") };
    assert_eq!(answer.close_code(), CloseCode::Refused.number());
    Refusal::decode(payload).unwrap().to_string()
}

#[test]
fn a_worker_closes_on_garbage() {
    let victim = Victim::start();
    let garbage: Vec<u8> = (0..5000_u32).map(|n| (n * 37 + n / 7) as u8).collect();
    let answer = victim.say(&garbage, 1);
    assert!(answer.frames.is_empty(), "{answer:?}");
    assert_eq!(answer.close_code(), CloseCode::ProtocolError.number());
    victim.serves_on(&["coordinator turned away", "coordinator broke the protocol"]);
}

#[test]
fn a_worker_closes_on_a_frame_that_is_too_long() {
    let victim = Victim::start();
    for (kind, limit) in [(FrameKind::Hello, CONTROL_LIMIT), (FrameKind::Call, ROWS_LIMIT)] {
        let mut bytes = if kind == FrameKind::Call { raw::hello(&hello()) } else { Vec::new() };
        bytes.extend(frame_header(kind, limit as u32 + 1));
        let answer = victim.say(&bytes, 2);
        assert_eq!(answer.close_code(), CloseCode::ProtocolError.number(), "{answer:?}");
    }
    let (hello, call) = (CONTROL_LIMIT, ROWS_LIMIT);
    victim.serves_on(&[
        &format!("hello frame of {} bytes exceeds the limit of {hello}", hello + 1),
        &format!("call frame of {} bytes exceeds the limit of {call}", call + 1),
    ]);
}

#[test]
fn a_worker_refuses_another_version_and_names_both() {
    let victim = Victim::start();
    let answer = victim.say(&in_version(raw::hello(&hello()), 99), 2);
    let reason = "protocol version: coordinator has 99, worker has 1";
    assert_eq!(refusal(&answer), reason);
    victim.serves_on(&[reason]);
}

#[test]
fn a_worker_refuses_another_release_and_names_both() {
    let victim = Victim::start();
    let answer = victim.say(&raw::hello(&Hello { build: "9.9.9".to_owned(), ..hello() }), 2);
    let reason = format!("release: coordinator has 9.9.9, worker has {BUILD}");
    assert_eq!(refusal(&answer), reason);
    victim.serves_on(&[&reason]);
}

#[test]
fn a_worker_refuses_a_hello_that_does_not_decode() {
    let victim = Victim::start();
    let mut broken = frame_header(FrameKind::Hello, 12);
    broken.extend(1_u32.to_le_bytes());
    broken.extend([0xff; 8]);
    let reason = refusal(&victim.say(&broken, 2));
    assert!(reason.starts_with("hello was malformed: hello does not decode"), "{reason}");
    victim.serves_on(&["hello was malformed"]);
}

#[test]
fn a_worker_closes_on_a_call_without_a_hello_and_on_a_second_hello() {
    let victim = Victim::start();
    let mut call = BytesMut::new();
    encode_call(&mut call, CallId(1), &batch(&[0.5; 128], LayerId(1), &[ExpertId(3)])).unwrap();
    let answer = victim.say(&call, 2);
    assert_eq!(answer.close_code(), CloseCode::ProtocolError.number(), "{answer:?}");
    let twice = raw::hello(&hello()).repeat(2);
    assert_eq!(victim.say(&twice, 2).close_code(), CloseCode::ProtocolError.number());
    victim.serves_on(&["unexpected call frame", "unexpected hello frame"]);
}

fn batch<'b>(row: &[f32; 128], layer: LayerId, experts: &'b [ExpertId]) -> ExpertBatch<'b> {
    ExpertBatch {
        layer,
        activation: ActivationType::F32,
        hidden: 128,
        counts: &[1],
        experts,
        weights: &[1.0],
        rows: leaked(row),
    }
}

fn leaked(row: &[f32; 128]) -> &'static [u8] {
    // Leaked on purpose: a test's few hundred bytes.
    Vec::leak(row.iter().flat_map(|x| x.to_le_bytes()).collect())
}

#[test]
fn a_call_that_cannot_be_computed_is_refused_and_the_link_stays() {
    let victim = Victim::start();
    let row = [0.5; 128];
    let mut bytes = BytesMut::from(&raw::hello(&hello())[..]);
    // Layer 0 is dense; expert 999 is nobody's; the third is sound.
    encode_call(&mut bytes, CallId(7), &batch(&row, LayerId(0), &[ExpertId(3)])).unwrap();
    encode_call(&mut bytes, CallId(8), &batch(&row, LayerId(1), &[ExpertId(999)])).unwrap();
    encode_call(&mut bytes, CallId(9), &batch(&row, LayerId(1), &[ExpertId(3)])).unwrap();
    let answer = victim.say(&bytes, 4);
    assert!(answer.end.is_none(), "the worker keeps the link: {answer:?}");
    let kinds: Vec<FrameKind> = answer.frames.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [FrameKind::Welcome, FrameKind::Failure, FrameKind::Failure, FrameKind::Reply]);
    let failures = [1, 2].map(|n| Failure::decode(&answer.frames[n].1).unwrap());
    assert_eq!(failures.each_ref().map(|f| f.call), [CallId(7), CallId(8)]);
    assert_eq!(failures.each_ref().map(|f| f.code), [FailureCode::UnknownLayer, FailureCode::ForeignExpert]);
    assert!(failures[1].message.contains("expert 999 is outside this shard's range 0..256"), "{failures:?}");
    assert_eq!(answer.frames[3].1[..8], 9_u64.to_le_bytes());
    victim.serves_on(&[]);
}

/// How a coordinator ends whose only worker plays this script.
#[track_caller]
fn against(script: impl FnOnce(&Hello) -> Vec<Vec<u8>> + Send + 'static) -> Finished {
    let cluster = Cluster::new(&models::nano(), 1);
    let (own, coordinator) = (cluster.key("shard-0"), cluster.key("coordinator"));
    let script: Script = Box::new(script);
    let _puppet = Puppet::start(&cluster.address(0), &own, &coordinator, script);
    let began = Instant::now();
    let finished = short(&cluster).finish().failed(1);
    assert!(began.elapsed() < SOON, "it took {:?}\n{}", began.elapsed(), finished.stderr);
    assert!(finished.stdout.is_empty(), "{}", finished.text());
    let named = format!("error: shard 0 ({}): ", cluster.address(0));
    finished.says(&[&named])
}

#[test]
fn a_coordinator_ends_on_garbage() {
    let finished = against(|_| vec![vec![0xa5; 3000]]);
    finished.says(&["worker broke the protocol: ", "run the same release on both ends"]);
    let finished = against(|hello| vec![welcome(hello, |_| {}), vec![0xa5; 3000]]);
    finished.says(&["worker broke the protocol: "]);
}

#[test]
fn a_coordinator_ends_on_a_frame_that_is_too_long() {
    let finished = against(|_| vec![frame_header(FrameKind::Welcome, CONTROL_LIMIT as u32 + 1)]);
    let limit = CONTROL_LIMIT;
    finished.says(&[&format!("welcome frame of {} bytes exceeds the limit of {limit}", limit + 1)]);
    let finished =
        against(|hello| vec![welcome(hello, |_| {}), frame_header(FrameKind::Reply, ROWS_LIMIT as u32 + 1)]);
    let limit = ROWS_LIMIT;
    finished.says(&[&format!("reply frame of {} bytes exceeds the limit of {limit}", limit + 1)]);
}

#[test]
fn a_coordinator_names_both_versions_and_both_releases() {
    let finished = against(|hello| vec![in_version(welcome(hello, |_| {}), 99)]);
    finished.says(&["incompatible protocol version: coordinator has 1, worker has 99"]);
    let finished = against(|hello| vec![welcome(hello, |welcome| "9.9.9".clone_into(&mut welcome.build))]);
    finished.says(&[&format!("incompatible release: coordinator has {BUILD}, worker has 9.9.9")]);
}

/// A worker's refusal of either kind is shown as its own finding would be.
#[test]
fn a_coordinator_passes_on_why_it_was_refused() {
    let refuse = |refusal: Refusal| {
        let mut out = BytesMut::new();
        refusal.encode(&mut out).unwrap();
        out.to_vec()
    };
    let finished = against(move |_| vec![in_version(refuse(Refusal::Draining), 99)]);
    finished.says(&["protocol version: coordinator has 1, worker has 99"]);
    let finished = against(move |_| vec![refuse(Refusal::Draining)]);
    finished.says(&["worker refused the hello: draining"]);
}

#[test]
fn a_coordinator_checks_the_shard_of_the_welcome_itself() {
    let finished = against(|hello| vec![welcome(hello, |welcome| welcome.shard = ShardId(5))]);
    finished.says(&["incompatible shard: coordinator has shard 0, worker has shard 5"]);
    let finished = against(|hello| vec![welcome(hello, |welcome| welcome.weights = Some([7; 32]))]);
    finished.says(&["incompatible weight digest: coordinator has ", &"07".repeat(32)]);
}

fn reply(call: u64, layer: u16, rows: usize) -> Vec<u8> {
    let mut out = BytesMut::new();
    encode_reply(&mut out, CallId(call), LayerId(layer), 128, &vec![0.0; rows * 128], WorkerTimes::default())
        .unwrap();
    out.to_vec()
}

#[test]
fn a_coordinator_ends_on_answers_that_fit_no_call() {
    let finished = against(|hello| vec![welcome(hello, |_| {}), reply(4711, 1, 1)]);
    finished.says(&["answer to call 4711, which is not in flight"]);
    // "import os" and the opening token are some three rows; none is 77.
    let finished = against(|hello| vec![welcome(hello, |_| {}), reply(1, 1, 77)]);
    finished.says(&["worker broke the protocol: reply to call ", "has rows 77 instead of"]);
    let finished = against(|hello| vec![welcome(hello, |_| {}), welcome(hello, |_| {})]);
    finished.says(&["worker broke the protocol: unexpected welcome frame"]);
}

#[test]
fn a_typed_failure_ends_the_run_with_its_words() {
    let failure = |call| {
        let mut out = BytesMut::new();
        Failure::new(CallId(call), FailureCode::Backend, "the GPU is on fire").encode(&mut out).unwrap();
        out.to_vec()
    };
    let finished = against(move |hello| vec![welcome(hello, |_| {}), failure(1)]);
    finished.says(&["worker refused call 1: backend failure: the GPU is on fire"]);
}

/// For a process that loads nano and finds a fault, on a laden machine.
const SOON: Duration = Duration::from_secs(8);
