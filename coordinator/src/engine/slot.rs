//! One request in the engine: waiting, in prefill, or decoding.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;

use super::handle::{Job, Seat};
use super::prefix::Kept;
use super::request::{
    EngineError, Event, FinishReason, Finished, Logprobs, MAX_TOP_LOGPROBS, PrefillProgress, Token, Usage,
};
use super::sampler::{Constraint, Sampler};
use crate::model::ForwardError;

/// A request and everything that belongs to it.
pub(super) struct Slot {
    /// Prompt, then the tokens made.
    pub(super) ids: Vec<u32>,
    pub(super) prompt: usize,
    pub(super) max_tokens: usize,
    stop_ids: Arc<[u32]>,
    logprobs: Option<usize>,
    sampler: Sampler,
    constraint: Option<Box<dyn Constraint>>,
    deadline: Option<Instant>,
    events: UnboundedSender<Event>,
    cancelled: Arc<AtomicBool>,
    submitted: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
    cached: usize,
    /// `None` while the request waits.
    seat: Option<Seat>,
    /// What has been run of `ids`; `None` while the request waits.
    pub(super) kept: Option<Kept>,
}

impl Slot {
    pub(super) fn new(job: Job) -> Self {
        let Job { submission, events, cancelled, submitted } = job;
        let sampler = Sampler::new(submission.sampling, submission.seed, &submission.prompt);
        Self {
            prompt: submission.prompt.len(),
            ids: submission.prompt,
            max_tokens: submission.max_tokens,
            stop_ids: submission.stop_ids,
            logprobs: submission.logprobs.map(|n| n.min(MAX_TOP_LOGPROBS)),
            sampler,
            constraint: submission.constraint,
            deadline: submission.deadline,
            events,
            cancelled,
            submitted,
            started: None,
            first_token: None,
            cached: 0,
            seat: None,
            kept: None,
        }
    }

    /// Leaves the queue with what the prefix cache has of it.
    pub(super) fn start(&mut self, kept: Kept, seat: Seat) {
        self.seat = Some(seat);
        if self.started.is_none() {
            self.started = Some(Instant::now());
            self.cached = kept.ids.len();
        }
        self.kept = Some(kept);
        self.report_progress();
    }

    /// Goes back to the queue; its tokens stay, their keys and values are run again later.
    pub(super) fn suspend(&mut self) -> Option<Kept> {
        self.seat = None;
        self.kept.take()
    }

    /// Ids not yet run: the rest of the prompt, or the one token made last.
    pub(super) fn pending(&self) -> &[u32] {
        &self.ids[self.done()..]
    }

    /// Ids run.
    pub(super) fn done(&self) -> usize {
        self.kept.as_ref().map_or(0, |kept| kept.ids.len())
    }

    /// Whether one token is all that is left to run.
    pub(super) fn is_decoding(&self) -> bool {
        self.first_token.is_some() && self.pending().len() == 1
    }

    /// `count` more ids have been run.
    pub(super) fn advance(&mut self, count: usize) {
        let done = self.done();
        let decoding = self.is_decoding();
        if let Some(kept) = &mut self.kept {
            kept.ids.extend_from_slice(&self.ids[done..done + count]);
        }
        if !decoding {
            self.report_progress();
        }
    }

    /// Chooses the next token from `logits`; the reason, if the request is over.
    pub(super) fn choose(&mut self, logits: &mut [f32]) -> Result<Option<FinishReason>, EngineError> {
        if logits.iter().any(|logit| logit.is_nan()) {
            return Err(EngineError::Failed(ForwardError::NotFinite.to_string()));
        }
        let reported = self.logprobs.map(|top| (top, log_probabilities(logits)));
        self.sampler.adjust(logits);
        if let Some(constraint) = &mut self.constraint {
            constraint.mask(logits).map_err(EngineError::Failed)?;
        }
        let id = self.sampler.sample(logits);
        self.sampler.accept(id);
        self.first_token.get_or_insert_with(Instant::now);
        self.ids.push(id);
        if self.stop_ids.contains(&id) {
            return Ok(Some(FinishReason::Stop(Some(id))));
        }
        let complete = match &mut self.constraint {
            Some(constraint) => constraint.accept(id).map_err(EngineError::Failed)?,
            None => false,
        };
        let logprobs = reported.map(|(top, log)| Logprobs {
            chosen: log.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY),
            top: most_likely(&log, top),
        });
        self.send(Event::Token(Token { id, logprobs }));
        if complete {
            return Ok(Some(FinishReason::Stop(None)));
        }
        Ok((self.made() >= self.max_tokens).then_some(FinishReason::Length))
    }

    /// Tokens made.
    pub(super) fn made(&self) -> usize {
        self.ids.len() - self.prompt
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed) || self.events.is_closed()
    }

    /// The error of a passed deadline.
    pub(super) fn expired(&self, now: Instant) -> Option<EngineError> {
        let deadline = self.deadline.filter(|&deadline| deadline <= now)?;
        Some(EngineError::Deadline(deadline - self.submitted))
    }

    pub(super) fn finish(&self, reason: FinishReason) {
        self.send(Event::Finished(Finished { reason, usage: self.usage() }));
    }

    pub(super) fn fail(&self, error: EngineError) {
        self.send(Event::Failed(error));
    }

    pub(super) fn usage(&self) -> Usage {
        let now = Instant::now();
        let started = self.started.unwrap_or(now);
        let first = self.first_token.unwrap_or(now);
        Usage {
            prompt_tokens: self.prompt,
            cached_tokens: self.cached,
            completion_tokens: self.made(),
            queued: started - self.submitted,
            prefill: first.saturating_duration_since(started),
            decode: now.saturating_duration_since(first),
        }
    }

    fn report_progress(&self) {
        let elapsed = self.started.map(|at| at.elapsed()).unwrap_or_default();
        let (total, cached) = (self.prompt, self.cached);
        let processed = self.done().min(total);
        self.send(Event::Prefilled(PrefillProgress { total, cached, processed, elapsed }));
    }

    fn send(&self, event: Event) {
        // A client that went away is noticed by `is_cancelled` before the next step.
        let _ = self.events.send(event);
    }
}

/// `log softmax`, in f64 where it sums.
fn log_probabilities(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&z| f64::from(z - max).exp()).sum();
    let log_sum = max + sum.ln() as f32;
    logits.iter().map(|&z| z - log_sum).collect()
}

fn most_likely(log: &[f32], count: usize) -> Vec<(u32, f32)> {
    let mut order: Vec<(u32, f32)> = (0..).zip(log.iter().copied()).collect();
    let by_log = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    let count = count.min(order.len());
    if count == 0 {
        return Vec::new();
    }
    order.select_nth_unstable_by(count - 1, by_log);
    order.truncate(count);
    order.sort_unstable_by(by_log);
    order
}
