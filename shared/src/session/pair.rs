//! Two ends under a virtual clock, with a delay, and a bank whose answers a test can predict.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use super::caller::{Caller, CallerEvent, CallerSettings};
use super::fault::{Fault, Gone, Misbehaviour, Missing};
use super::server::{Server, ServerEnd};
use crate::compute::{ActivationType, BankError, ExpertBank, ExpertBatch};
use crate::ids::{ExpertId, ExpertRange, LayerId, ShardId};
use crate::wire::dispatch::{WorkerTimes, encode_reply};
use crate::wire::{
    CallId, CloseCode, Failure, FailureCode, Hello, Mismatch, PROTOCOL_VERSION, Subject, Welcome,
};

/// Elements per row in these tests.
pub(crate) const HIDDEN: usize = 4;

/// Answers `Σ weight · (expert + 1) · x`. Layer 9 fails in the backend.
pub(crate) struct ScaleBank(pub(crate) ExpertRange);

impl ExpertBank for ScaleBank {
    fn range(&self) -> ExpertRange {
        self.0
    }

    fn backend(&self) -> &'static str {
        "scale"
    }

    fn resident_bytes(&self) -> u64 {
        4096
    }

    fn run(&mut self, batch: &ExpertBatch<'_>, out: &mut Vec<f32>) -> Result<(), BankError> {
        if batch.layer == LayerId(9) {
            return Err(BankError::Backend { backend: "scale", message: "out of order".to_owned() });
        }
        out.clear();
        let mut slots = batch.experts.iter().zip(batch.weights);
        for (row, count) in bytemuck::cast_slice::<u8, f32>(batch.rows).chunks(batch.hidden).zip(batch.counts)
        {
            let scale: f32 = slots.by_ref().take((*count).into()).map(|(e, w)| w * f32::from(e.0 + 1)).sum();
            out.extend(row.iter().map(|x| x * scale));
        }
        Ok(())
    }
}

/// A worker for `range` and what a coordinator expects of it.
pub(crate) fn greeting(shard: u16, range: ExpertRange) -> (Hello, Welcome) {
    let layers = vec![LayerId(1), LayerId(2), LayerId(9)];
    let welcome = Welcome::of(&ScaleBank(range), ShardId(shard), [7; 32], HIDDEN as u32, layers);
    (welcome.expected_hello(ActivationType::F32), welcome)
}

/// Rows for layer 1: row r holds `r + 1` and goes to the given experts with weight 0.5 each.
pub(crate) struct Rows {
    counts: Vec<u16>,
    experts: Vec<ExpertId>,
    weights: Vec<f32>,
    rows: Vec<f32>,
}

impl Rows {
    pub(crate) fn to(experts: &[&[u16]]) -> Self {
        Self {
            counts: experts.iter().map(|row| row.len() as u16).collect(),
            experts: experts.concat().into_iter().map(ExpertId).collect(),
            weights: vec![0.5; experts.concat().len()],
            rows: (0..experts.len() * HIDDEN).map(|n| (n / HIDDEN + 1) as f32).collect(),
        }
    }

    pub(crate) fn batch(&self) -> ExpertBatch<'_> {
        ExpertBatch {
            layer: LayerId(1),
            activation: ActivationType::F32,
            hidden: HIDDEN,
            counts: &self.counts,
            experts: &self.experts,
            weights: &self.weights,
            rows: bytemuck::cast_slice(&self.rows),
        }
    }

    /// What a [`ScaleBank`] answers.
    pub(crate) fn sums(&self) -> Vec<f32> {
        let mut out = Vec::new();
        ScaleBank(ExpertRange::default()).run(&self.batch(), &mut out).unwrap();
        out
    }
}

/// Both ends of one link; bytes take `delay` each way.
struct Pair {
    caller: Caller,
    server: Server,
    bank: ScaleBank,
    now: Instant,
    delay: Duration,
    /// Time a call computes.
    compute: Duration,
    to_server: VecDeque<(Instant, Bytes)>,
    to_caller: VecDeque<(Instant, Bytes)>,
    /// Neither direction delivers any more.
    cut: bool,
}

impl Pair {
    fn new(hello: Hello, welcome: Welcome) -> Self {
        let now = Instant::now();
        let bank = ScaleBank(welcome.range);
        Self {
            caller: Caller::new(hello, CallerSettings::default(), now),
            server: Server::new(Arc::new(welcome), now),
            bank,
            now,
            delay: Duration::from_millis(1),
            compute: Duration::ZERO,
            to_server: VecDeque::new(),
            to_caller: VecDeque::new(),
            cut: false,
        }
    }

    /// A pair that has greeted.
    fn ready() -> Self {
        let (hello, welcome) = greeting(0, ExpertRange::new(0, 8));
        let mut pair = Self::new(hello, welcome);
        assert!(matches!(pair.drive(), Some(CallerEvent::Ready)));
        pair
    }

    /// Moves bytes and the clock until the caller has an event, or nothing more can happen.
    fn drive(&mut self) -> Option<CallerEvent> {
        loop {
            if let Some(event) = self.caller.poll_event() {
                return Some(event);
            }
            while let Some(bytes) = self.caller.poll_transmit() {
                self.to_server.push_back((self.now + self.delay, bytes));
            }
            while let Some(bytes) = self.server.poll_transmit() {
                self.to_caller.push_back((self.now + self.delay, bytes));
            }
            if !self.cut
                && self.to_caller.is_empty()
                && let Some(end) = self.server.end()
            {
                self.caller.handle_closed(Fault::PeerGone(Gone::Closed(end.close_code())));
                if let Some(event) = self.caller.poll_event() {
                    return Some(event);
                }
            }
            if self.server.has_call() {
                let (began, ended) = (self.now, self.now + self.compute);
                let reads = std::cell::Cell::new(0);
                let clock = || if reads.replace(1) == 0 { began } else { ended };
                self.server.run_next(&mut self.bank, clock);
                self.now = ended;
                continue;
            }
            let arrivals = [self.to_server.front(), self.to_caller.front()];
            let arrivals = arrivals.into_iter().flatten().map(|(at, _)| *at).filter(|_| !self.cut);
            let timeouts = [self.caller.poll_timeout(), self.server.poll_timeout()];
            let next = arrivals.chain(timeouts.into_iter().flatten()).min()?;
            self.now = self.now.max(next);
            if !self.cut {
                while let Some(bytes) = arrived(&mut self.to_server, self.now) {
                    self.server.handle_bytes(&bytes, self.now);
                }
                while let Some(bytes) = arrived(&mut self.to_caller, self.now) {
                    self.caller.handle_bytes(&bytes, self.now);
                }
            }
            self.caller.handle_timeout(self.now);
            self.server.handle_timeout(self.now);
        }
    }

    fn call(&mut self, id: u64, rows: &Rows) {
        self.caller.call(CallId(id), &rows.batch(), self.now).unwrap();
    }

    /// The caller, fed bytes that no worker sent.
    fn forge(&mut self, bytes: &[u8]) -> Fault {
        self.caller.handle_bytes(bytes, self.now);
        self.fault()
    }

    fn fault(&mut self) -> Fault {
        match self.drive() {
            Some(CallerEvent::Closed { fault, .. }) => fault,
            other => panic!("{other:?}"),
        }
    }
}

fn arrived(pipe: &mut VecDeque<(Instant, Bytes)>, now: Instant) -> Option<Bytes> {
    pipe.front().filter(|(at, _)| *at <= now)?;
    pipe.pop_front().map(|(_, bytes)| bytes)
}

#[test]
fn calls_are_answered_with_their_times() {
    let mut pair = Pair::ready();
    pair.compute = Duration::from_millis(5);
    let rows = Rows::to(&[&[0, 1], &[3]]);
    pair.call(1, &rows);
    let Some(CallerEvent::Reply { reply, round_trip }) = pair.drive() else { panic!() };
    assert_eq!((reply.id(), reply.rows()), (CallId(1), 2));
    assert_eq!(reply.sums(), rows.sums());
    assert_eq!(reply.sums()[0], 1.5);
    assert_eq!(reply.times().compute, Duration::from_millis(5));
    assert_eq!(round_trip, Duration::from_millis(7));
    assert_eq!(pair.caller.poll_timeout(), None);
}

#[test]
fn a_deadline_passes_once_and_names_the_call() {
    let mut pair = Pair::ready();
    pair.cut = true;
    pair.call(1, &Rows::to(&[&[0], &[1], &[2]]));
    let began = pair.now;
    let Some(CallerEvent::Closed { fault, calls }) = pair.drive() else { panic!() };
    assert_eq!(fault.to_string(), "no reply to call 1 (layer 1, 3 rows) within 30 s");
    assert_eq!(fault.close_code(), CloseCode::TimedOut);
    assert_eq!(calls, [CallId(1)]);
    assert_eq!(pair.now - began, Duration::from_secs(30));
    assert!(pair.drive().is_none());
    assert_eq!(pair.caller.call(CallId(2), &Rows::to(&[&[0]]).batch(), pair.now), Err(Fault::Down));
}

#[test]
fn a_silent_worker_or_coordinator_is_not_waited_for() {
    let (hello, welcome) = greeting(0, ExpertRange::new(0, 8));
    let mut pair = Pair::new(hello, welcome);
    pair.cut = true;
    let after = Duration::from_secs(5);
    assert_eq!(pair.fault(), Fault::TimedOut { missing: Missing::Welcome, after });
    assert!(pair.drive().is_none());
    assert!(matches!(pair.server.end(), Some(ServerEnd::NoHello(_))));
}

#[test]
fn mismatches_and_other_versions_are_refused_with_both_values() {
    let (hello, welcome) = greeting(0, ExpertRange::new(0, 8));
    let mut pair = Pair::new(Hello { shard: ShardId(1), ..hello.clone() }, welcome.clone());
    let mismatch = |subject, coordinator: &str, worker: &str| {
        let (coordinator, worker) = (coordinator.to_owned(), worker.to_owned());
        Fault::Incompatible(Box::new(Mismatch { subject, coordinator, worker }))
    };
    assert_eq!(pair.fault(), mismatch(Subject::Shard, "shard 1", "shard 0"));
    assert_eq!(pair.server.end().unwrap().close_code(), CloseCode::Refused);

    // A coordinator of version 2 says hello to this worker.
    let mut newer = BytesMut::new();
    hello.encode(&mut newer).unwrap();
    newer[8] += 1;
    let mut pair = Pair::new(hello.clone(), welcome.clone());
    let _ = pair.caller.poll_transmit();
    pair.server.handle_bytes(&newer, pair.now);
    assert_eq!(pair.fault(), mismatch(Subject::ProtocolVersion, "2", "1"));

    // A worker of version 3 answers this coordinator.
    let mut newer = BytesMut::new();
    welcome.encode(&mut newer).unwrap();
    newer[8] += 2;
    let mut pair = Pair::new(hello.clone(), welcome.clone());
    let theirs = (PROTOCOL_VERSION + 2).to_string();
    assert_eq!(pair.forge(&newer), mismatch(Subject::ProtocolVersion, "1", &theirs));

    // A worker that does not check is checked.
    let mut other = BytesMut::new();
    Welcome { fingerprint: [8; 32], ..welcome.clone() }.encode(&mut other).unwrap();
    let mut pair = Pair::new(hello, welcome);
    assert!(matches!(pair.forge(&other), Fault::Incompatible(m) if m.subject == Subject::Model));
}

#[test]
fn refused_calls_leave_the_link_usable() {
    let mut pair = Pair::ready();
    let good = Rows::to(&[&[0]]);
    let foreign = Rows::to(&[&[8]]);
    let cases = [
        (foreign.batch(), FailureCode::ForeignExpert, "expert 8 is outside this shard's range 0..8"),
        (ExpertBatch { layer: LayerId(3), ..good.batch() }, FailureCode::UnknownLayer, "layer 3 has no"),
        (
            ExpertBatch { layer: LayerId(9), ..good.batch() },
            FailureCode::Backend,
            "scale backend: out of order",
        ),
        (
            ExpertBatch { hidden: 2, rows: &[0; 8], ..good.batch() },
            FailureCode::BadShape,
            "rows of 2 elements instead of 4",
        ),
    ];
    for (id, (batch, expected, text)) in (1..).zip(cases) {
        pair.caller.call(CallId(id), &batch, pair.now).unwrap();
        let Some(CallerEvent::Failed { call, code, message }) = pair.drive() else { panic!() };
        assert_eq!((call, code), (CallId(id), expected));
        assert!(message.starts_with(text), "{message}");
    }
    pair.call(9, &good);
    assert!(matches!(pair.drive(), Some(CallerEvent::Reply { .. })));
}

#[test]
fn a_batch_that_cannot_be_sent_is_the_engines_fault() {
    let mut pair = Pair::ready();
    let good = Rows::to(&[&[0]]);
    let fault =
        pair.caller.call(CallId(1), &ExpertBatch { counts: &[2], ..good.batch() }, pair.now).unwrap_err();
    assert!(matches!(fault, Fault::BadCall(_)) && fault.leaves_link_up());
    for id in 0..8 {
        pair.call(id, &good);
    }
    let fault = pair.caller.call(CallId(8), &good.batch(), pair.now).unwrap_err();
    assert_eq!(fault, Fault::Saturated(8));
    for _ in 0..8 {
        assert!(matches!(pair.drive(), Some(CallerEvent::Reply { .. })));
    }
}

#[test]
fn a_drain_refuses_what_has_not_begun_and_says_so() {
    let mut pair = Pair::ready();
    let rows = Rows::to(&[&[0]]);
    pair.call(1, &rows);
    pair.call(2, &rows);
    let bytes = pair.caller.poll_transmit().unwrap();
    pair.server.handle_bytes(&bytes, pair.now);
    assert!(pair.server.run_next(&mut pair.bank, Instant::now));
    pair.server.drain();
    assert!(matches!(pair.drive(), Some(CallerEvent::Reply { .. })));
    assert!(matches!(pair.drive(), Some(CallerEvent::Failed { code: FailureCode::Draining, .. })));
    assert_eq!(pair.fault(), Fault::PeerGone(Gone::Closed(CloseCode::Draining)));
}

#[test]
fn misbehaviour_is_typed() {
    let reply = |id, layer, rows: usize, hidden: usize| {
        let mut out = BytesMut::new();
        let sums = vec![f32::NAN; rows * hidden];
        encode_reply(&mut out, CallId(id), LayerId(layer), hidden, &sums, WorkerTimes::default()).unwrap();
        out
    };
    let misbehaviour = |bytes: &[u8]| {
        let mut pair = Pair::ready();
        pair.call(5, &Rows::to(&[&[0], &[1]]));
        match pair.forge(bytes) {
            Fault::PeerMisbehaved(how) => how,
            other => panic!("{other}"),
        }
    };
    let shape = |what, expected, got| Misbehaviour::Shape { call: CallId(5), what, expected, got };
    assert_eq!(misbehaviour(&reply(6, 1, 2, 4)), Misbehaviour::UnknownCall(CallId(6)));
    assert_eq!(misbehaviour(&reply(5, 2, 2, 4)), shape("layer", 1, 2));
    assert_eq!(misbehaviour(&reply(5, 1, 3, 4)), shape("rows", 2, 3));
    assert_eq!(misbehaviour(&reply(5, 1, 2, 2)), shape("hidden", 4, 2));
    let twice = [reply(5, 1, 2, 4), reply(5, 1, 2, 4)].concat();
    let mut pair = Pair::ready();
    pair.call(5, &Rows::to(&[&[0], &[1]]));
    pair.caller.handle_bytes(&twice, pair.now);
    let Some(CallerEvent::Reply { reply, .. }) = pair.drive() else { panic!() };
    assert!(reply.sums()[0].is_nan());
    assert_eq!(pair.fault(), Fault::PeerMisbehaved(Misbehaviour::UnknownCall(CallId(5))));

    let mut failure = BytesMut::new();
    Failure::new(CallId(6), FailureCode::Backend, "").encode(&mut failure).unwrap();
    assert_eq!(misbehaviour(&failure), Misbehaviour::UnknownCall(CallId(6)));
    assert!(matches!(misbehaviour(b"GET / HTTP/1.1"), Misbehaviour::Wire(_)));
}

#[test]
fn a_coordinator_that_misbehaves_is_closed() {
    for bytes in [&b"GET / HTTP/1.1\r\n"[..], &[0, 0, 0, 0, 2, 0, 0, 0], &[0, 0, 0, 0, 4, 0, 0, 0]] {
        let mut pair = Pair::ready();
        pair.server.handle_bytes(bytes, pair.now);
        assert_eq!(pair.server.end().unwrap().close_code(), CloseCode::ProtocolError, "{bytes:?}");
    }
    let (_, welcome) = greeting(0, ExpertRange::new(0, 8));
    let mut server = Server::new(Arc::new(welcome), Instant::now());
    server.handle_bytes(&[0, 0, 0, 0, 4, 0, 0, 0], Instant::now());
    assert_eq!(server.end().unwrap().to_string(), "coordinator broke the protocol: unexpected call frame");
}

#[test]
fn abandoned_replies_are_dropped() {
    let mut pair = Pair::ready();
    let rows = Rows::to(&[&[0]]);
    pair.call(1, &rows);
    pair.caller.abandon();
    assert_eq!(pair.caller.waiting(), 0);
    pair.call(2, &rows);
    let Some(CallerEvent::Reply { reply, .. }) = pair.drive() else { panic!() };
    assert_eq!(reply.id(), CallId(2));
}
