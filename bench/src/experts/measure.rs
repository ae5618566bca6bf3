//! Rows through banks. In each call all rows go to the same ten experts, other ones each time, so that as many rows
//! are in play per expert, and as many bytes of weights have to be read whatever the number of rows.

use std::fs::File;
use std::io::Read as _;
use std::num::NonZeroUsize;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use half::bf16;
use laguna_shared::compute::{ActivationType, ExpertBank, ExpertBatch};
use laguna_shared::config::ConfigOptions;
use laguna_shared::ids::{ExpertId, ExpertRange, LayerId};
use laguna_worker::bank::pool;
use laguna_worker::model::OpenModel;
use serde::Serialize;

use super::bandwidth::Probe;
use super::oracle;
use super::variant::Variant;
use crate::error::BenchError;
use crate::stats::{Spread, median, ratio};
use crate::synth::noise::Noise;
use crate::synth::{Layout, Shape, write};
use crate::{nano, scratch};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Banks, in turn.
    pub banks: Vec<Variant>,
    /// Rows per call.
    pub rows: Vec<usize>,
    /// Experts in the stack.
    pub experts: usize,
    /// Inner width and hidden size are divided by this; 1 for S 2.1's own.
    pub shrink: usize,
    /// Threads of the `cpu` bank and of the bandwidth probe; one for each core if not said.
    pub threads: Option<NonZeroUsize>,
    /// Bytes that the bandwidth probe reads.
    pub probe_bytes: usize,
    /// Time for a bank and a number of rows; at least three calls are made, and at most a hundred.
    pub time: Duration,
}

/// One bank with one number of rows.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// Rows per call, all to the same experts.
    pub rows: usize,
    /// What was measured.
    pub bank: String,
    /// What it says it runs on.
    pub backend: String,
    /// Calls.
    pub calls: usize,
    /// Microseconds a call.
    pub p50_us: f64,
    /// Memory bandwidth measured around these calls, 10⁹ bytes a second.
    pub read_gb_s: f64,
    /// Packed weights of the experts in use, read once a call, 10⁹ bytes a second.
    pub expert_gb_s: f64,
    /// `expert_gb_s / read_gb_s`.
    pub share: f64,
    /// Multiplications and additions, 10⁹ a second.
    pub gflop_s: f64,
    /// Time of the `mlx` bank in this run (f32 products) over the time of this one; 0 if it did not run.
    pub mlx_ratio: f64,
    /// The same of MLX with bf16 products.
    pub mlx_bf16_ratio: f64,
    /// Time to load the bank over the time to read its files once, both out of the page cache.
    pub load_ratio: f64,
    /// Error against f64, relative, of the first rows of a call.
    pub rms: f64,
}

impl Plan {
    /// Makes the experts and measures every bank. `progress` is told what comes next.
    ///
    /// # Errors
    /// If files, banks or the oracle fail.
    pub fn run(&self, progress: &mut dyn FnMut(&str)) -> Result<Vec<Record>, BenchError> {
        let full = Shape::experts_only(self.experts);
        let shape = Shape {
            hidden: full.hidden / self.shrink,
            expert_width: full.expert_width / self.shrink,
            top_k: full.top_k.min(self.experts),
            ..full
        };
        let dir = scratch("experts")?;
        progress(&format!("writing {} experts of {} MB", shape.experts, shape.expert_bytes() as f64 / 1e6));
        write(dir.path(), &shape, Layout::Compressed, SEED, &nano(), &mut |_| {})?;
        let model = OpenModel::open(dir.path(), &ConfigOptions::default()).map_err(BenchError::failed)?;
        let threads = self.threads.or_else(|| available_parallelism().ok());
        let probe = Probe::new(self.probe_bytes, threads.map_or(1, usize::from))?;

        let pool = pool(self.threads);
        let mut records = Vec::new();
        for &kind in &self.banks {
            let name = kind.name();
            progress(&format!("loading {name}"));
            let range = ExpertRange::new(0, shape.experts as u16);
            let read = time_to_read(&model)?;
            let began = Instant::now();
            let mut bank = kind.load(&model, range, &pool)?;
            let load_ratio = ratio(began.elapsed().as_secs_f64(), read.as_secs_f64());
            for &rows in self.rows.iter().filter(|rows| kind.measures(**rows)) {
                progress(&format!("{name}, {rows} rows"));
                let record = self.measure(bank.as_mut(), &model, &shape, rows, &probe)?;
                records.push(Record { bank: name.clone(), load_ratio, ..record });
            }
        }
        for at in 0..records.len() {
            let Record { rows, p50_us, .. } = records[at];
            let times = |bank: Variant| {
                let other = records.iter().find(|other| other.bank == bank.name() && other.rows == rows);
                other.map_or(0.0, |other| ratio(other.p50_us, p50_us))
            };
            let ratios = (times(Variant::Mlx), times(Variant::MlxBf16));
            (records[at].mlx_ratio, records[at].mlx_bf16_ratio) = ratios;
        }
        Ok(records)
    }

    fn measure(
        &self,
        bank: &mut dyn ExpertBank,
        model: &OpenModel,
        shape: &Shape,
        rows: usize,
        probe: &Probe,
    ) -> Result<Record, BenchError> {
        let mut noise = Noise::new(SEED, "rows");
        let mut out = Vec::new();
        let first = Call::new(&mut noise, shape, rows);
        bank.run(&first.batch(), &mut out).map_err(BenchError::failed)?;
        let rms = first.rms(model, &out)?;

        let before = probe.read_gb_s(PROBE_ROUNDS);
        let (mut samples, began) = (Vec::new(), Instant::now());
        while samples.len() < LEAST || samples.len() < MOST && began.elapsed() < self.time {
            let call = Call::new(&mut noise, shape, rows);
            let began = Instant::now();
            bank.run(&call.batch(), &mut out).map_err(BenchError::failed)?;
            samples.push(began.elapsed());
        }
        let read_gb_s = median([before, probe.read_gb_s(PROBE_ROUNDS)]);
        let p50_us = Spread::of(&samples).p50;
        let expert_gb_s = ratio((shape.top_k * shape.expert_bytes()) as f64, p50_us * 1e3);
        let flops = (2 * 3 * shape.hidden * shape.expert_width * shape.top_k * rows) as f64;
        Ok(Record {
            rows,
            bank: String::new(),
            backend: bank.backend().to_owned(),
            calls: samples.len(),
            p50_us,
            read_gb_s,
            expert_gb_s,
            share: ratio(expert_gb_s, read_gb_s),
            gflop_s: ratio(flops, p50_us * 1e3),
            mlx_ratio: 0.0,
            mlx_bf16_ratio: 0.0,
            load_ratio: 0.0,
            rms,
        })
    }
}

/// Reads every weight file once.
fn time_to_read(model: &OpenModel) -> Result<Duration, BenchError> {
    let mut buffer = vec![0; READ];
    let began = Instant::now();
    for path in model.checkpoint.files() {
        let mut file = File::open(path).map_err(BenchError::io(path.display()))?;
        while file.read(&mut buffer).map_err(BenchError::io(path.display()))? > 0 {}
    }
    Ok(began.elapsed())
}

/// Rows that all go to the same experts.
struct Call {
    hidden: usize,
    top_k: usize,
    counts: Vec<u16>,
    experts: Vec<ExpertId>,
    weights: Vec<f32>,
    rows: Vec<u8>,
}

impl Call {
    fn new(noise: &mut Noise, shape: &Shape, rows: usize) -> Self {
        let chosen = noise.choose(shape.top_k, shape.experts);
        let weights: Vec<f32> = chosen.iter().map(|_| 0.6 + 0.4 * noise.signed()).collect();
        let value = |_| bf16::from_f32(2.0 * noise.signed()).to_le_bytes();
        Self {
            hidden: shape.hidden,
            top_k: shape.top_k,
            counts: vec![shape.top_k as u16; rows],
            experts: (0..rows).flat_map(|_| chosen.iter().map(|n| ExpertId(*n as u16))).collect(),
            weights: weights.repeat(rows),
            rows: (0..rows * shape.hidden).flat_map(value).collect(),
        }
    }

    fn batch(&self) -> ExpertBatch<'_> {
        ExpertBatch {
            layer: LAYER,
            activation: ActivationType::Bf16,
            hidden: self.hidden,
            counts: &self.counts,
            experts: &self.experts,
            weights: &self.weights,
            rows: &self.rows,
        }
    }

    /// Error of the first rows of `out`: the exact ones of all would take longer than the measurement.
    fn rms(&self, model: &OpenModel, out: &[f32]) -> Result<f64, BenchError> {
        let sparse = model.inventory.sparse(LAYER);
        let sparse =
            sparse.ok_or_else(|| BenchError::Failed("the synthetic layer is not sparse".to_owned()))?;
        let experts = self.experts[..self.top_k].iter().map(|expert| &sparse.experts[usize::from(expert.0)]);
        let experts: Vec<_> = experts.zip(self.weights.iter().copied()).collect();
        let checked = self.counts.len().min(CHECKED);
        let rows = &self.rows[..checked * self.hidden * ActivationType::Bf16.size()];
        let exact = oracle::sums(&model.checkpoint, &experts, rows)?;
        Ok(oracle::relative_rms(&out[..checked * self.hidden], &exact))
    }
}

/// The only layer.
const LAYER: LayerId = LayerId(0);

const SEED: u64 = 21;

/// Rows of a call whose error is measured.
const CHECKED: usize = 2;

/// Calls of a bank with a number of rows.
const LEAST: usize = 3;
const MOST: usize = 100;

/// Readings of the whole buffer before and after.
const PROBE_ROUNDS: usize = 3;

/// Bytes of a read call.
const READ: usize = 16 << 20;
