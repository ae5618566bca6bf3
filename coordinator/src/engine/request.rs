//! What a client of the engine asks for, and what it gets back. Plain data and channels; no MLX, no HTTP.
//!
//! The engine deals in token ids. Text, stop strings and message meaning are the client's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedReceiver;

use super::sampler::{Constraint, Sampling};

/// A generation to run.
pub struct Submission {
    /// Prompt ids; at least one.
    pub prompt: Vec<u32>,
    /// How to choose tokens.
    pub sampling: Sampling,
    /// Same seed, same prompt, same text.
    pub seed: u64,
    /// Most new tokens; the engine never makes more than the context leaves.
    pub max_tokens: usize,
    /// Ids that end the text.
    pub stop_ids: Arc<[u32]>,
    /// Log-probabilities to report per token: `Some(0)` for the chosen token only, up to [`MAX_TOP_LOGPROBS`].
    pub logprobs: Option<usize>,
    /// Which tokens may come next, where a grammar or a schema says so.
    pub constraint: Option<Box<dyn Constraint>>,
    /// When to give up, wherever the request then is.
    pub deadline: Option<Instant>,
}

/// A running request: its events, in order. Dropping it cancels the request within one step.
#[derive(Debug)]
pub struct Ticket {
    pub(super) events: UnboundedReceiver<Event>,
    pub(super) cancelled: Arc<AtomicBool>,
}

/// What happens to a request.
#[derive(Clone, Debug)]
pub enum Event {
    /// A piece of the prompt has been run.
    Prefilled(PrefillProgress),
    /// A token was chosen. A stop id is not reported.
    Token(Token),
    /// The request is over; the last event.
    Finished(Finished),
    /// The request failed; the last event.
    Failed(EngineError),
}

/// How far a prompt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefillProgress {
    /// Prompt tokens.
    pub total: usize,
    /// Of these, taken from the prefix cache.
    pub cached: usize,
    /// Tokens done, the cached ones included.
    pub processed: usize,
    /// Since the request left the queue.
    pub elapsed: Duration,
}

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Natural log of its probability before any cut, and the most likely alternatives; only where asked for.
    pub logprobs: Option<Logprobs>,
}

/// Log-probabilities of one position.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Logprobs {
    /// Of the chosen token.
    pub chosen: f32,
    /// The most likely tokens, most likely first.
    pub top: Vec<(u32, f32)>,
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// This stop id came, or the constraint allows nothing more.
    Stop(Option<u32>),
    /// `max_tokens` were made, or the context is full.
    Length,
    /// The ticket was dropped.
    Cancelled,
}

/// A request's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Why.
    pub reason: FinishReason,
    /// What it took.
    pub usage: Usage,
}

/// What a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens.
    pub prompt_tokens: usize,
    /// Of these, taken from the prefix cache.
    pub cached_tokens: usize,
    /// Tokens made, a stop id included.
    pub completion_tokens: usize,
    /// Time in the queue.
    pub queued: Duration,
    /// Time from the queue to the first token.
    pub prefill: Duration,
    /// Time from the first token to the last.
    pub decode: Duration,
}

/// Why a request is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    /// The queue is full.
    #[error("{waiting} requests wait already, which is the limit; try again in {} s", retry_after.as_secs())]
    QueueFull {
        /// Requests waiting.
        waiting: usize,
        /// When it may be worth trying again.
        retry_after: Duration,
    },
    /// The prompt does not fit the context with at least one new token.
    #[error("the prompt has {prompt} tokens; the context is {context}")]
    TooLong {
        /// Prompt tokens.
        prompt: usize,
        /// Tokens of the served context.
        context: usize,
    },
    /// Keys and values of this request would never fit the budget.
    #[error("keys and values of {tokens} tokens need {needs} bytes; the budget is {budget} bytes")]
    TooLarge {
        /// Prompt and new tokens.
        tokens: usize,
        /// Bytes they need.
        needs: u64,
        /// Bytes there are.
        budget: u64,
    },
    /// A prompt without tokens, or with an id that the model does not have.
    #[error("{0}")]
    BadPrompt(String),
    /// The engine is about to end, or has ended.
    #[error("the server is shutting down")]
    Draining,
}

/// Why a running request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// A worker failed; the message names its shard, address and reason.
    #[error("{0}")]
    WorkerLost(String),
    /// The request's deadline passed.
    #[error("the request's deadline passed after {} s", .0.as_secs_f32())]
    Deadline(Duration),
    /// Anything else; the message says what.
    #[error("{0}")]
    Failed(String),
}

impl Ticket {
    /// The next event; `None` after the last.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// The next event, for callers without a runtime.
    pub fn next_blocking(&mut self) -> Option<Event> {
        self.events.blocking_recv()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

/// Most alternatives reported per token.
pub const MAX_TOP_LOGPROBS: usize = 20;
