//! Cases, and the variants of each taken in turn, so that what disturbs one disturbs its neighbours too.

use std::hint::black_box;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::Serialize;

use super::memory::Memory;
use super::payload::Payload;
use super::quic::Quic;
use super::quinn::Quinn;
use super::tcp::Tcp;
use super::tls::Tls;
use super::udp::Udp;
use super::{Exchange, Wait};
use crate::child::Launch;
use crate::error::BenchError;
use crate::report::name;
use crate::stats::{Spread, median, ratio};

/// What happens between two calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cadence {
    /// Nothing
    BackToBack,
    /// One millisecond of arithmetic, as decode has it between two sparse layers
    Compute,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Payloads, each with every cadence.
    pub payloads: Vec<Payload>,
    /// Cadences.
    pub cadences: Vec<Cadence>,
    /// Numbers of workers; payloads larger than a decode step go to one worker only.
    pub workers: Vec<usize>,
    /// Runs of each variant.
    pub repeats: usize,
    /// Calls per run are divided by this.
    pub divide: usize,
    /// How the other processes are started.
    pub launch: Launch,
}

/// One case, medians of the runs' percentiles, in microseconds. TCP, TLS and quinn's driver are blocking; raw UDP and the project's links
/// are measured blocking, and spinning where every process has a processor of its own.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// What went out and came back.
    pub payload: Payload,
    /// What happened between two calls.
    pub cadence: Cadence,
    /// Workers asked at once.
    pub workers: usize,
    /// Bytes to each worker.
    pub request_bytes: usize,
    /// Bytes from each worker.
    pub reply_bytes: usize,
    /// Runs of each variant.
    pub repeats: usize,
    /// Calls in each run.
    pub calls: usize,
    /// Raw UDP.
    pub udp_p50_us: f64,
    /// Raw UDP.
    pub udp_p99_us: f64,
    /// TCP.
    pub tcp_p50_us: f64,
    /// TLS on TCP.
    pub tls_p50_us: f64,
    /// QUIC as quinn drives it, blocking.
    pub quinn_p50_us: f64,
    /// The project's links.
    pub quic_p50_us: f64,
    /// The project's links.
    pub quic_p99_us: f64,
    /// What of it the echo took, as its worker measured.
    pub quic_bank_p50_us: f64,
    /// The same session without a transport.
    pub in_memory_p50_us: f64,
    /// `quic_p50_us / udp_p50_us`.
    pub ratio_p50: f64,
    /// `quic_p50_us / tls_p50_us`.
    pub ratio_tls_p50: f64,
    /// `quic_p99_us / quic_p50_us`.
    pub ratio_tail: f64,
    /// Both ends spinning; `None` where processes outnumber processors.
    pub spin: Option<Spinning>,
    /// Allocations of a call in the coordinator's process.
    pub allocations_per_call: f64,
    /// Allocations of a call in a worker's process.
    pub worker_allocations_per_call: f64,
}

/// A case with both ends spinning.
#[derive(Clone, Debug, Serialize)]
pub struct Spinning {
    /// Raw UDP.
    pub udp_p50_us: f64,
    /// Raw UDP.
    pub udp_p99_us: f64,
    /// The project's links.
    pub quic_p50_us: f64,
    /// The project's links.
    pub quic_p99_us: f64,
    /// `quic_p50_us` by the p50 of *blocking* raw UDP.
    pub ratio_p50: f64,
    /// `quic_p50_us / udp_p50_us`, both spinning.
    pub ratio_spin_p50: f64,
    /// `quic_p99_us / quic_p50_us`.
    pub ratio_tail: f64,
}

impl Plan {
    /// Measures every case. `progress` is told what comes next.
    ///
    /// # Errors
    /// If a process or a call fails.
    pub fn run(&self, progress: &mut dyn FnMut(&str)) -> Result<Vec<Record>, BenchError> {
        let mut records = Vec::new();
        for &payload in &self.payloads {
            for &workers in &self.workers {
                if payload != Payload::Decode && workers > 1 {
                    continue;
                }
                let mut variants = Variants::start(payload, workers, &self.launch)?;
                for &cadence in &self.cadences {
                    progress(&format!("{}, {}, workers: {workers}", name(&payload), name(&cadence)));
                    records.push(self.measure(&mut variants, payload, cadence, workers)?);
                }
            }
        }
        Ok(records)
    }

    fn measure(
        &self,
        variants: &mut Variants,
        payload: Payload,
        cadence: Cadence,
        workers: usize,
    ) -> Result<Record, BenchError> {
        let calls = match cadence {
            Cadence::BackToBack => payload.calls(),
            // As many samples in the tail as the time allows.
            Cadence::Compute => payload.calls().min(400),
        };
        let calls = (calls / self.divide).max(2);
        let mut work = Work::default();
        let mut runs: Vec<Vec<Spread>> = variants.all().iter().map(|_| Vec::new()).collect();
        let mut bank = Vec::new();
        for _ in 0..self.repeats {
            for (variant, runs) in variants.all().into_iter().zip(&mut runs) {
                (0..calls / WARM_UP + 1).try_for_each(|_| variant.call())?;
                let mut samples = Vec::with_capacity(calls);
                for _ in 0..calls {
                    if cadence == Cadence::Compute {
                        work.run(GAP);
                    }
                    let began = Instant::now();
                    variant.call()?;
                    samples.push(began.elapsed());
                }
                runs.push(Spread::of(&samples));
            }
            bank.push(Spread::of(&variants.quic.take_compute()).p50);
        }
        let spreads: Vec<Spread> = runs.iter().map(|runs| Spread::of_runs(runs)).collect();
        let [udp, tcp, tls, quinn, quic, memory, spins @ ..] = spreads.as_slice() else {
            return Err(BenchError::Failed("a variant is missing".to_owned()));
        };
        let allocations = variants.quic.allocations(calls)?;
        let spin = match spins {
            [udp_spin, quic_spin] => Some(Spinning {
                udp_p50_us: udp_spin.p50,
                udp_p99_us: udp_spin.p99,
                quic_p50_us: quic_spin.p50,
                quic_p99_us: quic_spin.p99,
                ratio_p50: ratio(quic_spin.p50, udp.p50),
                ratio_spin_p50: ratio(quic_spin.p50, udp_spin.p50),
                ratio_tail: ratio(quic_spin.p99, quic_spin.p50),
            }),
            _ => None,
        };
        let sizes = payload.sizes(workers)?;
        Ok(Record {
            payload,
            cadence,
            workers,
            request_bytes: sizes.request,
            reply_bytes: sizes.reply,
            repeats: self.repeats,
            calls,
            udp_p50_us: udp.p50,
            udp_p99_us: udp.p99,
            tcp_p50_us: tcp.p50,
            tls_p50_us: tls.p50,
            quinn_p50_us: quinn.p50,
            quic_p50_us: quic.p50,
            quic_p99_us: quic.p99,
            quic_bank_p50_us: median(bank),
            in_memory_p50_us: memory.p50,
            ratio_p50: ratio(quic.p50, udp.p50),
            ratio_tls_p50: ratio(quic.p50, tls.p50),
            ratio_tail: ratio(quic.p99, quic.p50),
            spin,
            allocations_per_call: allocations.here,
            worker_allocations_per_call: allocations.there,
        })
    }
}

/// Every variant of a case, its children running.
struct Variants {
    udp: Udp,
    tcp: Tcp,
    tls: Tls,
    quinn: Quinn,
    quic: Quic,
    memory: Memory,
    spinning: Option<(Udp, Quic)>,
}

impl Variants {
    fn start(payload: Payload, workers: usize, launch: &Launch) -> Result<Self, BenchError> {
        let sizes = payload.sizes(workers)?;
        let pair = |wait| {
            Ok((Udp::start(sizes, wait, workers, launch)?, Quic::start(payload, wait, workers, launch)?))
        };
        let (udp, quic) = pair(Wait::Block)?;
        // Two that spin on one processor would wait for each other.
        let spinning = (workers <= launch.processors()).then(|| pair(Wait::Spin)).transpose()?;
        let mut variants = Self {
            udp,
            tcp: Tcp::start(sizes, workers, launch)?,
            tls: Tls::start(sizes, workers, launch)?,
            quinn: Quinn::start(sizes, workers, launch)?,
            quic,
            memory: Memory::start(payload, workers)?,
            spinning,
        };
        // Handshakes, and the search for the largest datagram, are not the exchange.
        for _ in 0..payload.calls().min(SETTLE) {
            variants.all().into_iter().try_for_each(|variant| variant.call())?;
        }
        variants.quic.take_compute();
        Ok(variants)
    }

    /// In the order in which they take turns.
    fn all(&mut self) -> Vec<&mut dyn Exchange> {
        let Self { udp, tcp, tls, quinn, quic, memory, spinning } = self;
        let mut all: Vec<&mut dyn Exchange> = vec![udp, tcp, tls, quinn, quic, memory];
        if let Some((udp, quic)) = spinning {
            all.extend([udp as &mut dyn Exchange, quic]);
        }
        all
    }
}

/// Arithmetic over a few hundred KiB, as a trunk would do it: it warms the core and cools the caches.
struct Work(Vec<f32>);

impl Default for Work {
    fn default() -> Self {
        Self(vec![1.0; 64 * 1024])
    }
}

impl Work {
    fn run(&mut self, time: Duration) {
        let began = Instant::now();
        while began.elapsed() < time {
            for value in &mut self.0 {
                *value = *value * 0.999 + 0.001;
            }
            black_box(&self.0);
        }
    }
}

/// Time between two sparse layers.
const GAP: Duration = Duration::from_millis(1);

/// One call of so many is made before a run begins, and not counted.
const WARM_UP: usize = 20;

/// Most calls of each variant before anything is measured.
const SETTLE: usize = 200;
