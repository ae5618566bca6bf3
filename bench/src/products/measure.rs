//! Rows through large matrices, each read from memory once a call.

use std::time::{Duration, Instant};

use laguna_shared::compute::cpu::{CpuMatrix, Isa, Pool};
use serde::Serialize;

use super::weights::Format;
use crate::error::BenchError;
use crate::experts::bandwidth::Probe;
use crate::stats::{median, ratio};
use crate::synth::noise::Noise;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Weight formats, in turn.
    pub formats: Vec<Format>,
    /// Rows per product.
    pub rows: Vec<usize>,
    /// Threads of the product and of the probe.
    pub threads: Vec<usize>,
    /// Instruction sets by name; the fastest if none is named.
    pub isas: Vec<String>,
    /// Input features.
    pub cols: usize,
    /// Bytes of a matrix, and of the probe.
    pub bytes: usize,
    /// Time for a line; a few calls are made whatever they take.
    pub time: Duration,
}

/// One format with one number of rows and of threads.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// Of the weights.
    pub format: Format,
    /// Instruction set.
    pub isa: &'static str,
    /// Of the product and of the probe.
    pub threads: usize,
    /// Rows per product.
    pub rows: usize,
    /// Products.
    pub calls: usize,
    /// Microseconds a product, median.
    pub p50_us: f64,
    /// Memory bandwidth between the products, 10⁹ bytes a second, median.
    pub read_gb_s: f64,
    /// Weights, scales and biases, read once a product, 10⁹ bytes a second.
    pub weight_gb_s: f64,
    /// `weight_gb_s / read_gb_s`.
    pub share: f64,
}

impl Plan {
    /// Measures every combination. `progress` is told what comes next.
    ///
    /// # Errors
    /// If this processor lacks a named instruction set, or the columns do not fit a format.
    pub fn run(&self, progress: &mut dyn FnMut(&str)) -> Result<Vec<Record>, BenchError> {
        let mut records = Vec::new();
        for &format in &self.formats {
            for isa in self.instruction_sets()? {
                progress(&format!("{format:?} on {}", isa.name()));
                let rows = (self.bytes / format.row_bytes(self.cols).max(1)).max(1);
                let matrix = format.noise((rows, self.cols), &mut Noise::new(SEED, "weights"), isa)?;
                for &threads in &self.threads {
                    let (pool, probe) = (Pool::new(threads), Probe::new(self.bytes, threads)?);
                    for &rows in &self.rows {
                        let (samples, read_gb_s) = self.measure(&matrix, &pool, &probe, rows);
                        let p50_us = median(samples.iter().map(|sample| sample.as_secs_f64() * 1e6));
                        let weight_gb_s = ratio(matrix.bytes() as f64, p50_us * 1e3);
                        records.push(Record {
                            format,
                            isa: isa.name(),
                            threads,
                            rows,
                            calls: samples.len(),
                            p50_us,
                            read_gb_s,
                            weight_gb_s,
                            share: ratio(weight_gb_s, read_gb_s),
                        });
                    }
                }
            }
        }
        Ok(records)
    }

    /// Times of products, and the bandwidth between them: neighbours disturb both alike.
    fn measure(&self, matrix: &CpuMatrix, pool: &Pool, probe: &Probe, rows: usize) -> (Vec<Duration>, f64) {
        let mut noise = Noise::new(SEED, "rows");
        let x: Vec<f32> = (0..rows * self.cols).map(|_| noise.signed()).collect();
        let mut out = vec![0.0; rows * matrix.rows()];
        matrix.matmul(pool, &x, &mut out);
        let (mut samples, mut reads, began) = (Vec::new(), Vec::new(), Instant::now());
        while samples.len() < LEAST || began.elapsed() < self.time {
            reads.push(probe.read_gb_s(1));
            for _ in 0..BETWEEN {
                let began = Instant::now();
                matrix.matmul(pool, &x, &mut out);
                samples.push(began.elapsed());
            }
        }
        (samples, median(reads))
    }

    fn instruction_sets(&self) -> Result<Vec<Isa>, BenchError> {
        if self.isas.is_empty() {
            return Ok(vec![Isa::best()]);
        }
        let named = |name: &String| {
            let isa = Isa::available().into_iter().find(|isa| isa.name() == name);
            isa.ok_or_else(|| BenchError::Usage(format!("this processor has no {name}")))
        };
        self.isas.iter().map(named).collect()
    }
}

const SEED: u64 = 4;

/// Products, at least.
const LEAST: usize = 3;

/// Products from one reading of the probe to the next.
const BETWEEN: usize = 2;
