//! The command line: flags, as plain data, to plans; plans to results.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use laguna_tests::relay;
use laguna_worker::bank::BankKind;

use crate::child::{Launch, Role};
use crate::e2e::place::SetUp;
use crate::e2e::setup::Job;
use crate::error::BenchError;
use crate::exchange::measure::Cadence;
use crate::exchange::payload::Payload;
use crate::experts::variant::Variant;
use crate::link::flags::LinkArgs;
use crate::load::flags::LoadArgs;
use crate::machine::Machine;
use crate::products::flags::ProductsArgs;
use crate::report::{self, progress};
use crate::scale::flags::ScaleArgs;
use crate::synth::{self, Layout, Preset, Shape};
use crate::{e2e, exchange, experts, nano, recorder, scratch};

/// Measures the exchange, the experts and whole models, each beside a baseline of the same run.
///
/// Times of two runs do not compare; ratios within one do. Build with --release.
#[derive(Debug, Parser)]
#[command(name = "laguna-bench", version, max_term_width = 110)]
struct Cli {
    /// Results as JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The exchange of a sparse layer, beside raw UDP, TCP and TLS between the same two processes
    Exchange(ExchangeArgs),
    /// Banks of S-shaped NVFP4 experts, beside the speed of memory and an f64 oracle
    Experts(ExpertsArgs),
    /// The trunk's products on the CPU in each weight format, beside the speed of memory
    Products(ProductsArgs),
    /// Prompt and decode speed, time of a sparse layer, and memory, by where the experts are
    E2e(E2eArgs),
    /// Decode and prefill along one axis at a time: shards, rows, prompt, experts, link
    Scale(ScaleArgs),
    /// What the flight recorder costs a decode step while it is off, and while it is on
    Recorder(RecorderArgs),
    /// Time and memory from the start of a process until it serves, beside reading the same bytes
    Load(LoadArgs),
    /// The simulated links: how far what they do is from what they say
    Link(LinkArgs),
    /// Writes a synthetic checkpoint
    Synth(SynthArgs),
    /// The other process of a measurement
    #[command(hide = true)]
    Child { role: String },
}

#[derive(Debug, Args)]
struct ExchangeArgs {
    /// What goes out and comes back
    #[arg(long, value_delimiter = ',', default_value = "decode,3mib,prefill")]
    payloads: Vec<Payload>,
    /// What happens between two calls
    #[arg(long, value_delimiter = ',', default_value = "back-to-back,compute")]
    cadences: Vec<Cadence>,
    /// Workers asked at once; payloads larger than a decode step go to one
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=8), default_value = "1,2,4")]
    workers: Vec<u8>,
    /// Runs of each variant, taken in turn
    #[arg(long, default_value = "7")]
    repeats: NonZeroUsize,
    /// Keep the other processes on these processors, as `taskset -c` takes them (Linux)
    #[arg(long, value_name = "LIST")]
    server_cpus: Option<String>,
    /// A hundredth of the calls: shows that it works, and no more
    #[arg(long)]
    quick: bool,
}

#[derive(Debug, Args)]
struct ExpertsArgs {
    /// Banks, in this order [default: cpu,mlx,mlx-bf16; with --small cpu,mlx,reference]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    banks: Option<Vec<Variant>>,
    /// Rows per call, all to the same ten experts
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,64")]
    rows: Vec<NonZeroUsize>,
    /// Experts in the stack, each 5.3 MB [default: 120, so more than 600 MB]
    #[arg(long, value_name = "N")]
    experts: Option<u16>,
    /// Twelve experts, and a smaller buffer for the bandwidth: most of it lies in caches
    #[arg(long)]
    small: bool,
    /// Sides a sixteenth, and a call or two: shows that it works, and no more
    #[arg(long)]
    quick: bool,
    /// Threads of the `cpu` bank and of the bandwidth probe [default: one for each core]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Seconds for a bank and a number of rows
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
}

#[derive(Debug, Args)]
struct E2eArgs {
    /// Checkpoint folder [default: the bundled small model]
    #[arg(long, short, value_name = "DIR", conflicts_with = "shape")]
    model: Option<PathBuf>,
    /// Make a synthetic checkpoint of this shape instead
    #[arg(long)]
    shape: Option<Preset>,
    /// Its layers, the first of them dense
    #[arg(long, default_value_t = 3, requires = "shape")]
    layers: usize,
    /// Its vocabulary [default: 4096, since a few layers would otherwise be mostly head]
    #[arg(long, default_value_t = 4096, requires = "shape")]
    vocab: usize,
    /// Its routed experts per layer [default: as the shape has]
    #[arg(long, requires = "shape")]
    experts: Option<usize>,
    /// Its layout
    #[arg(long, default_value = "compressed", requires = "shape")]
    layout: Layout,
    /// Where the experts are
    #[arg(long, value_delimiter = ',', default_value = "loopback-1,loopback-2,loopback-quic-2,processes-2")]
    set_ups: Vec<SetUp>,
    /// Links between the coordinator and workers in processes, besides none: thunderbolt, 10gbe, wifi
    #[arg(long, value_delimiter = ',', value_name = "PRESETS")]
    link: Vec<relay::Preset>,
    /// Bits of a trunk weight: 16, 8 or 4
    #[arg(long, default_value = "16")]
    trunk_bits: String,
    /// Arithmetic of the experts [default: mlx on a Mac, cpu elsewhere]
    #[arg(long, value_enum, default_value_t, hide_default_value = true)]
    bank: BankKind,
    /// Tokens of the prompt
    #[arg(long, default_value = "256")]
    prompt: NonZeroUsize,
    /// Tokens to make
    #[arg(long, short = 'n', default_value = "64")]
    tokens: NonZeroUsize,
    /// Prompt tokens a micro-batch
    #[arg(long, default_value = "512")]
    chunk: NonZeroUsize,
    /// Runs of each set-up, taken in turn
    #[arg(long, default_value = "3")]
    repeats: NonZeroUsize,
}

#[derive(Debug, Args)]
struct RecorderArgs {
    /// Checkpoint folder [default: the bundled small model]
    #[arg(long, short, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Where the experts are
    #[arg(long, value_delimiter = ',', default_value = "loopback-1,processes-2")]
    set_ups: Vec<SetUp>,
    /// Arithmetic of the experts [default: mlx on a Mac, cpu elsewhere]
    #[arg(long, value_enum, default_value_t, hide_default_value = true)]
    bank: BankKind,
    /// Tokens to make
    #[arg(long, short = 'n', default_value = "256")]
    tokens: NonZeroUsize,
    /// Runs of each set-up with the recorder off, and as many with it on, taken in turn
    #[arg(long, default_value = "5")]
    repeats: NonZeroUsize,
    /// A few tokens, once: shows that it works, and no more
    #[arg(long)]
    quick: bool,
}

#[derive(Debug, Args)]
struct SynthArgs {
    /// Folder to write, which must not hold a checkpoint
    #[arg(long, short, value_name = "DIR")]
    out: PathBuf,
    /// Shape to start from
    #[arg(long, default_value = "s")]
    shape: Preset,
    /// How the experts are stored
    #[arg(long, default_value = "compressed")]
    layout: Layout,
    /// Same seed, same bytes
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Folder whose tokenizer is copied [default: the bundled small model's]
    #[arg(long, value_name = "DIR")]
    tokenizer: Option<PathBuf>,
    #[command(flatten)]
    numbers: Numbers,
}

/// Numbers that differ from the shape's.
#[derive(Debug, Args)]
#[command(next_help_heading = "Instead of the shape's own")]
struct Numbers {
    /// Decoder layers
    #[arg(long)]
    layers: Option<usize>,
    /// Dense layers among them, from the first on
    #[arg(long)]
    dense_layers: Option<usize>,
    /// Elements per row
    #[arg(long)]
    hidden: Option<usize>,
    /// Query heads of layers with full attention
    #[arg(long)]
    heads_full: Option<usize>,
    /// Query heads of layers with a sliding window
    #[arg(long)]
    heads_sliding: Option<usize>,
    /// Key and value heads
    #[arg(long)]
    kv_heads: Option<usize>,
    /// Elements per head
    #[arg(long)]
    head_dim: Option<usize>,
    /// Routed experts per sparse layer
    #[arg(long)]
    experts: Option<usize>,
    /// Experts per row
    #[arg(long)]
    top_k: Option<usize>,
    /// Inner width of a routed expert
    #[arg(long)]
    expert_width: Option<usize>,
    /// Inner width of the shared expert
    #[arg(long)]
    shared_width: Option<usize>,
    /// Inner width of dense layers
    #[arg(long)]
    dense_width: Option<usize>,
    /// Token ids
    #[arg(long)]
    vocab: Option<usize>,
}

/// Parses the command line, measures, prints, and says how it went.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            progress(&error.to_string());
            ExitCode::from(error.exit_code())
        }
    }
}

fn run(cli: Cli) -> Result<(), BenchError> {
    let machine = Machine::here();
    let mut say = |line: &str| progress(line);
    match cli.command {
        Command::Exchange(args) => report::print(&machine, &args.plan().run(&mut say)?, cli.json),
        Command::Experts(args) => report::print(&machine, &args.plan().run(&mut say)?, cli.json),
        Command::Products(args) => report::print(&machine, &args.plan().run(&mut say)?, cli.json),
        Command::E2e(args) => {
            // Kept until the last run has ended.
            let synthetic = args.synthetic()?;
            let model = match (&synthetic, &args.model) {
                (Some(dir), _) => dir.path().to_owned(),
                (None, Some(model)) => model.clone(),
                (None, None) => nano(),
            };
            report::print(&machine, &args.plan(model)?.run(&mut say)?, cli.json)
        }
        Command::Scale(args) => report::print(&machine, &args.plan()?.run(&mut say)?, cli.json),
        Command::Recorder(args) => report::print(&machine, &args.plan().run(&mut say)?, cli.json),
        Command::Load(args) => {
            // Kept until the last run has ended.
            let synthetic = args.synthetic()?;
            report::print(&machine, &args.plan(synthetic.as_ref()).run(&mut say)?, cli.json)
        }
        Command::Link(args) => report::print(&machine, &args.plan().run(&mut say)?, cli.json),
        Command::Synth(args) => args.write(),
        Command::Child { role } => {
            let role: Role = serde_json::from_str(&role)
                .map_err(|error| BenchError::Usage(format!("not a role: {error}")))?;
            role.play()
        }
    }
}

impl ExchangeArgs {
    fn plan(self) -> exchange::measure::Plan {
        exchange::measure::Plan {
            payloads: self.payloads,
            cadences: self.cadences,
            workers: self.workers.into_iter().map(usize::from).collect(),
            repeats: self.repeats.get(),
            divide: if self.quick { 100 } else { 1 },
            launch: Launch { cpus: self.server_cpus },
        }
    }
}

impl ExpertsArgs {
    fn plan(self) -> experts::measure::Plan {
        let small = self.small || self.quick;
        let experts = self.experts.unwrap_or(if small { 12 } else { 120 });
        let last = if small { Variant::Reference } else { Variant::MlxBf16 };
        let usual = vec![Variant::Cpu, Variant::Mlx, last];
        experts::measure::Plan {
            banks: self.banks.unwrap_or(usual),
            rows: self.rows.into_iter().map(NonZeroUsize::get).collect(),
            experts: usize::from(experts),
            threads: self.threads,
            shrink: if self.quick { 16 } else { 1 },
            probe_bytes: if small { 64 << 20 } else { 1 << 30 },
            time: Duration::from_secs_f64(if self.quick { 0.0 } else { self.seconds.clamp(0.0, 3600.0) }),
        }
    }
}

impl E2eArgs {
    fn synthetic(&self) -> Result<Option<tempfile::TempDir>, BenchError> {
        let Some(preset) = self.shape else { return Ok(None) };
        let whole = Shape::of(preset);
        let experts = self.experts.unwrap_or(whole.experts);
        let shape = Shape { layers: self.layers, vocab: self.vocab, experts, ..whole };
        let dir = scratch("synth")?;
        progress(&format!("writing {} layers of {preset:?}", shape.layers));
        synth::write(dir.path(), &shape, self.layout, 0, &nano(), &mut |_| {})?;
        Ok(Some(dir))
    }

    fn plan(self, model: PathBuf) -> Result<e2e::measure::Plan, BenchError> {
        let bank = self.bank.to_possible_value().map(|value| value.get_name().to_owned());
        let first = self.set_ups.first().copied();
        Ok(e2e::measure::Plan {
            job: Job {
                set_up: first.ok_or_else(|| BenchError::Usage("no set-up".to_owned()))?,
                link: None,
                model,
                bank: bank.unwrap_or_default(),
                trunk_bits: self.trunk_bits,
                sequences: 1,
                prompt: self.prompt.get(),
                tokens: self.tokens.get(),
                chunk: self.chunk,
                recorder: false,
            },
            set_ups: self.set_ups,
            links: self.link,
            repeats: self.repeats.get(),
        })
    }
}

impl RecorderArgs {
    fn plan(self) -> recorder::measure::Plan {
        let bank = self.bank.to_possible_value().map(|value| value.get_name().to_owned());
        let model = self.model.unwrap_or_else(nano);
        let job = |set_up| Job {
            set_up,
            link: None,
            model: model.clone(),
            bank: bank.clone().unwrap_or_default(),
            trunk_bits: "16".to_owned(),
            sequences: 1,
            prompt: 16,
            tokens: if self.quick { 4 } else { self.tokens.get() },
            chunk: NonZeroUsize::MAX,
            recorder: false,
        };
        recorder::measure::Plan {
            jobs: self.set_ups.iter().copied().map(job).collect(),
            repeats: if self.quick { 1 } else { self.repeats.get() },
            turns: if self.quick { 1000 } else { 1_000_000 },
        }
    }
}

impl SynthArgs {
    fn write(self) -> Result<(), BenchError> {
        let shape = self.numbers.over(Shape::of(self.shape));
        let tokenizer = self.tokenizer.unwrap_or_else(nano);
        let (mut done, mut said) = (0, 0);
        let written = synth::write(&self.out, &shape, self.layout, self.seed, &tokenizer, &mut |bytes| {
            done += bytes;
            if done - said >= SAY_EVERY {
                said = done;
                progress(&format!("{:.1} GB", done as f64 / 1e9));
            }
        })?;
        let (tensors, gigabytes) = (written.tensors, written.bytes as f64 / 1e9);
        progress(&format!("{}: {tensors} tensors, {gigabytes:.2} GB", self.out.display()));
        Ok(())
    }
}

impl Numbers {
    fn over(self, shape: Shape) -> Shape {
        Shape {
            layers: self.layers.unwrap_or(shape.layers),
            dense_layers: self.dense_layers.unwrap_or(shape.dense_layers),
            hidden: self.hidden.unwrap_or(shape.hidden),
            heads_full: self.heads_full.unwrap_or(shape.heads_full),
            heads_sliding: self.heads_sliding.unwrap_or(shape.heads_sliding),
            kv_heads: self.kv_heads.unwrap_or(shape.kv_heads),
            head_dim: self.head_dim.unwrap_or(shape.head_dim),
            experts: self.experts.unwrap_or(shape.experts),
            top_k: self.top_k.unwrap_or(shape.top_k),
            expert_width: self.expert_width.unwrap_or(shape.expert_width),
            shared_width: self.shared_width.unwrap_or(shape.shared_width),
            dense_width: self.dense_width.unwrap_or(shape.dense_width),
            vocab: self.vocab.unwrap_or(shape.vocab),
            ..shape
        }
    }
}

/// Bytes from one line of progress to the next.
const SAY_EVERY: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn flags_are_consistent() {
        Cli::command().debug_assert();
        let cli = Cli::parse_from(["laguna-bench", "experts", "--banks", "mlx,reference", "--json"]);
        let Command::Experts(args) = cli.command else { panic!() };
        assert!(cli.json);
        assert_eq!(args.plan().banks, [Variant::Mlx, Variant::Reference]);
        let cli = Cli::parse_from(["laguna-bench", "e2e"]);
        assert!(matches!(cli.command, Command::E2e(args) if args.set_ups.len() == 4));
    }

    #[test]
    fn the_default_stack_is_larger_than_600_mb() {
        let Command::Experts(args) = Cli::parse_from(["laguna-bench", "experts"]).command else { panic!() };
        let plan = args.plan();
        assert!(plan.experts * Shape::experts_only(plan.experts).expert_bytes() > 600_000_000);
    }
}
