//! The coordinator's end of one link: greeting, calls in flight with deadlines, one typed end.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::fault::{Fault, Misbehaviour, Missing};
use super::outbox::Outbox;
use crate::compute::ExpertBatch;
use crate::ids::LayerId;
use crate::wire::dispatch::{call_bytes, encode_call};
use crate::wire::frame::CONTROL_LIMIT;
use crate::wire::hello::GreetingError;
use crate::wire::{
    CallId, ExpertReply, Failure, FailureCode, FrameBuffer, FrameDecoder, FrameKind, Hello,
    MAX_CALLS_IN_FLIGHT, PROTOCOL_VERSION, Refusal, Welcome, WireError,
};

/// How long a coordinator waits.
#[derive(Clone, Copy, Debug)]
pub struct CallerSettings {
    /// From the hello to the welcome. Defaults to 5 seconds.
    pub hello_timeout: Duration,
    /// From a call to its reply. Defaults to 30 seconds: an S 2.1 prefill chunk on a slow CPU takes a few.
    pub call_timeout: Duration,
}

impl Default for CallerSettings {
    fn default() -> Self {
        Self { hello_timeout: Duration::from_secs(5), call_timeout: Duration::from_secs(30) }
    }
}

/// What a [`Caller`] has to say.
#[derive(Debug)]
pub enum CallerEvent {
    /// The worker is the one expected; calls may be made.
    Ready,
    /// A call is answered.
    Reply {
        /// The sums. Give it back with [`Caller::recycle`].
        reply: ExpertReply,
        /// From the call to this reply.
        round_trip: Duration,
    },
    /// A call is refused; the link stays up.
    Failed {
        /// The call.
        call: CallId,
        /// Why.
        code: FailureCode,
        /// What the worker said.
        message: String,
    },
    /// The link is over. Said once.
    Closed {
        /// Why.
        fault: Fault,
        /// Calls that will not be answered.
        calls: Vec<CallId>,
    },
}

/// State machine of the coordinator's end of one link.
///
/// Tell it what happens with `handle_*`, ask it for calls with [`call`](Self::call), and after each of these do what
/// [`poll_transmit`](Self::poll_transmit), [`poll_event`](Self::poll_event) and [`poll_timeout`](Self::poll_timeout)
/// ask for. It never blocks and reads no clock.
#[derive(Debug)]
pub struct Caller {
    settings: CallerSettings,
    state: State,
    hello: Hello,
    decoder: FrameDecoder,
    control: FrameBuffer,
    spares: Vec<ExpertReply>,
    out: Outbox,
    in_flight: Vec<InFlight>,
    events: VecDeque<CallerEvent>,
}

#[derive(Debug)]
enum State {
    /// The hello was sent; the welcome is due then.
    Greeting(Instant),
    Ready(Box<Welcome>),
    Closed(Fault),
}

#[derive(Debug)]
struct InFlight {
    call: CallId,
    layer: LayerId,
    rows: usize,
    hidden: usize,
    sent: Instant,
    deadline: Instant,
    /// Nobody waits for the reply any more; it is dropped when it comes.
    abandoned: bool,
}

impl Caller {
    /// A link whose transport has just been established.
    pub fn new(hello: Hello, settings: CallerSettings, now: Instant) -> Self {
        let mut out = Outbox::default();
        let state = match hello.encode(out.buffer(CONTROL_LIMIT)) {
            Ok(()) => State::Greeting(now + settings.hello_timeout),
            Err(error) => State::Closed(Fault::BadCall(error)),
        };
        let mut events = VecDeque::new();
        if let State::Closed(fault) = &state {
            events.push_back(CallerEvent::Closed { fault: fault.clone(), calls: Vec::new() });
        }
        Self {
            settings,
            state,
            hello,
            decoder: FrameDecoder::default(),
            control: FrameBuffer::default(),
            spares: Vec::new(),
            out,
            in_flight: Vec::with_capacity(MAX_CALLS_IN_FLIGHT),
            events,
        }
    }

    // # Events in

    /// Bytes from the worker, in order, split anyhow.
    pub fn handle_bytes(&mut self, mut bytes: &[u8], now: Instant) {
        while self.fault().is_none() {
            match self.decoder.handle_bytes(bytes) {
                Ok(taken) => bytes = &bytes[taken..],
                Err(error) => return self.misbehaved(error),
            }
            match self.take_frame(now) {
                Ok(true) => {}
                Ok(false) if bytes.is_empty() => return,
                Ok(false) => {}
                Err(fault) => return self.close(fault),
            }
        }
    }

    /// The transport ended, or the caller of this method gives the link up.
    pub fn handle_closed(&mut self, fault: Fault) {
        if self.fault().is_none() {
            self.close(fault);
        }
    }

    /// Time has passed; call it when [`poll_timeout`](Self::poll_timeout) is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        let missed = match &self.state {
            State::Greeting(deadline) if *deadline <= now => {
                Some((Missing::Welcome, self.settings.hello_timeout))
            }
            State::Ready(_) => self.in_flight.iter().find(|call| call.deadline <= now).map(|late| {
                let missing = Missing::Reply { call: late.call, layer: late.layer, rows: late.rows };
                (missing, self.settings.call_timeout)
            }),
            _ => None,
        };
        if let Some((missing, after)) = missed {
            self.close(Fault::TimedOut { missing, after });
        }
    }

    // # Mutators

    /// Queues a call for transmission. `id` must not have been used on this link.
    ///
    /// Errors are the engine's own (`BadCall`, `Saturated`) or `Down`; none of them is also reported as an event.
    pub fn call(&mut self, id: CallId, batch: &ExpertBatch<'_>, now: Instant) -> Result<(), Fault> {
        match &self.state {
            State::Ready(_) => {}
            State::Greeting(_) | State::Closed(_) => return Err(Fault::Down),
        }
        if self.in_flight.len() >= MAX_CALLS_IN_FLIGHT {
            return Err(Fault::Saturated(self.in_flight.len()));
        }
        encode_call(self.out.buffer(call_bytes(batch)), id, batch).map_err(Fault::BadCall)?;
        self.in_flight.push(InFlight {
            call: id,
            layer: batch.layer,
            rows: batch.counts.len(),
            hidden: batch.hidden,
            sent: now,
            deadline: now + self.settings.call_timeout,
            abandoned: false,
        });
        Ok(())
    }

    /// Nobody waits for the calls in flight any more: their replies are checked and dropped.
    pub fn abandon(&mut self) {
        self.in_flight.iter_mut().for_each(|call| call.abandoned = true);
        while let Some(at) = self.events.iter().position(|e| matches!(e, CallerEvent::Reply { .. })) {
            if let Some(CallerEvent::Reply { reply, .. }) = self.events.remove(at) {
                self.recycle(reply);
            }
        }
        self.events.retain(|event| !matches!(event, CallerEvent::Failed { .. }));
    }

    /// Takes a reply's memory back for the next one.
    pub fn recycle(&mut self, reply: ExpertReply) {
        if self.spares.len() < MAX_CALLS_IN_FLIGHT {
            self.spares.push(reply);
        }
    }

    // # Actions out

    /// Bytes to send, in order.
    pub fn poll_transmit(&mut self) -> Option<Bytes> {
        self.out.take()
    }

    /// The next thing that happened.
    pub fn poll_event(&mut self) -> Option<CallerEvent> {
        self.events.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match &self.state {
            State::Greeting(deadline) => Some(*deadline),
            State::Ready(_) => self.in_flight.iter().map(|call| call.deadline).min(),
            State::Closed(_) => None,
        }
    }

    // # Getters

    /// Why the link is over, if it is.
    pub fn fault(&self) -> Option<&Fault> {
        match &self.state {
            State::Closed(fault) => Some(fault),
            _ => None,
        }
    }

    /// Whether [`poll_event`](Self::poll_event) has something.
    pub fn has_event(&self) -> bool {
        !self.events.is_empty()
    }

    /// What the worker said about itself, while the link is up.
    pub fn welcome(&self) -> Option<&Welcome> {
        match &self.state {
            State::Ready(welcome) => Some(welcome),
            _ => None,
        }
    }

    /// What was asked of the worker.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Calls whose reply somebody waits for.
    pub fn waiting(&self) -> usize {
        self.in_flight.iter().filter(|call| !call.abandoned).count()
    }

    /// When the oldest call in flight was made.
    pub fn oldest_call(&self) -> Option<Instant> {
        self.in_flight.iter().map(|call| call.sent).min()
    }

    fn take_frame(&mut self, now: Instant) -> Result<bool, Fault> {
        let mut reply = self.spares.pop().unwrap_or_default();
        let Some(kind) = self.decoder.poll_frame(reply.frame_mut()) else {
            self.spares.push(reply);
            return Ok(false);
        };
        match (&self.state, kind) {
            (State::Greeting(_), FrameKind::Welcome | FrameKind::Refusal) => {
                std::mem::swap(&mut self.control, reply.frame_mut());
                self.greeted(kind)?;
            }
            (State::Ready(_), FrameKind::Reply) => {
                reply.parse().map_err(Misbehaviour::Wire).map_err(Fault::PeerMisbehaved)?;
                let at = self.position(reply.id())?;
                // Checked before it is taken out: a call answered wrongly is a call lost.
                check_shape(&self.in_flight[at], &reply).map_err(Fault::PeerMisbehaved)?;
                let call = self.in_flight.swap_remove(at);
                if !call.abandoned {
                    let round_trip = now.saturating_duration_since(call.sent);
                    self.events.push_back(CallerEvent::Reply { reply, round_trip });
                    return Ok(true);
                }
            }
            (State::Ready(_), FrameKind::Failure) => {
                std::mem::swap(&mut self.control, reply.frame_mut());
                let failure = Failure::decode(self.control.as_bytes());
                let Failure { call, code, message } =
                    failure.map_err(Misbehaviour::Wire).map_err(Fault::PeerMisbehaved)?;
                let at = self.position(call)?;
                if !self.in_flight.swap_remove(at).abandoned {
                    self.events.push_back(CallerEvent::Failed { call, code, message });
                }
            }
            (_, kind) => return Err(Fault::PeerMisbehaved(Misbehaviour::Unexpected(kind))),
        }
        self.recycle(reply);
        Ok(true)
    }

    fn greeted(&mut self, kind: FrameKind) -> Result<(), Fault> {
        let payload = self.control.as_bytes();
        if kind == FrameKind::Refusal {
            return Err(Refusal::decode(payload).map_or_else(unreadable, Fault::from));
        }
        let welcome = Welcome::decode(payload).map_err(unreadable)?;
        self.hello.check(&welcome).map_err(|mismatch| Fault::Incompatible(Box::new(mismatch)))?;
        self.state = State::Ready(Box::new(welcome));
        self.events.push_back(CallerEvent::Ready);
        Ok(())
    }

    fn position(&self, call: CallId) -> Result<usize, Fault> {
        let at = self.in_flight.iter().position(|flying| flying.call == call);
        at.ok_or(Fault::PeerMisbehaved(Misbehaviour::UnknownCall(call)))
    }

    fn misbehaved(&mut self, error: WireError) {
        self.close(Fault::PeerMisbehaved(Misbehaviour::Wire(error)));
    }

    fn close(&mut self, fault: Fault) {
        let lost = self.in_flight.drain(..).filter(|call| !call.abandoned);
        let calls = lost.map(|call| call.call).collect();
        self.out.clear();
        self.events.push_back(CallerEvent::Closed { fault: fault.clone(), calls });
        self.state = State::Closed(fault);
    }
}

fn check_shape(call: &InFlight, reply: &ExpertReply) -> Result<(), Misbehaviour> {
    let pairs = [
        ("layer", usize::from(call.layer.0), usize::from(reply.layer().0)),
        ("rows", call.rows, reply.rows()),
        ("hidden", call.hidden, reply.hidden()),
    ];
    match pairs.into_iter().find(|(_, expected, got)| expected != got) {
        Some((what, expected, got)) => Err(Misbehaviour::Shape { call: call.call, what, expected, got }),
        None => Ok(()),
    }
}

fn unreadable(error: GreetingError) -> Fault {
    match error {
        GreetingError::Version(theirs) => {
            Fault::Incompatible(Box::new(GreetingError::version_mismatch(PROTOCOL_VERSION, theirs)))
        }
        GreetingError::Wire(error) => Fault::PeerMisbehaved(Misbehaviour::Wire(error)),
    }
}
