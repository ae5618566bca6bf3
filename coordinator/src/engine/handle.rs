//! The engine as other threads see it: submit, watch, drain. Cheap to clone.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use laguna_shared::ids::{ExpertRange, ShardId};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::request::{AdmissionError, Event, Submission, Ticket};
use crate::experts::timing::{CallTimes, ExchangeSummary, Percentiles};

/// Limits that requests are held against before they reach the engine.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Tokens of a sequence, prompt and new ones together.
    pub context: usize,
    /// Requests that run at once.
    pub parallel: usize,
    /// Requests that may wait besides; more are refused.
    pub queue: usize,
    /// Bytes of keys and values over all sequences and the prefix cache.
    pub kv_bytes: u64,
    /// Bytes of keys and values per token of a sequence (full layers).
    pub kv_per_token: u64,
    /// Bytes of keys and values that every sequence has (sliding layers).
    pub kv_fixed: u64,
    /// Ids the model has.
    pub vocab_size: usize,
}

impl Limits {
    /// Bytes of keys and values of a sequence of `tokens` tokens.
    pub const fn kv_of(&self, tokens: usize) -> u64 {
        self.kv_fixed.saturating_add(self.kv_per_token.saturating_mul(tokens as u64))
    }
}

/// The engine's present state, for `/health`, `/metrics` and the web page.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Requests waiting.
    pub waiting: usize,
    /// Requests in prefill or decode.
    pub running: usize,
    /// Bytes of keys and values of running requests.
    pub kv_active_bytes: u64,
    /// Bytes of keys and values kept for later requests.
    pub kv_cached_bytes: u64,
    /// Prompt tokens run so far; cached ones are not among them.
    pub prompt_tokens: u64,
    /// Prompt tokens taken from the prefix cache so far.
    pub cached_tokens: u64,
    /// Tokens made so far.
    pub completion_tokens: u64,
    /// Requests finished, failed and cancelled so far.
    pub requests: [u64; 3],
    /// Exchange times of the last busy half second.
    pub exchange: Option<ExchangeSummary>,
    /// The shards.
    pub shards: Vec<ShardStatus>,
    /// Why no request can be served now, if so: names the missing shard.
    pub trouble: Option<String>,
}

/// One shard's present state.
#[derive(Clone, Debug)]
pub struct ShardStatus {
    /// As the topology names it.
    pub shard: ShardId,
    /// Experts held.
    pub range: ExpertRange,
    /// `10.0.5.2:4433`, `in memory`, or `this process`.
    pub address: String,
    /// Name of the arithmetic.
    pub backend: String,
    /// Bytes of weights resident.
    pub resident_bytes: u64,
    /// Whether calls can be sent.
    pub up: bool,
    /// Calls answered so far.
    pub calls: u64,
    /// Mean round trip of a call over the last busy half second, in microseconds; none of a shard in this process.
    pub round_trip_us: Option<f32>,
    /// Mean time its bank took for a call (one layer), in microseconds.
    pub compute_us: Option<f32>,
    /// Percentiles of its recent calls.
    pub percentiles: Vec<Percentiles>,
    /// All its calls by size, as they are now.
    pub by_size: Arc<CallTimes>,
}

/// Submits requests to the engine.
#[derive(Clone)]
pub struct EngineHandle {
    commands: Sender<Command>,
    shared: Arc<Shared>,
}

/// What both sides see.
pub(super) struct Shared {
    pub(super) limits: Limits,
    /// Requests waiting, and above [`RUNNING`] those that run: one number, so that a request that moves is never in
    /// both or in neither.
    pub(super) places: AtomicU64,
    pub(super) draining: AtomicBool,
    pub(super) status: Mutex<Status>,
}

/// A place among the running requests, for as long as it lives.
pub(super) struct Seat(Arc<Shared>);

impl Seat {
    /// For a request that leaves the queue.
    pub(super) fn take(shared: &Arc<Shared>) -> Self {
        shared.places.fetch_add(RUNNING - 1, Ordering::AcqRel);
        Self(shared.clone())
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.places.fetch_sub(RUNNING, Ordering::AcqRel);
    }
}

/// What reaches the engine thread.
pub(super) enum Command {
    Submit(Box<Job>),
    Drain,
}

/// A submission on its way.
pub(super) struct Job {
    pub(super) submission: Submission,
    pub(super) events: UnboundedSender<Event>,
    pub(super) cancelled: Arc<AtomicBool>,
    pub(super) submitted: Instant,
}

/// A handle and the engine's end of it.
pub(super) fn connect(limits: Limits) -> (EngineHandle, Receiver<Command>, Arc<Shared>) {
    let (commands, receiver) = channel();
    let shared = Arc::new(Shared {
        limits,
        places: AtomicU64::new(0),
        draining: AtomicBool::new(false),
        status: Mutex::new(Status::default()),
    });
    (EngineHandle { commands, shared: shared.clone() }, receiver, shared)
}

/// The engine's end of a handle, for engines that follow a script: see `http::testing`.
pub struct Script {
    commands: Receiver<Command>,
    shared: Arc<Shared>,
}

/// A request that a scripted engine has taken from the queue.
pub struct Part {
    /// What is asked for.
    pub submission: Submission,
    /// Where its events go.
    pub events: UnboundedSender<Event>,
    /// When it was handed in.
    pub submitted: Instant,
    cancelled: Arc<AtomicBool>,
}

impl Part {
    /// Whether the client has gone away.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

impl Script {
    /// Waits for the next request and takes it from the queue; `None` once the handle drains or is gone.
    pub fn next(&self) -> Option<Part> {
        match self.commands.recv().ok()? {
            Command::Submit(job) => {
                self.shared.places.fetch_sub(1, Ordering::AcqRel);
                let Job { submission, events, cancelled, submitted } = *job;
                Some(Part { submission, events, submitted, cancelled })
            }
            Command::Drain => None,
        }
    }

    /// Sets what [`EngineHandle::status`] tells.
    pub fn tell(&self, status: Status) {
        *self.shared.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }
}

/// A handle whose engine the caller plays.
pub fn scripted(limits: Limits) -> (EngineHandle, Script) {
    let (handle, commands, shared) = connect(limits);
    (handle, Script { commands, shared })
}

impl EngineHandle {
    /// Queues a request. Its deadline runs from now.
    ///
    /// # Errors
    /// See [`AdmissionError`].
    pub fn submit(&self, mut submission: Submission) -> Result<Ticket, AdmissionError> {
        let limits = &self.shared.limits;
        if self.shared.draining.load(Ordering::Acquire) {
            return Err(AdmissionError::Draining);
        }
        let prompt = submission.prompt.len();
        if prompt == 0 {
            return Err(AdmissionError::BadPrompt("the prompt has no tokens".to_owned()));
        }
        if let Some(id) = submission.prompt.iter().find(|&&id| id as usize >= limits.vocab_size) {
            let vocab = limits.vocab_size;
            return Err(AdmissionError::BadPrompt(format!(
                "token {id} is outside the vocabulary of {vocab}"
            )));
        }
        if prompt >= limits.context {
            return Err(AdmissionError::TooLong { prompt, context: limits.context });
        }
        submission.max_tokens = submission.max_tokens.min(limits.context - prompt);
        let tokens = prompt + submission.max_tokens;
        let needs = limits.kv_of(tokens);
        if needs > limits.kv_bytes {
            return Err(AdmissionError::TooLarge { tokens, needs, budget: limits.kv_bytes });
        }
        let places = self.shared.places.fetch_add(1, Ordering::AcqRel);
        let (waiting, running) = ((places % RUNNING) as usize, (places / RUNNING) as usize);
        // Who will be taken at the engine's next look does not wait.
        let free = limits.parallel.saturating_sub(running);
        if waiting >= limits.queue.saturating_add(free) {
            self.shared.places.fetch_sub(1, Ordering::AcqRel);
            return Err(AdmissionError::QueueFull { waiting, retry_after: RETRY_AFTER });
        }
        let (events, receiver) = unbounded_channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        let ticket = Ticket { events: receiver, cancelled: cancelled.clone() };
        let job = Job { submission, events, cancelled, submitted: Instant::now() };
        self.commands.send(Command::Submit(Box::new(job))).map_err(|_| AdmissionError::Draining)?;
        Ok(ticket)
    }

    /// Limits that requests are held against.
    pub fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    /// The state at the end of the last step, or a second ago while idle.
    pub fn status(&self) -> Status {
        let mut status = self.shared.status.lock().unwrap_or_else(PoisonError::into_inner).clone();
        status.waiting = (self.shared.places.load(Ordering::Acquire) % RUNNING) as usize;
        status
    }

    /// Refuses new requests from now on; the engine ends when those it has are done.
    pub fn drain(&self) {
        self.shared.draining.store(true, Ordering::Release);
        // An engine that has ended needs no telling.
        let _ = self.commands.send(Command::Drain);
    }
}

/// One running request in [`Shared::places`].
const RUNNING: u64 = 1 << 32;

/// When a full queue may be worth another try.
const RETRY_AFTER: Duration = Duration::from_secs(2);
