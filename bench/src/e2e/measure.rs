//! Set-ups in turn, each run in a fresh process, and medians over the runs.

use laguna_tests::relay::Preset;
use serde::Serialize;

use super::model::Model;
use super::place::{Reach, SetUp};
use super::setup::{Job, Sample};
use crate::child::{Child, Launch, Role};
use crate::error::BenchError;
use crate::link::measure::round_trips;
use crate::stats::{median, ratio};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where the experts are, case by case.
    pub set_ups: Vec<SetUp>,
    /// Links that each set-up with worker processes is measured with too.
    pub links: Vec<Preset>,
    /// What each run does; its own set-up and link do not count.
    pub job: Job,
    /// Runs of each set-up.
    pub repeats: usize,
}

/// One set-up, medians over its runs.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// Where the experts are.
    pub set_up: SetUp,
    /// The link to them; none on this machine as it is.
    pub link: Option<String>,
    /// Arithmetic of the experts.
    pub bank: String,
    /// Bits of a trunk weight.
    pub trunk_bits: String,
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
    /// Of these, the slowest shard's arithmetic: the mean.
    pub bank_us: f64,
    /// With a link: what it was expected to cost.
    pub model: Option<Model>,
    /// With a link: tokens per second after the first, as predicted.
    pub predicted_tok_s: Option<f64>,
    /// `decode_tok_s` over `predicted_tok_s`.
    pub of_predicted: Option<f64>,
    /// Most bytes resident in the coordinator's process.
    pub peak_bytes: u64,
    /// Most bytes resident in the largest worker's process.
    pub worker_peak_bytes: u64,
    /// Whether every run made the tokens that the first run of all made.
    pub same_tokens: bool,
}

/// One job's runs.
#[derive(Clone, Debug)]
pub struct Case {
    /// What each run did.
    pub job: Job,
    /// What each took.
    pub samples: Vec<Sample>,
}

impl Plan {
    /// Measures every set-up. `progress` is told what comes next.
    ///
    /// # Errors
    /// If links are asked for and no set-up has any, or if a process fails.
    pub fn run(&self, progress: &mut dyn FnMut(&str)) -> Result<Vec<Record>, BenchError> {
        if !self.links.is_empty() && !self.set_ups.iter().any(|set_up| set_up.reach == Reach::Processes) {
            return Err(BenchError::Usage("a link needs a set-up of processes, as processes-2".to_owned()));
        }
        let mut jobs = Vec::new();
        for &set_up in &self.set_ups {
            let job = Job { set_up, link: None, ..self.job.clone() };
            let links = if set_up.reach == Reach::Processes { &self.links[..] } else { &[] };
            jobs.push(job.clone());
            jobs.extend(links.iter().map(|link| Job { link: Some(link.name().to_owned()), ..job.clone() }));
        }
        let cases = cases(jobs, self.repeats, progress)?;
        let expected = cases.iter().flat_map(|case| &case.samples).next().map(|sample| sample.ids.clone());
        let mut records: Vec<Record> = Vec::new();
        for case in &cases {
            let first = records.first().map(|first| first.decode_tok_s);
            let mut record = self.record(case, first, expected.as_deref());
            if let Some(preset) = self.links.iter().find(|link| Some(link.name()) == record.link.as_deref()) {
                let near = |other: &&Case| other.job.set_up == case.job.set_up && other.job.link.is_none();
                if let Some(near) = cases.iter().find(near) {
                    progress(&format!("round trips of {}", preset.name()));
                    let model = near.model(round_trips(*preset, near.hidden(), ROUND_TRIPS)?);
                    let predicted = 1e6 * self.job.sequences as f64 / model.step_us();
                    record.model = Some(model);
                    record.predicted_tok_s = Some(predicted);
                    record.of_predicted = Some(ratio(record.decode_tok_s, predicted));
                }
            }
            records.push(record);
        }
        Ok(records)
    }

    fn record(&self, case: &Case, first: Option<f64>, expected: Option<&[u32]>) -> Record {
        let decode_tok_s = case.median(|s| s.decode_tok_s);
        Record {
            set_up: case.job.set_up,
            link: case.job.link.clone(),
            bank: case.job.bank.clone(),
            trunk_bits: case.job.trunk_bits.clone(),
            prompt: case.job.prompt,
            tokens: case.job.tokens,
            repeats: self.repeats,
            prefill_tok_s: case.median(|s| s.prefill_tok_s),
            decode_tok_s,
            decode_ratio: ratio(decode_tok_s, first.unwrap_or(decode_tok_s)),
            us_per_layer: case.median(|s| s.us_per_layer_p50),
            us_per_layer_p99: case.median(|s| s.us_per_layer_p99),
            bank_us: case.median(|s| s.bank_us),
            model: None,
            predicted_tok_s: None,
            of_predicted: None,
            peak_bytes: case.most(|s| s.peak_bytes),
            worker_peak_bytes: case.most(|s| s.worker_peak_bytes),
            same_tokens: case.samples.iter().all(|sample| Some(&sample.ids[..]) == expected),
        }
    }
}

/// Runs every job `repeats` times, taken in turn.
///
/// # Errors
/// If a process fails.
pub fn cases(
    jobs: Vec<Job>,
    repeats: usize,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Case>, BenchError> {
    let mut cases: Vec<Case> = jobs.into_iter().map(|job| Case { job, samples: Vec::new() }).collect();
    for repeat in 1..=repeats {
        for case in &mut cases {
            let link = case.job.link.as_deref().map(|link| format!(" over {link}")).unwrap_or_default();
            progress(&format!("{}{link}, run {repeat} of {repeats}", case.job.set_up));
            let mut child = Child::start(&Role::Run(case.job.clone()), &Launch::default())?;
            case.samples.push(child.hear()?);
        }
    }
    Ok(cases)
}

impl Case {
    /// Median over the runs.
    pub fn median(&self, pick: fn(&Sample) -> f64) -> f64 {
        median(self.samples.iter().map(pick))
    }

    /// The largest of the runs.
    pub fn most(&self, pick: fn(&Sample) -> u64) -> u64 {
        self.samples.iter().map(pick).max().unwrap_or_default()
    }

    fn hidden(&self) -> usize {
        self.samples.first().map_or(0, |sample| sample.hidden)
    }

    /// What a link with these round trips should cost.
    fn model(&self, round_trips: [f64; 2]) -> Model {
        let layers = self.samples.first().map_or(0, |sample| sample.sparse_layers);
        let exchange = self.median(|s| s.us_per_layer_p50);
        Model::new(self.median(|s| s.step_us), layers, exchange, self.median(|s| s.bank_us), round_trips)
    }
}

/// Plain round trips through a link, for the model.
const ROUND_TRIPS: usize = 500;
