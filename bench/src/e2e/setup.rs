//! One run of one set-up: the coordinator's own library, and real workers in other processes.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use clap::Parser;
use laguna_coordinator::cli::args::Args;
use laguna_coordinator::cli::cluster::{self, Cluster};
use laguna_coordinator::cli::loading::unwatched;
use laguna_coordinator::engine::prefill::prefill;
use laguna_coordinator::engine::sampler::argmax;
use laguna_coordinator::experts::timing::ExchangeSummary;
use laguna_coordinator::flight::{Flight, Stage};
use laguna_coordinator::model::cache::SequenceCache;
use laguna_coordinator::model::{ForwardError, Segment};
use laguna_shared::compute::mlx::array::append_f32;
use laguna_tests::relay::Preset;
use serde::{Deserialize, Serialize};

use super::place::{Reach, SetUp, Workers};
use crate::error::BenchError;
use crate::machine::peak_bytes;
use crate::scratch;
use crate::synth::noise::Noise;

/// What one run is to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Where the experts are.
    pub set_up: SetUp,
    /// Name of the link to each worker; none for 127.0.0.1 as it is.
    pub link: Option<String>,
    /// Checkpoint folder.
    pub model: PathBuf,
    /// Arithmetic of the experts, as `--bank` takes it.
    pub bank: String,
    /// Bits of a trunk weight, as `--trunk-bits` takes it.
    pub trunk_bits: String,
    /// Sequences at once, at least one: as many rows in every decode step.
    pub sequences: usize,
    /// Tokens of each prompt.
    pub prompt: usize,
    /// Tokens to make for each.
    pub tokens: usize,
    /// Prompt tokens a micro-batch.
    pub chunk: NonZeroUsize,
    /// Whether decode steps are recorded, stage by stage.
    #[serde(default)]
    pub recorder: bool,
}

/// What one run took.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Prompt tokens per second over all sequences, their first tokens' choice included.
    pub prefill_tok_s: f64,
    /// Tokens per second after the first, over all sequences.
    pub decode_tok_s: f64,
    /// Microseconds of one decode step, the mean.
    pub step_us: f64,
    /// Microseconds of a sparse layer in decode, from dispatch to sum, median.
    pub us_per_layer_p50: f64,
    /// Its 99th percentile.
    pub us_per_layer_p99: f64,
    /// Microseconds that the slowest shard's bank took for a call, by its own clock: the mean.
    pub bank_us: f64,
    /// Layers.
    pub layers: usize,
    /// Sparse layers among them.
    pub sparse_layers: usize,
    /// Stages recorded of a decode step, the mean; 0 without the recorder, as is the next.
    pub stages: f64,
    /// Shards' calls recorded of a decode step, the mean.
    pub calls: f64,
    /// Elements per row.
    pub hidden: usize,
    /// Most bytes resident in the coordinator's process.
    pub peak_bytes: u64,
    /// Most bytes resident in the largest worker's process; 0 where there is none.
    pub worker_peak_bytes: u64,
    /// What was generated, one sequence after the other.
    pub ids: Vec<u32>,
}

/// Opens the cluster, warms it up, and generates.
///
/// # Errors
/// If any part of it fails.
pub fn run(job: &Job) -> Result<Sample, BenchError> {
    let dir = scratch("e2e")?;
    let link = job.link.as_deref().map(Preset::from_str).transpose().map_err(BenchError::Usage)?;
    let mut workers = Workers::none();
    let shards = job.set_up.shards;
    let args = match job.set_up.reach {
        Reach::Loopback => job.args(&[format!("--loopback={shards}")]),
        Reach::LoopbackQuic => job.args(&[format!("--loopback-quic={shards}")]),
        Reach::Processes => {
            workers = Workers::start(dir.path(), &job.model, shards, &job.bank, link)?;
            let topology = workers.topology.clone().unwrap_or_default();
            job.args(&[Path::new("--topology"), &topology])
        }
    }?;
    let activation = cluster::native_activation();
    let mut cluster = cluster::open(&args.cluster, activation, None, &unwatched).map_err(failure)?;
    let vocab = cluster.model.config().vocab_size;
    let prompts: Vec<Vec<u32>> = (0..job.sequences.max(1))
        .map(|n| {
            let mut noise = Noise::new(1 + n as u64, "prompt");
            (0..job.prompt).map(|_| noise.below(vocab) as u32).collect()
        })
        .collect();
    // Threads, buffers and the largest datagram are found on the way.
    let short: Vec<_> = prompts.iter().map(|prompt| prompt[..prompt.len().min(WARM_UP)].to_vec()).collect();
    generated(&mut cluster, &short, WARM_UP, false)?;
    let took = generated(&mut cluster, &prompts, job.tokens, job.recorder)?;
    let rate = |tokens: usize, time: Duration| tokens as f64 / time.as_secs_f64().max(1e-9);
    let steps = job.tokens.saturating_sub(1);
    let config = cluster.model.config();
    Ok(Sample {
        prefill_tok_s: rate(prompts.len() * job.prompt, took.prefill),
        decode_tok_s: rate(prompts.len() * steps, took.decode),
        step_us: took.decode.as_secs_f64() * 1e6 / steps.max(1) as f64,
        us_per_layer_p50: took.exchange.map_or(0.0, |exchange| f64::from(exchange.p50)),
        us_per_layer_p99: took.exchange.map_or(0.0, |exchange| f64::from(exchange.p99)),
        bank_us: took.bank_us,
        layers: config.layers.len(),
        sparse_layers: config.sparse_layers().count(),
        stages: took.stages as f64 / steps.max(1) as f64,
        calls: took.calls as f64 / steps.max(1) as f64,
        hidden: config.hidden_size,
        peak_bytes: peak_bytes(),
        worker_peak_bytes: workers.peak_bytes()?,
        ids: took.ids.concat(),
    })
}

impl Job {
    fn args<S: AsRef<std::ffi::OsStr>>(&self, place: &[S]) -> Result<Args, BenchError> {
        let chunk = self.chunk.to_string();
        let model = self.model.to_string_lossy();
        let own =
            ["--model", &model, "--bank", &self.bank, "--chunk", &chunk, "--trunk-bits", &self.trunk_bits];
        let own = own.map(|own| own.to_owned().into());
        let place = place.iter().map(|place| place.as_ref().to_owned());
        let all = std::iter::once("laguna-coord".into()).chain(place).chain(own);
        Args::try_parse_from(all).map_err(|error| BenchError::Usage(error.to_string()))
    }
}

/// What generating took.
struct Took {
    prefill: Duration,
    decode: Duration,
    exchange: Option<ExchangeSummary>,
    bank_us: f64,
    stages: usize,
    calls: usize,
    ids: Vec<Vec<u32>>,
}

/// Prompts one after the other, then greedy steps of all sequences together, recorded or not.
fn generated(
    cluster: &mut Cluster,
    prompts: &[Vec<u32>],
    tokens: usize,
    recorder: bool,
) -> Result<Took, BenchError> {
    let Cluster { model, experts, chunk, .. } = cluster;
    let mut caches: Vec<SequenceCache> = prompts.iter().map(|_| model.new_cache()).collect();
    let mut ids: Vec<Vec<u32>> = vec![Vec::new(); prompts.len()];
    let mut logits = Vec::new();
    let mlx = |error| BenchError::failed(ForwardError::Mlx(error));

    let started = Instant::now();
    for ((prompt, cache), ids) in prompts.iter().zip(&mut caches).zip(&mut ids) {
        let mut last = None;
        prefill(model, experts, cache, prompt, *chunk, None, |rows| {
            last = Some(rows);
            Ok(())
        })
        .map_err(BenchError::failed)?;
        let last = last.ok_or_else(|| BenchError::failed(ForwardError::EmptySegment))?;
        logits.clear();
        append_f32(&model.last_logits(&last).map_err(mlx)?, &mut logits).map_err(mlx)?;
        ids.push(argmax(&logits));
    }
    experts.flight = if recorder { Flight::on() } else { Flight::default() };
    let prefilled = Instant::now();
    // A prompt's exchanges carry many rows.
    experts.take_times();
    experts.shard_status();
    for _ in 1..tokens {
        let mut segments: Vec<Segment<'_>> = ids
            .iter()
            .zip(&mut caches)
            .map(|(ids, cache)| Segment { ids: &ids[ids.len() - 1..], cache })
            .collect();
        let rows = model.forward(&mut segments, experts, None).map_err(BenchError::failed)?;
        logits.clear();
        append_f32(&model.logits(&rows).map_err(mlx)?, &mut logits).map_err(mlx)?;
        for (ids, logits) in ids.iter_mut().zip(logits.chunks_exact(model.config().vocab_size)) {
            ids.push(argmax(logits));
        }
    }
    let decode = prefilled.elapsed();
    // A shard's call has several spans, one of them for all of it.
    let calls = experts.flight.spans().filter(|span| span.stage == Stage::RoundTrip).count();
    let stages = experts.flight.spans().filter(|span| span.shard.is_none()).count();
    let banks = experts.shard_status().into_iter().filter_map(|shard| shard.compute_us);
    let bank_us = banks.fold(0.0, f32::max);
    Ok(Took {
        prefill: prefilled - started,
        decode,
        exchange: experts.take_times(),
        bank_us: f64::from(bank_us),
        stages,
        calls,
        ids,
    })
}

fn failure(failure: laguna_coordinator::cli::failure::Failure) -> BenchError {
    BenchError::Failed(failure.to_string())
}

/// Tokens of prompt, and made, before anything is measured.
const WARM_UP: usize = 8;
