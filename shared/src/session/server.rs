//! The worker's end of one link: checks the hello, then answers calls, one after another, until drained or closed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::outbox::Outbox;
use crate::compute::{BankError, ExpertBank, ExpertBatch};
use crate::wire::dispatch::{encode_reply, reply_bytes};
use crate::wire::frame::CONTROL_LIMIT;
use crate::wire::hello::GreetingError;
use crate::wire::{
    CallId, CloseCode, ExpertCall, Failure, FailureCode, FrameDecoder, FrameKind, Hello, MAX_CALLS_IN_FLIGHT,
    PROTOCOL_VERSION, Refusal, Welcome, WireError, WorkerTimes,
};

/// Why a worker's end of a link is over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerEnd {
    /// The coordinator is not one this worker can serve.
    #[error("refused: {0}")]
    Refused(String),
    /// The coordinator broke the protocol.
    #[error("coordinator broke the protocol: {0}")]
    PeerMisbehaved(WireError),
    /// A frame that has no place now.
    #[error("coordinator broke the protocol: unexpected {} frame", .0.name())]
    Unexpected(FrameKind),
    /// No hello came in time.
    #[error("no hello within {} s", .0.as_secs_f64())]
    NoHello(Duration),
    /// This worker takes no more calls.
    #[error("draining")]
    Draining,
    /// The coordinator, or the transport, ended the link.
    #[error("{0}")]
    Gone(String),
}

impl ServerEnd {
    /// Code to close the connection with, after everything queued was sent.
    pub fn close_code(&self) -> CloseCode {
        match self {
            Self::Refused(_) => CloseCode::Refused,
            Self::PeerMisbehaved(_) | Self::Unexpected(_) => CloseCode::ProtocolError,
            Self::NoHello(_) => CloseCode::TimedOut,
            Self::Draining => CloseCode::Draining,
            Self::Gone(_) => CloseCode::Done,
        }
    }
}

/// State machine of the worker's end of one link.
///
/// Tell it what happens with `handle_*`, let it compute with [`run_next`](Self::run_next), send what
/// [`poll_transmit`](Self::poll_transmit) gives, and close when [`end`](Self::end) has a reason and nothing is left to
/// send. It keeps nothing between calls but memory.
#[derive(Debug)]
pub struct Server {
    offer: Arc<Welcome>,
    state: State,
    decoder: FrameDecoder,
    /// Each with the time of its arrival.
    calls: VecDeque<(ExpertCall, Instant)>,
    spares: Vec<ExpertCall>,
    sums: Vec<f32>,
    out: Outbox,
    answered: u64,
}

#[derive(Debug)]
enum State {
    /// Waits for a hello until then.
    Greeting(Instant),
    Ready,
    Closed(ServerEnd),
}

impl Server {
    /// A link whose transport has just been established; `offer` is what this worker is.
    pub fn new(offer: Arc<Welcome>, now: Instant) -> Self {
        Self {
            offer,
            state: State::Greeting(now + HELLO_TIMEOUT),
            decoder: FrameDecoder::default(),
            calls: VecDeque::with_capacity(MAX_CALLS_IN_FLIGHT),
            spares: Vec::new(),
            sums: Vec::new(),
            out: Outbox::default(),
            answered: 0,
        }
    }

    // # Events in

    /// Bytes from the coordinator, in order, split anyhow; `now` is when they came.
    pub fn handle_bytes(&mut self, mut bytes: &[u8], now: Instant) {
        while self.end().is_none() {
            match self.decoder.handle_bytes(bytes) {
                Ok(taken) => bytes = &bytes[taken..],
                Err(error) => return self.close(ServerEnd::PeerMisbehaved(error)),
            }
            match self.take_frame(now) {
                Ok(false) if bytes.is_empty() => return,
                Ok(_) => {}
                Err(end) => return self.close(end),
            }
        }
    }

    /// The transport ended.
    pub fn handle_closed(&mut self, reason: String) {
        if self.end().is_none() {
            self.out.clear();
            self.close(ServerEnd::Gone(reason));
        }
    }

    /// Time has passed; call it when [`poll_timeout`](Self::poll_timeout) is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let State::Greeting(deadline) = self.state
            && deadline <= now
        {
            self.close(ServerEnd::NoHello(HELLO_TIMEOUT));
        }
    }

    // # Mutators

    /// Computes the oldest call on `bank` and queues its answer. Returns whether there was one.
    ///
    /// `clock` is read before and after the bank runs.
    pub fn run_next(&mut self, bank: &mut dyn ExpertBank, clock: impl Fn() -> Instant) -> bool {
        let Some((call, arrived)) = self.calls.pop_front() else { return false };
        let batch = call.batch();
        let began = clock();
        let answer = match bank.run(&batch, &mut self.sums) {
            Ok(()) if self.sums.len() == call.rows() * batch.hidden => {
                let times = WorkerTimes {
                    queue: began.saturating_duration_since(arrived),
                    compute: clock().saturating_duration_since(began),
                };
                let out = self.out.buffer(reply_bytes(&self.sums));
                encode_reply(out, call.id(), batch.layer, batch.hidden, &self.sums, times)
                    .map_err(|error| (FailureCode::Backend, error.to_string()))
            }
            Ok(()) => {
                let (got, expected) = (self.sums.len(), call.rows() * batch.hidden);
                Err((FailureCode::Backend, format!("bank gave {got} sums instead of {expected}")))
            }
            Err(error) => Err((failure_code(&error), error.to_string())),
        };
        if let Err((code, message)) = answer {
            self.fail(call.id(), code, &message);
        }
        self.answered += 1;
        self.keep(call);
        true
    }

    /// Takes no more calls: those not begun are refused as draining, then the link ends.
    pub fn drain(&mut self) {
        if self.end().is_some() {
            return;
        }
        while let Some((call, _)) = self.calls.pop_front() {
            self.fail(call.id(), FailureCode::Draining, "worker is about to end");
        }
        if matches!(self.state, State::Greeting(_)) {
            // A refusal that cannot be encoded leaves the close code to say it.
            let _ = Refusal::Draining.encode(self.out.buffer(CONTROL_LIMIT));
        }
        self.close(ServerEnd::Draining);
    }

    // # Actions out

    /// Bytes to send, in order.
    pub fn poll_transmit(&mut self) -> Option<Bytes> {
        self.out.take()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Greeting(deadline) => Some(deadline),
            _ => None,
        }
    }

    // # Getters

    /// Why the link is over, if it is.
    pub fn end(&self) -> Option<&ServerEnd> {
        match &self.state {
            State::Closed(end) => Some(end),
            _ => None,
        }
    }

    /// Whether the hello was accepted and the link is not over.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready)
    }

    /// Whether a call waits to be computed.
    pub fn has_call(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Calls computed so far.
    pub fn answered(&self) -> u64 {
        self.answered
    }

    fn take_frame(&mut self, now: Instant) -> Result<bool, ServerEnd> {
        let mut call = self.spares.pop().unwrap_or_default();
        let kind = self.decoder.poll_frame(call.frame_mut());
        match (&self.state, kind) {
            (_, None) => {
                self.spares.push(call);
                return Ok(false);
            }
            (State::Greeting(_), Some(FrameKind::Hello)) => self.greet(call.frame_mut().as_bytes())?,
            (State::Ready, Some(FrameKind::Call)) => return self.take_call(call, now).map(|()| true),
            (_, Some(kind)) => return Err(ServerEnd::Unexpected(kind)),
        }
        self.keep(call);
        Ok(true)
    }

    fn greet(&mut self, payload: &[u8]) -> Result<(), ServerEnd> {
        let refusal = match Hello::decode(payload) {
            Ok(hello) => match hello.check(&self.offer) {
                Ok(()) => {
                    self.offer
                        .encode(self.out.buffer(CONTROL_LIMIT))
                        .map_err(|error| ServerEnd::Refused(error.to_string()))?;
                    self.state = State::Ready;
                    return Ok(());
                }
                Err(mismatch) => Refusal::Mismatch(mismatch),
            },
            Err(GreetingError::Version(theirs)) => {
                Refusal::Mismatch(GreetingError::version_mismatch(theirs, PROTOCOL_VERSION))
            }
            Err(GreetingError::Wire(error)) => Refusal::Malformed(error.to_string()),
        };
        let reason = refusal.to_string();
        refusal
            .encode(self.out.buffer(CONTROL_LIMIT))
            .map_err(|error| ServerEnd::Refused(error.to_string()))?;
        Err(ServerEnd::Refused(reason))
    }

    /// Queues a call, or refuses it. Only a call without an id ends the link.
    fn take_call(&mut self, mut call: ExpertCall, now: Instant) -> Result<(), ServerEnd> {
        let refusal = match call.parse() {
            Err(error) => Some((FailureCode::BadShape, error.to_string())),
            Ok(()) => self.objection(&call.batch()).or_else(|| {
                (self.calls.len() >= MAX_CALLS_IN_FLIGHT)
                    .then(|| (FailureCode::Overloaded, format!("{MAX_CALLS_IN_FLIGHT} calls wait already")))
            }),
        };
        match refusal {
            None => self.calls.push_back((call, now)),
            Some((code, message)) => {
                let (needed, got) = (size_of::<u64>() as u64, 0);
                let id = call.claimed_id();
                let id =
                    id.ok_or(ServerEnd::PeerMisbehaved(WireError::Length { message: "call", needed, got }))?;
                self.fail(id, code, &message);
                self.keep(call);
            }
        }
        Ok(())
    }

    /// Why this worker cannot compute the batch, whatever its bank.
    fn objection(&self, batch: &ExpertBatch<'_>) -> Option<(FailureCode, String)> {
        let Welcome { sparse_layers, hidden, range, activations, .. } = &*self.offer;
        if sparse_layers.binary_search(&batch.layer).is_err() {
            return Some((FailureCode::UnknownLayer, format!("{} has no routed experts here", batch.layer)));
        }
        if batch.hidden != *hidden as usize {
            return Some((
                FailureCode::BadShape,
                format!("rows of {} elements instead of {hidden}", batch.hidden),
            ));
        }
        if !activations.contains(&batch.activation) {
            return Some((
                FailureCode::BadShape,
                format!("{:?} rows are not accepted here", batch.activation),
            ));
        }
        let foreign = batch.experts.iter().find(|expert| !range.contains(**expert))?;
        Some((FailureCode::ForeignExpert, format!("{foreign} is outside this shard's range {range}")))
    }

    fn fail(&mut self, call: CallId, code: FailureCode, message: &str) {
        if let Err(error) = Failure::new(call, code, message).encode(self.out.buffer(CONTROL_LIMIT)) {
            self.close(ServerEnd::PeerMisbehaved(error));
        }
    }

    fn keep(&mut self, call: ExpertCall) {
        if self.spares.len() < MAX_CALLS_IN_FLIGHT {
            self.spares.push(call);
        }
    }

    fn close(&mut self, end: ServerEnd) {
        self.calls.clear();
        self.state = State::Closed(end);
    }
}

fn failure_code(error: &BankError) -> FailureCode {
    match error {
        BankError::UnknownLayer { .. } => FailureCode::UnknownLayer,
        BankError::ForeignExpert { .. } => FailureCode::ForeignExpert,
        BankError::Malformed(_) => FailureCode::BadShape,
        BankError::Backend { .. } => FailureCode::Backend,
    }
}

/// A coordinator that has authenticated says hello in the same breath; more than this is a broken one.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
