//! One run of one set-up: the coordinator's own library, and real workers in other processes.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use clap::{Parser, ValueEnum};
use laguna_coordinator::cli::args::Args;
use laguna_coordinator::cli::cluster::{self, Cluster};
use laguna_coordinator::engine::generation::{Report, Request, generate};
use laguna_coordinator::engine::sampler::{Sampler, Sampling};
use laguna_shared::quic::Identity;
use laguna_topology::{Topology, write_pins};
use laguna_worker::bank::BankKind;
use serde::{Deserialize, Serialize};

use crate::child::{Child, Launch, Role};
use crate::error::BenchError;
use crate::machine::peak_bytes;
use crate::scratch;
use crate::synth::noise::Noise;

/// Where the experts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SetUp {
    /// One shard in the coordinator's process
    #[value(name = "loopback-1")]
    #[serde(rename = "loopback-1")]
    Loopback1,
    /// Two shards in the coordinator's process
    #[value(name = "loopback-2")]
    #[serde(rename = "loopback-2")]
    Loopback2,
    /// Two shards in the coordinator's process, over QUIC
    #[value(name = "loopback-quic-2")]
    #[serde(rename = "loopback-quic-2")]
    LoopbackQuic2,
    /// Two workers, each a process
    #[value(name = "processes-2")]
    #[serde(rename = "processes-2")]
    Processes2,
}

/// What one run is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Where the experts are.
    pub set_up: SetUp,
    /// Checkpoint folder.
    pub model: PathBuf,
    /// Arithmetic of the experts, as `--bank` takes it.
    pub bank: String,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens to make.
    pub tokens: usize,
    /// Prompt tokens per forward pass.
    pub chunk: NonZeroUsize,
}

/// What one run took.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Prompt tokens per second, the first token's choice included.
    pub prefill_tok_s: f64,
    /// Tokens per second after the first.
    pub decode_tok_s: f64,
    /// Microseconds of a sparse layer in decode, from dispatch to sum, median.
    pub us_per_layer_p50: f64,
    /// Its 99th percentile.
    pub us_per_layer_p99: f64,
    /// Most bytes resident in the coordinator's process.
    pub peak_bytes: u64,
    /// Most bytes resident in the largest worker's process; 0 where there is none.
    pub worker_peak_bytes: u64,
    /// What was generated.
    pub ids: Vec<u32>,
}

/// A worker of a topology file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerRole {
    /// Shard in the file.
    pub shard: u16,
    /// The file.
    pub topology: PathBuf,
    /// Arithmetic of the experts.
    pub bank: String,
}

/// Serves a shard until the parent is gone.
///
/// # Errors
/// What the worker says.
pub fn serve(role: &WorkerRole) -> Result<(), BenchError> {
    let args = laguna_worker::args::Args {
        shard: role.shard,
        topology: Some(role.topology.clone()),
        model: None,
        listen: None,
        bank: BankKind::from_str(&role.bank, true).map_err(BenchError::Usage)?,
        spin: None,
    };
    laguna_worker::run::run(&args).map_err(BenchError::failed)
}

/// Opens the cluster, warms it up, and generates.
///
/// # Errors
/// If any part of it fails.
pub fn run(job: &Job) -> Result<Sample, BenchError> {
    let dir = scratch("e2e")?;
    let mut workers = Workers(Vec::new());
    let args = match job.set_up {
        SetUp::Loopback1 => job.args(&["--loopback=1"]),
        SetUp::Loopback2 => job.args(&["--loopback=2"]),
        SetUp::LoopbackQuic2 => job.args(&["--loopback-quic=2"]),
        SetUp::Processes2 => {
            let topology = write_topology(dir.path(), &job.model, PROCESSES)?;
            workers = Workers::start(&topology, &job.bank)?;
            job.args(&[Path::new("--topology"), &topology])
        }
    }?;
    let activation = cluster::native_activation();
    let mut cluster = cluster::open(&args.cluster, activation, None).map_err(failure)?;
    let vocab = cluster.model.config().vocab_size;
    let mut noise = Noise::new(1, "prompt");
    let prompt: Vec<u32> = (0..job.prompt).map(|_| noise.below(vocab) as u32).collect();
    // Threads, buffers and the largest datagram are found on the way.
    generated(&mut cluster, &prompt[..prompt.len().min(WARM_UP)], WARM_UP)?;
    let (report, ids) = generated(&mut cluster, &prompt, job.tokens)?;
    let exchange = report.exchange;
    let rate = |tokens: usize, time: std::time::Duration| tokens as f64 / time.as_secs_f64().max(1e-9);
    Ok(Sample {
        prefill_tok_s: rate(report.prompt_tokens, report.prefill),
        decode_tok_s: rate(report.new_tokens.saturating_sub(1), report.decode),
        us_per_layer_p50: exchange.map_or(0.0, |exchange| f64::from(exchange.p50)),
        us_per_layer_p99: exchange.map_or(0.0, |exchange| f64::from(exchange.p99)),
        peak_bytes: peak_bytes(),
        worker_peak_bytes: workers.peak_bytes()?,
        ids,
    })
}

impl Job {
    fn args<S: AsRef<Path>>(&self, place: &[S]) -> Result<Args, BenchError> {
        let chunk = self.chunk.to_string();
        let own = ["--model", &self.model.to_string_lossy(), "--bank", &self.bank, "--chunk", &chunk];
        let own = own.map(|own| own.to_owned().into());
        let place = place.iter().map(|place| place.as_ref().as_os_str().to_owned());
        let all = std::iter::once("laguna-coord".into()).chain(place).chain(own);
        Args::try_parse_from(all).map_err(|error| BenchError::Usage(error.to_string()))
    }
}

fn generated(cluster: &mut Cluster, prompt: &[u32], tokens: usize) -> Result<(Report, Vec<u32>), BenchError> {
    let request = Request { prompt, max_tokens: tokens, chunk: cluster.chunk, stop_ids: &[] };
    let mut ids = Vec::new();
    let mut sampler = Sampler::new(Sampling::greedy(), 0, prompt);
    let report = generate(&cluster.model, &mut cluster.experts, &request, &mut sampler, |id| {
        ids.push(id);
        ControlFlow::Continue(())
    });
    Ok((report.map_err(BenchError::failed)?, ids))
}

/// Worker processes.
struct Workers(Vec<Child>);

impl Workers {
    fn start(topology: &Path, bank: &str) -> Result<Self, BenchError> {
        let start = |shard| {
            let role = WorkerRole { shard, topology: topology.to_owned(), bank: bank.to_owned() };
            Child::start(&Role::Worker(role), &Launch::default())
        };
        (0..PROCESSES).map(start).collect::<Result<_, _>>().map(Self)
    }

    fn peak_bytes(&mut self) -> Result<u64, BenchError> {
        let peaks = self.0.iter_mut().map(Child::peak_bytes).collect::<Result<Vec<_>, _>>()?;
        Ok(peaks.into_iter().max().unwrap_or_default())
    }
}

/// A topology of workers on free ports of this machine, with keys.
fn write_topology(dir: &Path, model: &Path, workers: u16) -> Result<PathBuf, BenchError> {
    let file = dir.join("topology.toml");
    let model = model.canonicalize().map_err(BenchError::io(model.display()))?;
    let mut text = format!("model = {:?}\n[coordinator]\ncontext = 4096\n", model.to_string_lossy());
    // All are held until all are known, or one would be given twice.
    let sockets = (0..workers)
        .map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)))
        .collect::<Result<Vec<_>, _>>()
        .map_err(BenchError::io("UDP socket"))?;
    for (shard, socket) in sockets.iter().enumerate() {
        let address: SocketAddr = socket.local_addr().map_err(BenchError::io("UDP socket"))?;
        text.push_str(&format!("[[worker]]\nshard = {shard}\naddress = \"{address}\"\n"));
    }
    fs::write(&file, &text).map_err(BenchError::io(file.display()))?;
    let topology = Topology::load(&file).map_err(BenchError::failed)?;
    fs::create_dir_all(&topology.keys).map_err(BenchError::io(topology.keys.display()))?;
    let pin = |node| Identity::create(&topology.key_file(node)).map(|identity| (node, identity.pin()));
    let pins: Vec<_> = topology.nodes().map(pin).collect::<Result<_, _>>().map_err(BenchError::failed)?;
    let pinned = write_pins(&text, &pins).map_err(BenchError::failed)?;
    fs::write(&file, pinned).map_err(BenchError::io(file.display()))?;
    Ok(file)
}

fn failure(failure: laguna_coordinator::cli::failure::Failure) -> BenchError {
    BenchError::Failed(failure.to_string())
}

const PROCESSES: u16 = 2;

/// Tokens of prompt, and made, before anything is measured.
const WARM_UP: usize = 8;
