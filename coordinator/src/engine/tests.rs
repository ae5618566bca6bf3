//! The engine over a small real checkpoint: batching, prefix reuse, limits, cancellation, faults.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use laguna_shared::compute::ActivationType;
use laguna_shared::config::ConfigOptions;
use laguna_shared::ids::{ExpertId, ExpertRange, ShardId};
use laguna_shared::session::{CallerSettings, InMemoryLinks, InMemoryWorker};
use laguna_worker::bank::{BankKind, load_bank, pool};
use laguna_worker::model::OpenModel;

use super::handle::EngineHandle;
use super::request::{AdmissionError, EngineError, Event, FinishReason, Finished, Submission, Ticket};
use super::sampler::Sampling;
use super::service::{Engine, EngineSettings};
use crate::experts::Experts;
use crate::model::Model;
use crate::model::linear::TrunkMath;
use crate::model::load::TrunkSettings;
use crate::model::quantize::TrunkBits;
use crate::reference::expected::{Case, read_cases};

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/bf16")
}

/// Reference cases of the fixture, shortest first.
fn cases() -> Vec<Case> {
    read_cases(&fixture(), 512).unwrap()
}

pub(super) fn settings() -> EngineSettings {
    EngineSettings {
        context: 4096,
        parallel: NonZeroUsize::new(8).unwrap(),
        queue: 64,
        kv_bytes: 1 << 30,
        chunk: NonZeroUsize::new(64).unwrap(),
    }
}

/// Runs an engine on a thread of its own while `client` talks to it.
fn with_engine(settings: EngineSettings, client: impl FnOnce(&EngineHandle)) {
    with_model(fixture(), settings, client);
}

/// As [`with_engine`], over the checkpoint in `dir`, its experts in two shards.
pub(super) fn with_model(dir: PathBuf, settings: EngineSettings, client: impl FnOnce(&EngineHandle)) {
    with_trunk(dir, settings, TrunkMath::Mlx, client);
}

/// Where a trunk may be computed, and with it where its keys and values lie.
fn trunks() -> [TrunkMath; 2] {
    [TrunkMath::Mlx, TrunkMath::Cpu(pool(NonZeroUsize::new(2)))]
}

fn with_trunk(dir: PathBuf, settings: EngineSettings, math: TrunkMath, client: impl FnOnce(&EngineHandle)) {
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        // MLX stays on the thread that loads the model.
        let opened = OpenModel::open(&dir, &ConfigOptions::default()).unwrap();
        let OpenModel { checkpoint, config, inventory, .. } = &opened;
        let trunk = TrunkSettings { activation: ActivationType::F32, bits: TrunkBits::Stored, math };
        let model = Model::load(checkpoint, inventory, config, &trunk, &mut |_| ()).unwrap();
        let worker = |shard: u16, range: ExpertRange| {
            let bank = load_bank(BankKind::Reference, &opened, range, &pool(None), &mut |_| ()).unwrap();
            let hello = opened.hello(ShardId(shard), range, ActivationType::F32).unwrap();
            let welcome = opened.welcome(ShardId(shard), bank.as_ref()).unwrap();
            InMemoryWorker { hello, welcome, bank }
        };
        let experts = u16::try_from(config.num_experts).unwrap();
        let half = experts / 2;
        let workers = vec![worker(0, ExpertRange::new(0, half)), worker(1, ExpertRange::new(half, experts))];
        let links = InMemoryLinks::new(workers, CallerSettings::default()).unwrap();
        let owners: Vec<ShardId> = (0..experts).map(ExpertId).map(|e| ShardId(e.0 / half)).collect();
        let experts = Experts::new(&owners, Box::new(links), None).unwrap();
        let (engine, handle) = Engine::new(model, experts, settings);
        sender.send(handle).unwrap();
        engine.run();
    });
    let handle = receiver.recv().unwrap();
    client(&handle);
    handle.drain();
    drop(handle);
    thread.join().unwrap();
}

pub(super) fn greedy(prompt: &[u32], max_tokens: usize) -> Submission {
    Submission {
        prompt: prompt.to_vec(),
        sampling: Sampling::greedy(),
        seed: 0,
        max_tokens,
        stop_ids: Arc::from([]),
        logprobs: None,
        constraint: None,
        deadline: None,
    }
}

/// Ids made, and how the request ended.
pub(super) fn finish(mut ticket: Ticket) -> (Vec<u32>, Result<Finished, EngineError>) {
    let mut ids = Vec::new();
    while let Some(event) = ticket.next_blocking() {
        match event {
            Event::Prefilled(_) => {}
            Event::Token(token) => ids.push(token.id),
            Event::Finished(finished) => return (ids, Ok(finished)),
            Event::Failed(error) => return (ids, Err(error)),
        }
    }
    panic!("the engine dropped a request");
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn requests_together_give_the_reference_text_of_each() {
    let cases = cases();
    with_engine(settings(), |engine| {
        let tickets: Vec<Ticket> = cases
            .iter()
            .map(|case| engine.submit(greedy(&case.input_ids, case.greedy_ids.len())).unwrap())
            .collect();
        for (case, ticket) in cases.iter().zip(tickets) {
            let (ids, end) = finish(ticket);
            assert_eq!(ids, case.greedy_ids, "{}", case.key);
            let finished = end.unwrap();
            assert_eq!(finished.reason, FinishReason::Length);
            assert_eq!(finished.usage.prompt_tokens, case.input_ids.len());
            assert_eq!(finished.usage.completion_tokens, case.greedy_ids.len());
        }
    });
}

#[test]
fn a_stop_id_ends_the_text_and_is_not_part_of_it() {
    let cases = cases();
    let case = cases.iter().find(|case| case.key == "eos-24").unwrap();
    with_engine(settings(), |engine| {
        let submission = Submission { stop_ids: Arc::from([2, 24]), ..greedy(&case.input_ids, 100) };
        let (ids, end) = finish(engine.submit(submission).unwrap());
        assert_eq!(ids, case.greedy_ids[..case.greedy_ids.len() - 1]);
        assert_eq!(end.unwrap().reason, FinishReason::Stop(Some(24)));
    });
}

#[test]
fn a_second_turn_runs_only_its_own_tokens_and_says_the_same() {
    for math in trunks() {
        second_turn(&math);
    }
}

fn second_turn(math: &TrunkMath) {
    let cases = cases();
    let case = cases.iter().find(|case| case.key == "long").unwrap();
    let prompt: Vec<u32> = case.input_ids.iter().copied().cycle().take(2000).collect();
    let turn = |before: &[u32], made: &[u32]| {
        let mut next = before.to_vec();
        next.extend_from_slice(made);
        next.extend_from_slice(&[23, 7, 11, 24, 5]);
        next
    };
    let mut cold = Vec::new();
    with_trunk(fixture(), settings(), math.clone(), |engine| {
        let (made, _) = finish(engine.submit(greedy(&prompt, 8)).unwrap());
        let second = turn(&prompt, &made);
        // A side request in between must not cost the session its cache.
        let _ = finish(engine.submit(greedy(&[2, 9, 9], 4)).unwrap());
        let (ids, end) = finish(engine.submit(greedy(&second, 8)).unwrap());
        let usage = end.unwrap().usage;
        // The last token made was never run, so all but that and the new ones are there.
        assert_eq!(usage.cached_tokens, prompt.len() + made.len() - 1);
        cold.push((second, ids));

        // The same history with another ending: back to the checkpoint at the prompt's end.
        let mut regenerated = prompt.clone();
        regenerated.extend([1, 2, 3, 4]);
        let (ids, end) = finish(engine.submit(greedy(&regenerated, 8)).unwrap());
        assert_eq!(end.unwrap().usage.cached_tokens, prompt.len());
        cold.push((regenerated, ids));
    });
    with_trunk(fixture(), settings(), math.clone(), |engine| {
        for (prompt, warm) in &cold {
            let (ids, end) = finish(engine.submit(greedy(prompt, 8)).unwrap());
            assert_eq!(&ids, warm);
            let _ = end;
        }
    });
}

#[test]
fn memory_that_kept_sequences_share_counts_once() {
    let [_, on_the_cpu] = trunks();
    let prompt: Vec<u32> = (0..2000).map(|n| 5 + n * 7919 % 200).collect();
    with_trunk(fixture(), settings(), on_the_cpu, |engine| {
        let mut last = 0;
        let mut kept = |prompt: &[u32]| {
            finish(engine.submit(greedy(prompt, 4)).unwrap()).1.unwrap();
            wait_for("more is kept", || engine.status().kv_cached_bytes > last);
            last = engine.status().kv_cached_bytes;
            last
        };
        let first = kept(&prompt);
        // Other endings: each goes back to the prompt's end, and stays besides the others.
        for ending in 1..10 {
            kept(&[&prompt[..], &[ending; 70]].concat());
        }
        // Ten times as much, were it counted for each.
        assert!(last < 4 * first, "{last} bytes for nine more endings, {first} for the first");
    });
}

#[test]
fn a_dropped_ticket_frees_its_memory_within_a_step() {
    with_engine(settings(), |engine| {
        let mut ticket = engine.submit(greedy(&[2; 300], 3000)).unwrap();
        loop {
            if let Some(Event::Token(_)) = ticket.next_blocking() {
                break;
            }
        }
        wait_for("running", || engine.status().running == 1);
        drop(ticket);
        wait_for("cancel", || engine.status().running == 0 && engine.status().kv_active_bytes == 0);
        assert_eq!(engine.status().requests, [0, 0, 1]);
    });
}

#[test]
fn limits_are_refused_in_numbers() {
    let settings = EngineSettings { context: 100, queue: 1, parallel: NonZeroUsize::MIN, ..settings() };
    with_engine(settings, |engine| {
        let refused = |submission| engine.submit(submission).err();
        assert_eq!(
            refused(greedy(&[2; 100], 1)),
            Some(AdmissionError::TooLong { prompt: 100, context: 100 })
        );
        assert!(matches!(refused(greedy(&[], 1)), Some(AdmissionError::BadPrompt(_))));
        assert!(
            matches!(refused(greedy(&[512], 1)), Some(AdmissionError::BadPrompt(m)) if m.contains("512"))
        );
        // What is asked beyond the context is cut to it, and said to be cut.
        let (ids, end) = finish(engine.submit(greedy(&[2; 90], 1000)).unwrap());
        assert_eq!((ids.len(), end.unwrap().reason), (10, FinishReason::Length));

        let first = engine.submit(greedy(&[2; 10], 90)).unwrap();
        wait_for("running", || engine.status().waiting == 0);
        let second = engine.submit(greedy(&[3; 10], 90)).unwrap();
        let full = loop {
            match engine.submit(greedy(&[4; 10], 90)) {
                Err(error) => break error,
                // The first may have ended meanwhile.
                Ok(ticket) => drop(ticket),
            }
        };
        assert!(matches!(full, AdmissionError::QueueFull { waiting: 1, .. }), "{full:?}");
        drop((first, second));
    });
    let tight = EngineSettings { kv_bytes: 4096, ..settings_small() };
    with_engine(tight, |engine| {
        let refused = engine.submit(greedy(&[2; 50], 10)).err();
        assert!(
            matches!(refused, Some(AdmissionError::TooLarge { tokens: 60, budget: 4096, .. })),
            "{refused:?}"
        );
    });
}

fn settings_small() -> EngineSettings {
    EngineSettings { context: 400, ..settings() }
}

#[test]
fn too_little_memory_for_all_makes_some_wait_and_changes_no_text() {
    let cases = cases();
    let case = cases.iter().find(|case| case.key == "medium").unwrap();
    // The fixture: 2 heads of 32, f32, keys and values: 512 bytes a token and layer.
    let mut alone = Vec::new();
    with_engine(settings_small(), |engine| {
        alone = finish(engine.submit(greedy(&case.input_ids, 200)).unwrap()).0;
        let limits = *engine.limits();
        assert!(limits.kv_per_token > 0);
    });
    let need = |engine: &EngineHandle| engine.limits().kv_of(296);
    let mut budget = 0;
    with_engine(settings_small(), |engine| budget = need(engine) * 3 / 2);
    with_engine(EngineSettings { kv_bytes: budget, ..settings_small() }, |engine| {
        let tickets: Vec<Ticket> =
            (0..4).map(|_| engine.submit(greedy(&case.input_ids, 200)).unwrap()).collect();
        for ticket in tickets {
            let (ids, end) = finish(ticket);
            assert_eq!(end.unwrap().reason, FinishReason::Length);
            assert_eq!(ids, alone);
        }
        wait_for("rest", || engine.status().running == 0);
        assert!(engine.status().kv_cached_bytes <= budget);
    });
}

#[test]
fn a_deadline_ends_a_request_wherever_it_is() {
    with_engine(EngineSettings { parallel: NonZeroUsize::MIN, ..settings() }, |engine| {
        let long = engine.submit(greedy(&[2; 50], 4000)).unwrap();
        let deadline = Some(Instant::now() + Duration::from_millis(50));
        let queued = engine.submit(Submission { deadline, ..greedy(&[3; 50], 10) }).unwrap();
        let (_, end) = finish(queued);
        assert!(matches!(end, Err(EngineError::Deadline(_))), "{end:?}");
        drop(long);
        let deadline = Some(Instant::now() + Duration::from_millis(100));
        let running = engine.submit(Submission { deadline, ..greedy(&[4; 50], 4000) }).unwrap();
        let (_, end) = finish(running);
        assert!(matches!(end, Err(EngineError::Deadline(_))), "{end:?}");
    });
}

#[test]
fn draining_finishes_what_runs_and_takes_no_more() {
    with_engine(settings(), |engine| {
        let ticket = engine.submit(greedy(&[2; 20], 30)).unwrap();
        engine.drain();
        assert_eq!(engine.submit(greedy(&[2], 1)).err(), Some(AdmissionError::Draining));
        assert_eq!(finish(ticket).0.len(), 30);
    });
}

#[test]
fn logprobs_are_those_of_the_distribution() {
    with_engine(settings(), |engine| {
        let submission = Submission { logprobs: Some(3), ..greedy(&[2, 17, 30], 2) };
        let mut ticket = engine.submit(submission).unwrap();
        let token = loop {
            if let Some(Event::Token(token)) = ticket.next_blocking() {
                break token;
            }
        };
        let logprobs = token.logprobs.unwrap();
        assert_eq!(logprobs.top.len(), 3);
        assert_eq!((logprobs.top[0].0, logprobs.top[0].1), (token.id, logprobs.chosen));
        assert!(logprobs.top.windows(2).all(|pair| pair[0].1 >= pair[1].1));
        assert!(logprobs.top.iter().map(|(_, log)| log.exp()).sum::<f32>() <= 1.0 + 1e-5);
    });
}

#[test]
fn a_queue_is_what_waits_besides_those_who_run() {
    let settings = EngineSettings { queue: 1, parallel: NonZeroUsize::new(2).unwrap(), ..settings() };
    with_engine(settings, |engine| {
        // All at once, before the engine has looked: two run, one waits, the next is refused.
        let tickets: Vec<_> = (0..3).map(|_| engine.submit(greedy(&[2; 10], 3000)).unwrap()).collect();
        let refused = engine.submit(greedy(&[2; 10], 3000)).err();
        assert!(matches!(refused, Some(AdmissionError::QueueFull { .. })), "{refused:?}");
        drop(tickets);
        wait_for("rest", || engine.status().running == 0 && engine.status().waiting == 0);
    });
    // No queue at all: whoever finds a place free is served.
    with_engine(EngineSettings { queue: 0, parallel: NonZeroUsize::MIN, ..settings }, |engine| {
        for _ in 0..3 {
            assert_eq!(finish(engine.submit(greedy(&[2; 10], 4)).unwrap()).0.len(), 4);
        }
    });
}
