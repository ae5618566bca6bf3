//! Set-ups in turn, each run in a fresh process, and medians over the runs.

use serde::Serialize;

use super::setup::{Job, Sample, SetUp};
use crate::child::{Child, Launch, Role};
use crate::error::BenchError;
use crate::report::name;
use crate::stats::{median, ratio};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where the experts are, case by case.
    pub set_ups: Vec<SetUp>,
    /// What each run does; its own set-up does not count.
    pub job: Job,
    /// Runs of each set-up.
    pub repeats: usize,
}

/// One set-up, medians over its runs.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// Where the experts are.
    pub set_up: SetUp,
    /// Arithmetic of the experts.
    pub bank: String,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens made.
    pub tokens: usize,
    /// Runs.
    pub repeats: usize,
    /// Prompt tokens per second.
    pub prefill_tok_s: f64,
    /// Tokens per second after the first.
    pub decode_tok_s: f64,
    /// `decode_tok_s` over that of the first set-up.
    pub decode_ratio: f64,
    /// Microseconds of a sparse layer in decode, median.
    pub us_per_layer: f64,
    /// Its 99th percentile.
    pub us_per_layer_p99: f64,
    /// Most bytes resident in the coordinator's process.
    pub peak_bytes: u64,
    /// Most bytes resident in the largest worker's process.
    pub worker_peak_bytes: u64,
    /// Whether every run made the tokens that the first run of all made.
    pub same_tokens: bool,
}

impl Plan {
    /// Measures every set-up. `progress` is told what comes next.
    ///
    /// # Errors
    /// If a process fails.
    pub fn run(&self, progress: &mut dyn FnMut(&str)) -> Result<Vec<Record>, BenchError> {
        let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); self.set_ups.len()];
        for repeat in 1..=self.repeats {
            for (&set_up, samples) in self.set_ups.iter().zip(&mut samples) {
                progress(&format!("{}, run {repeat} of {}", name(&set_up), self.repeats));
                let mut child =
                    Child::start(&Role::Run(Job { set_up, ..self.job.clone() }), &Launch::default())?;
                samples.push(child.hear()?);
            }
        }
        let expected = samples.iter().flatten().next().map(|sample| sample.ids.clone());
        let mut records: Vec<Record> = Vec::new();
        for (&set_up, samples) in self.set_ups.iter().zip(&samples) {
            let of = |pick: fn(&Sample) -> f64| median(samples.iter().map(pick));
            let most = |pick: fn(&Sample) -> u64| samples.iter().map(pick).max().unwrap_or_default();
            let decode_tok_s = of(|s| s.decode_tok_s);
            let first = records.first().map_or(decode_tok_s, |first| first.decode_tok_s);
            records.push(Record {
                set_up,
                bank: self.job.bank.clone(),
                prompt: self.job.prompt,
                tokens: self.job.tokens,
                repeats: self.repeats,
                prefill_tok_s: of(|s| s.prefill_tok_s),
                decode_tok_s,
                decode_ratio: ratio(decode_tok_s, first),
                us_per_layer: of(|s| s.us_per_layer_p50),
                us_per_layer_p99: of(|s| s.us_per_layer_p99),
                peak_bytes: most(|s| s.peak_bytes),
                worker_peak_bytes: most(|s| s.worker_peak_bytes),
                same_tokens: samples.iter().all(|sample| Some(&sample.ids) == expected.as_ref()),
            });
        }
        Ok(records)
    }
}
