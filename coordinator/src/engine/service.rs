//! The engine: every request of a server, on the one thread that owns MLX and drives the links.
//!
//! A step is one forward pass: the next token of every decoding request, and one chunk of one prompt beside them, so
//! that neither waits for the other. The queue is first come, first served; prompts take turns chunk by chunk.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use laguna_shared::compute::mlx::array::append_f32;
use mlx_rs::Array;
use tracing::{info, warn};

use super::handle::{Command, EngineHandle, Limits, Seat, ShardStatus, Shared, connect};
use super::prefix::{Kept, PrefixCache};
use super::request::{EngineError, FinishReason};
use super::slot::Slot;
use crate::experts::{Experts, ExpertsError};
use crate::flight::{Flight, Stage};
use crate::model::{ForwardError, Model, Segment};

/// How an engine is run.
#[derive(Clone, Copy, Debug)]
pub struct EngineSettings {
    /// Tokens of a sequence, prompt and new ones together.
    pub context: usize,
    /// Requests that run at once.
    pub parallel: NonZeroUsize,
    /// Requests that may wait.
    pub queue: usize,
    /// Bytes of keys and values, running and kept together.
    pub kv_bytes: u64,
    /// Prompt tokens a micro-batch while nothing decodes; a quarter of it a step while something does.
    pub chunk: NonZeroUsize,
}

/// The engine. Made and run on the thread that owns MLX.
pub struct Engine {
    model: Model,
    experts: Experts,
    settings: EngineSettings,
    commands: Receiver<Command>,
    shared: Arc<Shared>,
    waiting: VecDeque<Slot>,
    running: Vec<Slot>,
    prefix: PrefixCache,
    /// Whose turn it is among prompts.
    turn: usize,
    draining: bool,
    trouble: Option<String>,
    tried: Instant,
    published: Instant,
}

impl Engine {
    /// An engine over a loaded model and its shards, and the handle to it.
    pub fn new(model: Model, experts: Experts, settings: EngineSettings) -> (Self, EngineHandle) {
        let config = model.config();
        let element = model.activation().size();
        let pair = (2 * config.num_key_value_heads * config.head_dim * element) as u64;
        let full = config.layers.iter().filter(|layer| layer.sliding_window.is_none()).count();
        let limits = Limits {
            context: settings.context.min(config.max_position_embeddings),
            parallel: settings.parallel.get(),
            queue: settings.queue,
            kv_bytes: settings.kv_bytes,
            kv_per_token: pair * full as u64,
            kv_fixed: pair * model.ring_tokens() as u64,
            vocab_size: config.vocab_size,
        };
        let (handle, commands, shared) = connect(limits);
        let now = Instant::now();
        let mut engine = Self {
            model,
            experts,
            settings,
            commands,
            shared,
            waiting: VecDeque::new(),
            running: Vec::new(),
            prefix: PrefixCache::default(),
            turn: 0,
            draining: false,
            trouble: None,
            tried: now,
            published: now,
        };
        engine.publish();
        (engine, handle)
    }

    /// Serves until every handle is gone, or one drains it and its requests are done. Returns what was recorded.
    pub fn run(mut self) -> Flight {
        loop {
            let idle = self.running.is_empty() && self.waiting.is_empty();
            if idle && self.draining {
                break;
            }
            if !self.take_commands(idle) && idle {
                break;
            }
            self.mend();
            self.drop_ended();
            self.admit();
            let worked = !self.running.is_empty();
            if worked {
                self.step();
            }
            let rest = worked && self.running.is_empty();
            if rest || self.published.elapsed() > PUBLISH {
                self.publish();
            }
        }
        self.publish();
        self.experts.flight
    }

    /// Takes what has come; waits for something if `idle`. `false` once nothing can come any more.
    fn take_commands(&mut self, idle: bool) -> bool {
        if idle {
            match self.commands.recv_timeout(PUBLISH) {
                Ok(command) => self.take(command),
                Err(RecvTimeoutError::Timeout) => {
                    if self.trouble.is_none() {
                        self.trouble = self.experts.progress();
                    }
                    return true;
                }
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        while let Ok(command) = self.commands.try_recv() {
            self.take(command);
        }
        true
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Submit(job) => self.waiting.push_back(Slot::new(*job)),
            Command::Drain => self.draining = true,
        }
    }

    /// Tries to connect lost shards again, at most once a second. Until that works every request fails at once.
    fn mend(&mut self) {
        let Some(trouble) = self.trouble.clone() else { return };
        if self.tried.elapsed() > RETRY {
            match self.experts.reconnect() {
                Ok(()) => {
                    info!("all shards are connected again");
                    self.trouble = None;
                    self.publish();
                    return;
                }
                Err(error) => self.trouble = Some(error.to_string()),
            }
            self.tried = Instant::now();
        }
        while let Some(slot) = self.waiting.pop_front() {
            self.left_queue();
            slot.fail(EngineError::WorkerLost(trouble.clone()));
            self.count(Outcome::Failed);
        }
        if self.running.is_empty() {
            // Nothing to do until the shard is back: wait for it without spinning.
            std::thread::sleep(IDLE_TROUBLE);
        }
    }

    /// Ends requests whose client went away or whose deadline passed, wherever they are.
    fn drop_ended(&mut self) {
        let now = Instant::now();
        let ended = |slot: &Slot| slot.is_cancelled() || slot.expired(now).is_some();
        for index in (0..self.waiting.len()).rev() {
            if ended(&self.waiting[index])
                && let Some(slot) = self.waiting.remove(index)
            {
                self.left_queue();
                self.end_early(slot, now);
            }
        }
        for index in (0..self.running.len()).rev() {
            if ended(&self.running[index]) {
                let slot = self.running.remove(index);
                self.end_early(slot, now);
            }
        }
    }

    fn end_early(&mut self, mut slot: Slot, now: Instant) {
        let kept = slot.suspend();
        match slot.expired(now) {
            Some(error) if !slot.is_cancelled() => {
                slot.fail(error);
                self.count(Outcome::Failed);
            }
            _ => {
                slot.finish(FinishReason::Cancelled);
                self.count(Outcome::Cancelled);
            }
        }
        self.keep(kept);
    }

    /// Moves requests from the queue to the running ones while there is room.
    fn admit(&mut self) {
        while self.running.len() < self.settings.parallel.get() {
            let Some(slot) = self.waiting.front() else { break };
            let wanted = slot.ids.len() + (slot.max_tokens - slot.made()).min(RESERVE);
            let needs = self.shared.limits.kv_of(wanted);
            // One request alone always fits: larger ones were refused before they got here.
            if !self.running.is_empty() && self.active_bytes() + needs > self.settings.kv_bytes {
                break;
            }
            let Some(mut slot) = self.waiting.pop_front() else { break };
            let kept = self.prefix.take(&slot.ids).unwrap_or_else(|| Kept::empty(self.model.new_cache()));
            slot.start(kept, Seat::take(&self.shared));
            self.prefix.evict(self.settings.kv_bytes.saturating_sub(self.active_bytes() + needs));
            let mut status = self.shared.status.lock().unwrap_or_else(PoisonError::into_inner);
            status.cached_tokens += slot.done() as u64;
            drop(status);
            self.running.push(slot);
        }
    }

    /// One forward pass and what follows from it.
    fn step(&mut self) {
        self.make_room();
        let decoding = self.running.iter().any(Slot::is_decoding);
        let chunk = self.settings.chunk.get();
        let chunk = if decoding { (chunk / 4).max(1) } else { Model::prefill_rows(chunk, &self.experts) };
        let prompts: Vec<usize> =
            (0..self.running.len()).filter(|&i| !self.running[i].is_decoding()).collect();
        let prompt = (!prompts.is_empty()).then(|| prompts[self.turn % prompts.len()]);
        self.turn = self.turn.wrapping_add(1);

        // (slot, ids to run) in slot order.
        let plan: Vec<(usize, Vec<u32>)> = self
            .running
            .iter()
            .enumerate()
            .filter(|&(index, slot)| slot.is_decoding() || prompt == Some(index))
            .map(|(index, slot)| (index, chunk_of(slot, chunk).to_vec()))
            .collect();
        match self.forward(&plan) {
            Ok(logits) => self.conclude(&plan, logits),
            Err(error) => self.fail_all(&plan, &error),
        }
    }

    /// Runs the planned ids; logits of each planned slot that has nothing left to run, in plan order.
    fn forward(&mut self, plan: &[(usize, Vec<u32>)]) -> Result<Vec<Option<Vec<f32>>>, ForwardError> {
        let mut segments = Vec::with_capacity(plan.len());
        let mut planned = plan.iter().peekable();
        for (index, slot) in self.running.iter_mut().enumerate() {
            if let Some((_, ids)) = planned.next_if(|(at, _)| *at == index)
                && let Some(kept) = &mut slot.kept
            {
                segments.push(Segment { ids, cache: &mut kept.cache });
            }
        }
        let residual = self.model.forward(&mut segments, &mut self.experts, None)?;
        let mut first = 0;
        let mut rows = Vec::new();
        let mut complete = Vec::new();
        for (index, ids) in plan {
            first += ids.len();
            let done = self.running[*index].pending().len() == ids.len();
            complete.push(done);
            if done {
                rows.push(first as u32 - 1);
            }
        }
        if rows.is_empty() {
            return Ok(plan.iter().map(|_| None).collect());
        }
        let last = residual.take_axis(Array::from_slice(&rows, &[rows.len() as i32]), 0)?;
        let began = self.experts.flight.begin();
        let mut logits = Vec::new();
        append_f32(&self.model.logits(&last)?, &mut logits)?;
        self.experts.flight.end(began, Stage::Head);
        let mut each = logits.chunks_exact(self.model.config().vocab_size).map(<[f32]>::to_vec);
        Ok(complete.into_iter().map(|done| if done { each.next() } else { None }).collect())
    }

    fn conclude(&mut self, plan: &[(usize, Vec<u32>)], logits: Vec<Option<Vec<f32>>>) {
        let mut over = Vec::new();
        let mut ran = (0, 0);
        for ((index, ids), logits) in plan.iter().zip(logits) {
            let slot = &mut self.running[*index];
            let decoding = slot.is_decoding();
            slot.advance(ids.len());
            if !decoding {
                ran.0 += ids.len() as u64;
                if let Some(kept) = slot.kept.as_mut().filter(|kept| is_checkpoint(kept, slot.prompt)) {
                    kept.checkpoint();
                }
            }
            let Some(mut logits) = logits else { continue };
            ran.1 += 1;
            match slot.choose(&mut logits) {
                Ok(None) => {}
                Ok(Some(reason)) => over.push((*index, Ok(reason))),
                Err(error) => over.push((*index, Err(error))),
            }
        }
        {
            let mut status = self.shared.status.lock().unwrap_or_else(PoisonError::into_inner);
            status.prompt_tokens += ran.0;
            status.completion_tokens += ran.1;
        }
        for (index, end) in over.into_iter().rev() {
            let mut slot = self.running.remove(index);
            // Its place is free before its client hears the end, and may send the next request.
            let kept = slot.suspend();
            match end {
                Ok(reason) => {
                    slot.finish(reason);
                    self.count(Outcome::Finished);
                }
                Err(error) => {
                    slot.fail(error);
                    self.count(Outcome::Failed);
                }
            }
            self.keep(kept);
        }
    }

    /// The pass failed: the caches it touched are of no more use, and their requests fail.
    fn fail_all(&mut self, plan: &[(usize, Vec<u32>)], error: &ForwardError) {
        warn!("{error}");
        let lost = matches!(error, ForwardError::Experts(ExpertsError::Shard(_)));
        let error = if lost {
            self.trouble = Some(error.to_string());
            self.tried = Instant::now();
            EngineError::WorkerLost(error.to_string())
        } else {
            EngineError::Failed(error.to_string())
        };
        for (index, _) in plan.iter().rev() {
            let mut slot = self.running.remove(*index);
            // What it has run is of no more use.
            drop(slot.suspend());
            slot.fail(error.clone());
            self.count(Outcome::Failed);
        }
        self.publish();
    }

    /// Sends the youngest requests back to the queue while the next step might not fit the budget.
    fn make_room(&mut self) {
        loop {
            let active = self.active_bytes();
            let kept = self.prefix.bytes();
            if active + kept <= self.settings.kv_bytes {
                break;
            }
            if kept > 0 {
                self.prefix.evict(self.settings.kv_bytes.saturating_sub(active));
                continue;
            }
            if self.running.len() == 1 {
                break;
            }
            let Some(mut slot) = self.running.pop() else { break };
            info!("a request of {} tokens waits for memory", slot.ids.len());
            drop(slot.suspend());
            self.shared.places.fetch_add(1, Ordering::AcqRel);
            self.waiting.push_front(slot);
        }
    }

    fn active_bytes(&self) -> u64 {
        let checkpoints = |slot: &Slot| slot.kept.as_ref().map_or(0, Kept::checkpoint_bytes);
        self.running.iter().map(|slot| self.shared.limits.kv_of(slot.ids.len()) + checkpoints(slot)).sum()
    }

    fn keep(&mut self, kept: Option<Kept>) {
        if let Some(kept) = kept {
            self.prefix.keep(kept);
            self.prefix.evict(self.settings.kv_bytes.saturating_sub(self.active_bytes()));
        }
    }

    fn left_queue(&self) {
        self.shared.places.fetch_sub(1, Ordering::AcqRel);
    }

    fn count(&self, outcome: Outcome) {
        let mut status = self.shared.status.lock().unwrap_or_else(PoisonError::into_inner);
        status.requests[outcome as usize] += 1;
    }

    fn publish(&mut self) {
        self.published = Instant::now();
        let exchange = self.experts.take_times();
        let shards: Vec<ShardStatus> = self.experts.shard_status();
        let mut status = self.shared.status.lock().unwrap_or_else(PoisonError::into_inner);
        status.running = self.running.len();
        status.kv_active_bytes = self.running.iter().filter_map(|s| s.kept.as_ref()).map(Kept::bytes).sum();
        status.kv_cached_bytes = self.prefix.bytes();
        status.exchange = exchange.or(status.exchange);
        status.shards = shards;
        status.trouble.clone_from(&self.trouble);
    }
}

#[derive(Clone, Copy)]
enum Outcome {
    Finished,
    Failed,
    Cancelled,
}

/// The next ids of a slot: a chunk of its prompt that ends where a checkpoint is due, or its one pending token.
fn chunk_of(slot: &Slot, chunk: usize) -> &[u32] {
    let pending = slot.pending();
    let mut count = pending.len().min(chunk);
    // The prompt's last few tokens run by themselves: a later turn often differs in just these.
    if pending.len() > TAIL && count > pending.len() - TAIL {
        count = pending.len() - TAIL;
    }
    &pending[..count]
}

fn is_checkpoint(kept: &Kept, prompt: usize) -> bool {
    let done = kept.ids.len();
    let last = kept.checkpoints.last().map_or(0, crate::model::cache::Rings::len);
    done == prompt || done + TAIL == prompt || done >= last + CHECKPOINT
}

/// New tokens that a request is sure to find room for when it starts.
const RESERVE: usize = 1024;

/// Tokens between checkpoints of a long prompt.
const CHECKPOINT: usize = 2048;

/// Tokens at a prompt's end that run in a pass of their own: the generation prompt, which depends on thinking.
const TAIL: usize = 4;

/// How often the status is brought up to date, and idle links are looked after.
const PUBLISH: Duration = Duration::from_millis(500);

/// Between two tries to connect a lost shard.
const RETRY: Duration = Duration::from_secs(1);

/// Rest while a shard is missing and nothing runs.
const IDLE_TROUBLE: Duration = Duration::from_millis(50);
