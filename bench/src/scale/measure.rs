//! One axis after the other: the base case with one number changed, each run in fresh processes.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use laguna_tests::relay::Preset;
use serde::Serialize;

use crate::e2e::measure::cases;
use crate::e2e::place::{Reach, SetUp};
use crate::e2e::setup::Job;
use crate::error::BenchError;
use crate::report::{Row, name};
use crate::stats::ratio;
use crate::synth::{self, Layout, Shape};
use crate::{nano, scratch};

/// What is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Worker processes: 1, 2, 4
    Shards,
    /// Sequences at once, so rows of a decode step: 1, 4, 16
    Rows,
    /// Tokens of the prompt: 16, 64, 256
    Prompt,
    /// Routed experts per sparse layer, each token asking as many of them: 16, 64, 256
    Experts,
    /// What lies between coordinator and workers: nothing, thunderbolt, 10gbe, wifi
    Link,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Axes, in this order.
    pub axes: Vec<Axis>,
    /// Checkpoint of the base case; its routed experts are those of the axis `experts` where that has as many.
    pub shape: Shape,
    /// The base case; its model is written first.
    pub job: Job,
    /// Runs of each case.
    pub repeats: usize,
    /// Only the first two values of an axis, and small ones.
    pub quick: bool,
}

/// One value of one axis, medians over its runs.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// What was changed.
    pub axis: Axis,
    /// To what.
    pub value: String,
    /// Prompt tokens per second.
    pub prefill_tok_s: f64,
    /// `prefill_tok_s` over that of the axis's first value.
    pub prefill_ratio: f64,
    /// Tokens per second after the first, over all sequences.
    pub decode_tok_s: f64,
    /// `decode_tok_s` over that of the axis's first value.
    pub decode_ratio: f64,
    /// Microseconds of a sparse layer in decode, median.
    pub us_per_layer: f64,
    /// Of these, the slowest shard's arithmetic: the mean.
    pub bank_us: f64,
    /// Most bytes resident in the coordinator's process.
    pub peak_bytes: u64,
    /// Most bytes resident in the largest worker's process.
    pub worker_peak_bytes: u64,
}

impl Plan {
    /// Measures every axis. `progress` is told what comes next.
    ///
    /// # Errors
    /// If a checkpoint cannot be written, or a process fails.
    pub fn run(&self, progress: &mut dyn FnMut(&str)) -> Result<Vec<Record>, BenchError> {
        let dir = scratch("scale")?;
        let base =
            Job { model: self.checkpoint(dir.path(), self.shape.experts, progress)?, ..self.job.clone() };
        let mut records = Vec::new();
        for &axis in &self.axes {
            progress(&format!("axis {}", name(&axis)));
            let mut values = Vec::new();
            for value in self.values(axis) {
                values.push((value.clone(), self.changed(axis, &value, &base, dir.path(), progress)?));
            }
            let (values, jobs): (Vec<String>, Vec<Job>) = values.into_iter().unzip();
            let mut first = None;
            for (case, value) in cases(jobs, self.repeats, progress)?.iter().zip(values) {
                let speeds = (case.median(|s| s.prefill_tok_s), case.median(|s| s.decode_tok_s));
                let first = first.get_or_insert(speeds);
                records.push(Record {
                    axis,
                    value,
                    prefill_tok_s: speeds.0,
                    prefill_ratio: ratio(speeds.0, first.0),
                    decode_tok_s: speeds.1,
                    decode_ratio: ratio(speeds.1, first.1),
                    us_per_layer: case.median(|s| s.us_per_layer_p50),
                    bank_us: case.median(|s| s.bank_us),
                    peak_bytes: case.most(|s| s.peak_bytes),
                    worker_peak_bytes: case.most(|s| s.worker_peak_bytes),
                });
            }
        }
        Ok(records)
    }

    fn values(&self, axis: Axis) -> Vec<String> {
        let numbers = |all: [usize; 3]| all.iter().map(ToString::to_string).collect();
        let mut values: Vec<String> = match axis {
            Axis::Shards => numbers([1, 2, 4]),
            Axis::Rows => numbers([1, 4, 16]),
            Axis::Prompt if self.quick => numbers([4, 8, 16]),
            Axis::Prompt => numbers([16, 64, 256]),
            Axis::Experts if self.quick => numbers([4, 8, 16]),
            Axis::Experts => numbers([16, 64, 256]),
            Axis::Link => {
                std::iter::once(NO_LINK).chain(Preset::ALL.map(Preset::name)).map(str::to_owned).collect()
            }
        };
        if self.quick {
            values.truncate(2);
        }
        values
    }

    /// The base case with one number changed.
    fn changed(
        &self,
        axis: Axis,
        value: &str,
        base: &Job,
        dir: &Path,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Job, BenchError> {
        let job = base.clone();
        let number = || value.parse::<usize>().map_err(BenchError::failed);
        Ok(match axis {
            Axis::Shards => {
                Job { set_up: SetUp { reach: Reach::Processes, shards: number()? as u16 }, ..job }
            }
            Axis::Rows => Job { sequences: number()?, ..job },
            Axis::Prompt => Job { prompt: number()?, ..job },
            Axis::Experts => Job { model: self.checkpoint(dir, number()?, progress)?, ..job },
            Axis::Link => Job { link: (value != NO_LINK).then(|| value.to_owned()), ..job },
        })
    }

    /// A checkpoint of the base's shape with this many routed experts, written once.
    fn checkpoint(
        &self,
        dir: &Path,
        experts: usize,
        progress: &mut dyn FnMut(&str),
    ) -> Result<PathBuf, BenchError> {
        let place = dir.join(format!("experts-{experts}"));
        if !place.exists() {
            let shape = Shape { experts, ..self.shape.clone() };
            progress(&format!("writing {} layers with {experts} experts", shape.layers));
            synth::write(&place, &shape, Layout::Stacked, 0, &nano(), &mut |_| {})?;
        }
        Ok(place)
    }
}

impl Row for Record {
    const BENCH: &'static str = "scale";
    const HEADS: &'static [&'static str] = &[
        "axis",
        "value",
        "prefill tok/s",
        "×",
        "decode tok/s",
        "×",
        "µs/layer",
        "bank µs",
        "peak MB",
        "worker MB",
    ];

    fn cells(&self) -> Vec<String> {
        let megabytes = |bytes: u64| format!("{:.0}", bytes as f64 / 1e6);
        vec![
            name(&self.axis),
            self.value.clone(),
            format!("{:.1}", self.prefill_tok_s),
            format!("{:.2}", self.prefill_ratio),
            format!("{:.2}", self.decode_tok_s),
            format!("{:.2}", self.decode_ratio),
            format!("{:.0}", self.us_per_layer),
            format!("{:.0}", self.bank_us),
            megabytes(self.peak_bytes),
            megabytes(self.worker_peak_bytes),
        ]
    }
}

const NO_LINK: &str = "none";
