//! The recorder's calls counted, timed by themselves, and held against the time of a token; and decode with it on.
//!
//! A run with it off cannot be told from one without it, as runs differ by more than it costs. So its calls are counted
//! in a run with it on, and each is charged what one takes in a loop while it is off.

use std::hint::black_box;
use std::time::{Duration, Instant};

use laguna_coordinator::flight::{Call, Flight, Stage};
use laguna_shared::ids::{LayerId, ShardId};
use laguna_shared::wire::WorkerTimes;
use serde::Serialize;

use crate::e2e::measure::cases;
use crate::e2e::place::SetUp;
use crate::e2e::setup::Job;
use crate::error::BenchError;
use crate::report::{Row, name};
use crate::stats::{median, ratio};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where the experts are, and what each run does.
    pub jobs: Vec<Job>,
    /// Runs with the recorder off and on, taken in turn.
    pub repeats: usize,
    /// Turns of the loop that times a call.
    pub turns: usize,
}

/// One set-up, medians over its runs.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// Where the experts are.
    pub set_up: SetUp,
    /// Nanoseconds of a stage's begin and end while it is off.
    pub stage_off_ns: f64,
    /// Nanoseconds of noting a layer while it is off.
    pub enter_off_ns: f64,
    /// Nanoseconds of noting a shard's call while it is off.
    pub call_off_ns: f64,
    /// Stages of a decode step.
    pub stages: f64,
    /// Layers noted in a decode step.
    pub enters: usize,
    /// Shards' calls noted in a decode step.
    pub calls: f64,
    /// Microseconds of a decode step while it is off.
    pub step_off_us: f64,
    /// The same while it is on.
    pub step_on_us: f64,
    /// What all of a step's calls take while it is off, over the step.
    pub share_off: f64,
    /// `step_on_us / step_off_us`: what recording takes, most of it because stages are evaluated one by one.
    pub ratio_on: f64,
}

/// Nanoseconds of each kind of call while the recorder is off.
struct Off {
    stage: f64,
    enter: f64,
    call: f64,
}

impl Plan {
    /// Measures every set-up. `progress` is told what comes next.
    ///
    /// # Errors
    /// If a process fails.
    pub fn run(&self, progress: &mut dyn FnMut(&str)) -> Result<Vec<Record>, BenchError> {
        progress("the recorder's calls, off");
        let off = Off::measure(self.turns);
        let with = |job: &Job, recorder| Job { recorder, ..job.clone() };
        let jobs = self.jobs.iter().flat_map(|job| [with(job, false), with(job, true)]).collect();
        let cases = cases(jobs, self.repeats, progress)?;
        let records = cases.chunks_exact(2).map(|pair| {
            let (without, recorded) = (&pair[0], &pair[1]);
            let first = without.samples.first();
            // A sparse layer is entered twice: before its exchange and after it.
            let layers = first.map_or(0, |sample| sample.layers + sample.sparse_layers);
            let (stages, calls) = (recorded.median(|s| s.stages), recorded.median(|s| s.calls));
            let step_off_us = without.median(|s| s.step_us);
            let step_on_us = recorded.median(|s| s.step_us);
            // Some stages that begin never end, two a layer at most.
            let begun = stages + 2.0 * layers as f64;
            let spent_ns = off.stage * begun + off.enter * layers as f64 + off.call * calls;
            Record {
                set_up: without.job.set_up,
                stage_off_ns: off.stage,
                enter_off_ns: off.enter,
                call_off_ns: off.call,
                stages,
                enters: layers,
                calls,
                step_off_us,
                step_on_us,
                share_off: ratio(spent_ns / 1e3, step_off_us),
                ratio_on: ratio(step_on_us, step_off_us),
            }
        });
        Ok(records.collect())
    }
}

impl Off {
    fn measure(turns: usize) -> Self {
        let mut flight = Flight::default();
        let call = Call {
            shard: ShardId(0),
            arrived: Instant::now(),
            round_trip: Duration::from_micros(50),
            times: WorkerTimes::default(),
        };
        Self {
            stage: each(turns, &mut flight, |flight| {
                let began = black_box(flight.begin());
                flight.end(began, black_box(Stage::Send));
            }),
            enter: each(turns, &mut flight, |flight| flight.enter(black_box(Some(LayerId(1))), black_box(1))),
            call: each(turns, &mut flight, |flight| {
                if flight.is_on() {
                    flight.call(black_box(&call));
                }
            }),
        }
    }
}

/// Nanoseconds of one turn, the loop included: the median of several loops.
fn each(turns: usize, flight: &mut Flight, mut turn: impl FnMut(&mut Flight)) -> f64 {
    let loops = (0..LOOPS).map(|_| {
        let began = Instant::now();
        for _ in 0..turns {
            turn(black_box(flight));
        }
        began.elapsed().as_secs_f64() * 1e9 / turns.max(1) as f64
    });
    median(loops)
}

impl Row for Record {
    const BENCH: &'static str = "recorder";
    const HEADS: &'static [&'static str] = &[
        "set-up",
        "stage ns",
        "layer ns",
        "call ns",
        "stages",
        "layers",
        "calls",
        "step µs, off",
        "on",
        "off: share",
        "on/off",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            name(&self.set_up),
            format!("{:.2}", self.stage_off_ns),
            format!("{:.2}", self.enter_off_ns),
            format!("{:.2}", self.call_off_ns),
            format!("{:.1}", self.stages),
            self.enters.to_string(),
            format!("{:.1}", self.calls),
            format!("{:.0}", self.step_off_us),
            format!("{:.0}", self.step_on_us),
            format!("{:.4} %", self.share_off * 100.0),
            format!("{:.2}", self.ratio_on),
        ]
    }
}

const LOOPS: usize = 9;
