//! A parrot: an engine that says what a script tells it to, so that the API can be driven without a model.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::engine::handle::{EngineHandle, Limits, Part, Status, scripted};
use crate::engine::request::{
    EngineError, Event, FinishReason, Finished, Logprobs, PrefillProgress, Submission, Token, Usage,
};

/// One thing a parrot does.
#[derive(Clone, Debug)]
pub enum Line {
    /// Says these ids, one event each, until the budget is used up or a stop id comes.
    Say(Vec<u32>),
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
            std::thread::spawn(move || play(&part, lines, &witness));
        }
    });
    (handle, seen)
}

/// Limits of a model of `context` tokens and 2,048 ids, with room for `queue` waiting requests.
pub const fn limits(context: usize, queue: usize) -> Limits {
    Limits { context, queue, kv_bytes: u64::MAX, kv_per_token: 1, kv_fixed: 0, vocab_size: 2048 }
}

fn play(part: &Part, lines: Vec<Line>, seen: &Seen) {
    let last = perform(part, lines);
    if part.is_cancelled() {
        seen.cancelled.fetch_add(1, Ordering::SeqCst);
    }
    if let Some(event) = last {
        // Nobody may be listening any more.
        let _ = part.events.send(event);
    }
    seen.over.fetch_add(1, Ordering::SeqCst);
}

/// Does everything but the last event.
fn perform(part: &Part, lines: Vec<Line>) -> Option<Event> {
    let submission = &part.submission;
    let (mut cached_tokens, mut made) = (0, 0);
    let finished = |reason, cached_tokens, completion_tokens| {
        let prompt_tokens = submission.prompt.len();
        let usage = Usage { prompt_tokens, cached_tokens, completion_tokens, ..Usage::default() };
        Some(Event::Finished(Finished { reason, usage }))
    };
    for line in lines {
        match line {
            Line::Say(ids) => {
                for id in ids {
                    if part.is_cancelled() {
                        return finished(FinishReason::Cancelled, cached_tokens, made);
                    }
                    if made == submission.max_tokens {
                        return finished(FinishReason::Length, cached_tokens, made);
                    }
                    made += 1;
                    if submission.stop_ids.contains(&id) {
                        return finished(FinishReason::Stop(Some(id)), cached_tokens, made);
                    }
                    let top = |count| (0..count).map(|rank| (id + rank as u32, -0.5 - rank as f32)).collect();
                    let logprobs =
                        submission.logprobs.map(|count| Logprobs { chosen: -0.5, top: top(count) });
                    // Nobody may be listening any more.
                    let _ = part.events.send(Event::Token(Token { id, logprobs }));
                }
            }
            Line::Wait(time) => {
                let until = Instant::now() + time;
                while Instant::now() < until && !part.is_cancelled() {
                    std::thread::sleep(Duration::from_millis(2).min(time));
                }
            }
            Line::Prefill { processed, cached } => {
                cached_tokens = cached;
                let total = submission.prompt.len();
                let progress =
                    PrefillProgress { total, cached, processed, elapsed: Duration::from_millis(1) };
                // As above.
                let _ = part.events.send(Event::Prefilled(progress));
            }
            Line::Fail(error) => return Some(Event::Failed(error)),
            Line::Vanish => return None,
        }
    }
    if part.is_cancelled() {
        return finished(FinishReason::Cancelled, cached_tokens, made);
    }
    if made == submission.max_tokens {
        return finished(FinishReason::Length, cached_tokens, made);
    }
    finished(FinishReason::Stop(submission.stop_ids.first().copied()), cached_tokens, made + 1)
}
