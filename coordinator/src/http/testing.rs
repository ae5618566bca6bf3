//! A parrot: an engine that says what a script tells it to, so that the API can be driven without a model.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::engine::handle::{EngineHandle, Limits, Part, Status, scripted};
use crate::engine::request::{
    EngineError, Event, FinishReason, Finished, Logprobs, PrefillProgress, Submission, Token, Usage,
};
use crate::engine::sampler::Constraint;

/// One thing a parrot does.
#[derive(Clone, Debug)]
pub enum Line {
    /// Says these ids, one event each, until the budget is used up or a stop id comes. Fails if the request's
    /// constraint forbids one: a parrot can't be made to say something else.
    Say(Vec<u32>),
    /// Says what comes to its mind, in the form the request's constraint asks for, until that is complete, the budget
    /// is used up or a stop id comes.
    Babble(Box<Babble>),
    /// Is silent.
    Wait(Duration),
    /// Tells that so many prompt tokens are done, of these so many from the cache.
    Prefill {
        /// Done, cached ones included.
        processed: usize,
        /// From the cache.
        cached: usize,
    },
    /// Fails.
    Fail(EngineError),
    /// Goes away without a word.
    Vanish,
}

/// A model without sense: draws from the tokens that may come, each as likely as the other. Now and then it goes for
/// one of its urges, token by token as far as they may come, for chance alone spells no end tag.
#[derive(Clone, Debug)]
pub struct Babble {
    rng: ChaCha8Rng,
    urges: Vec<Vec<u32>>,
    urge: VecDeque<u32>,
}

impl Babble {
    /// Same seed, same urges, same babble.
    pub fn new(seed: u64, urges: Vec<Vec<u32>>) -> Self {
        Self { rng: ChaCha8Rng::seed_from_u64(seed), urges, urge: VecDeque::new() }
    }

    /// The next token for `logits`, `[vocab]`: one of those that are not negative infinity; `None` if all are.
    pub fn next(&mut self, logits: &[f32]) -> Option<u32> {
        let may = |id: &u32| logits.get(*id as usize).is_some_and(|&logit| logit > f32::NEG_INFINITY);
        if self.urge.is_empty() && !self.urges.is_empty() && self.rng.random_range(0..4) == 0 {
            let urge = self.rng.random_range(0..self.urges.len());
            self.urge.extend(&self.urges[urge]);
        }
        if let Some(id) = self.urge.pop_front().filter(may) {
            return Some(id);
        }
        self.urge.clear();
        let ids: Vec<u32> = (0..).take(logits.len()).filter(may).collect();
        (!ids.is_empty()).then(|| ids[self.rng.random_range(0..ids.len())])
    }
}

/// What a parrot has seen.
#[derive(Debug, Default)]
pub struct Seen {
    /// Prompts, in order.
    pub prompts: Mutex<Vec<Vec<u32>>>,
    /// Requests whose client went away before they were over.
    pub cancelled: AtomicUsize,
    /// Requests that are over, however.
    pub over: AtomicUsize,
}

/// Starts a parrot; `script` says what it does for each request. When the script is through, the turn ends with a
/// stop id.
pub fn parrot(
    limits: Limits,
    status: Status,
    script: impl Fn(&Submission) -> Vec<Line> + Send + 'static,
) -> (EngineHandle, Arc<Seen>) {
    let (handle, stage) = scripted(limits);
    let seen = Arc::new(Seen::default());
    let witness = seen.clone();
    stage.tell(status);
    std::thread::spawn(move || {
        while let Some(part) = stage.next() {
            witness
                .prompts
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(part.submission.prompt.clone());
            let (lines, witness) = (script(&part.submission), witness.clone());
            std::thread::spawn(move || play(part, lines, limits.vocab_size, &witness));
        }
    });
    (handle, seen)
}

/// Limits of a model of `context` tokens and 2,048 ids, with room for `queue` waiting requests.
pub const fn limits(context: usize, queue: usize) -> Limits {
    Limits { context, parallel: 0, queue, kv_bytes: u64::MAX, kv_per_token: 1, kv_fixed: 0, vocab_size: 2048 }
}

fn play(mut part: Part, lines: Vec<Line>, vocab_size: usize, seen: &Seen) {
    let constraint = part.submission.constraint.take();
    let mut speech = Speech { part: &part, constraint, logits: vec![0.0; vocab_size], cached: 0, made: 0 };
    let last = speech.perform(lines);
    if part.is_cancelled() {
        seen.cancelled.fetch_add(1, Ordering::SeqCst);
    }
    if let Some(event) = last {
        // Nobody may be listening any more.
        let _ = part.events.send(event);
    }
    seen.over.fetch_add(1, Ordering::SeqCst);
}

/// A request on stage.
struct Speech<'a> {
    part: &'a Part,
    constraint: Option<Box<dyn Constraint>>,
    logits: Vec<f32>,
    cached: usize,
    made: usize,
}

impl Speech<'_> {
    /// Does everything but the last event.
    fn perform(&mut self, lines: Vec<Line>) -> Option<Event> {
        for line in lines {
            match line {
                Line::Say(ids) => {
                    for id in ids {
                        if let Some(end) = self.say(|_| Some(id)) {
                            return Some(end);
                        }
                    }
                }
                Line::Babble(mut babble) => loop {
                    if let Some(end) = self.say(|logits| babble.next(logits)) {
                        return Some(end);
                    }
                },
                Line::Wait(time) => {
                    let until = Instant::now() + time;
                    while Instant::now() < until && !self.part.is_cancelled() {
                        std::thread::sleep(Duration::from_millis(2).min(time));
                    }
                }
                Line::Prefill { processed, cached } => {
                    self.cached = cached;
                    let total = self.part.submission.prompt.len();
                    let progress =
                        PrefillProgress { total, cached, processed, elapsed: Duration::from_millis(1) };
                    // Nobody may be listening any more.
                    let _ = self.part.events.send(Event::Prefilled(progress));
                }
                Line::Fail(error) => return Some(Event::Failed(error)),
                Line::Vanish => return None,
            }
        }
        // The script is through: a stop id is the next token.
        let stop = self.part.submission.stop_ids.first().copied();
        match stop {
            Some(stop) => self.say(|_| Some(stop)),
            None => Some(self.finished(FinishReason::Stop(None))),
        }
    }

    /// Says the token that `choose` takes by its logits; the last event, if nothing may follow.
    fn say(&mut self, choose: impl FnOnce(&[f32]) -> Option<u32>) -> Option<Event> {
        let submission = &self.part.submission;
        if self.part.is_cancelled() {
            return Some(self.finished(FinishReason::Cancelled));
        }
        if self.made == submission.max_tokens {
            return Some(self.finished(FinishReason::Length));
        }
        let failed = |message| Some(Event::Failed(EngineError::Failed(message)));
        self.logits.fill(0.0);
        if let Some(constraint) = &mut self.constraint
            && let Err(message) = constraint.mask(&mut self.logits)
        {
            return failed(message);
        }
        let Some(id) = choose(&self.logits) else { return failed("no token may come".to_owned()) };
        if self.logits.get(id as usize) == Some(&f32::NEG_INFINITY) {
            return failed(format!("the script says token {id}, which the request's constraint forbids"));
        }
        self.made += 1;
        if submission.stop_ids.contains(&id) {
            return Some(self.finished(FinishReason::Stop(Some(id))));
        }
        let complete = match &mut self.constraint {
            Some(constraint) => constraint.accept(id),
            None => Ok(false),
        };
        let top = |count| (0..count).map(|rank| (id + rank as u32, -0.5 - rank as f32)).collect();
        let logprobs = submission.logprobs.map(|count| Logprobs { chosen: -0.5, top: top(count) });
        // Nobody may be listening any more.
        let _ = self.part.events.send(Event::Token(Token { id, logprobs }));
        match complete {
            Ok(false) => None,
            Ok(true) => Some(self.finished(FinishReason::Stop(None))),
            Err(message) => failed(message),
        }
    }

    fn finished(&self, reason: FinishReason) -> Event {
        let (prompt_tokens, cached_tokens) = (self.part.submission.prompt.len(), self.cached);
        let usage = Usage { prompt_tokens, cached_tokens, completion_tokens: self.made, ..Usage::default() };
        Event::Finished(Finished { reason, usage })
    }
}
