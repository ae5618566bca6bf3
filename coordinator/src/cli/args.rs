//! Flags, as plain data.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use clap::{ArgGroup, Args as ClapArgs, Parser, Subcommand, ValueEnum};
use laguna_topology::Spin;
use laguna_worker::bank::BankKind;

use super::serve::{ServeArgs, Switch};
use crate::model::quantize::TrunkBits;

/// Runs Poolside's Laguna models with their routed experts spread over several machines.
///
/// This is the coordinator: it holds attention, router, shared expert, KV cache and head, and asks each shard of the
/// routed experts once per sparse layer. Say where the shards are with --topology FILE, or run everything in this
/// process with --loopback.
#[derive(Debug, Parser)]
#[command(name = "laguna-coord", version, max_term_width = 110)]
pub struct Args {
    /// Where the shards are.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// How to serve.
    #[command(flatten)]
    pub serve: ServeArgs,
    /// What to do; without a command the API is served.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// Commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Continues a text, or answers a message, on stdout
    Generate(GenerateArgs),
    /// Talks with a running server on this terminal; from a pipe: one message in, its answer on stdout
    Chat(ChatArgs),
    /// Compares this build with reference outputs; exit code 1 if they differ. With --trunk-bits: says what fewer bits change
    Verify(VerifyArgs),
    /// Runs prompts and writes logits, routing and greedy ids to a safetensors file
    Eval(EvalArgs),
    /// Says what a checkpoint is: layout, parts, formats, and what each shard of it would hold
    Inspect(InspectArgs),
    /// Makes the keys of every node of a topology, and writes their pins into the file
    Keygen(KeygenArgs),
}

/// The cluster and how to run it.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterArgs {
    /// Topology file: which node holds which experts. Without it, the environment variable LAGUNA_TOPOLOGY,
    /// ./topology.toml and the user's config folder are looked at, in that order
    #[arg(long, short, global = true, value_name = "FILE", conflicts_with_all = ["loopback", "loopback_quic"])]
    pub topology: Option<PathBuf>,
    /// Run N shards in this process, over in-memory links [default N: 2]
    #[arg(long, global = true, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "2")]
    pub loopback: Option<usize>,
    /// Run N shards in this process, over real QUIC on 127.0.0.1 [default N: 2]
    #[arg(long, global = true, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "2")]
    pub loopback_quic: Option<usize>,
    /// Checkpoint folder; with --topology the file names it, and this overrides it for the coordinator
    #[arg(long, short, global = true, value_name = "DIR", env = "LAGUNA_MODEL")]
    pub model: Option<PathBuf>,
    /// Activation type [default: bf16 on a Mac, f32 elsewhere; verify and eval: f32]
    #[arg(long, global = true, value_name = "TYPE")]
    pub dtype: Option<ActivationArg>,
    /// Bits of a trunk weight: 16 as stored, 8 or 4 quantised while loading (affine). Fewer are faster and less exact;
    /// `verify --trunk-bits N --prompt TEXT` says how much
    #[arg(long, global = true, value_name = "BITS", default_value = "16", env = "LAGUNA_TRUNK_BITS")]
    pub trunk_bits: TrunkBitsArg,
    /// Arithmetic of the trunk's products: mlx, or cpu: SIMD over the mapped checkpoint [default: mlx on a Mac, cpu
    /// elsewhere]
    #[arg(long, global = true, value_name = "NAME", value_enum, default_value_t, hide_default_value = true)]
    pub trunk: TrunkArg,
    /// Arithmetic of the experts in this process [default: mlx on a Mac, cpu elsewhere]
    #[arg(long, global = true, value_name = "NAME", value_enum, default_value_t, hide_default_value = true)]
    pub bank: BankKind,
    /// Threads to compute with, for `cpu` trunks and banks [default: one for each physical core]
    #[arg(long, global = true, value_name = "N", env = "LAGUNA_THREADS")]
    pub threads: Option<NonZeroUsize>,
    /// Prompt tokens a micro-batch; with workers, two are under way
    #[arg(long, global = true, value_name = "ROWS")]
    pub chunk: Option<NonZeroUsize>,
    /// With --topology: wait this long for workers that are still loading
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 60)]
    pub wait: u64,
    /// Spin while a worker computes, rather than sleep: quicker by a wake-up in every layer, and takes a core: auto, on
    /// or off [default: as the topology file says, else auto]
    #[arg(long, global = true, value_name = "WHEN", conflicts_with_all = ["loopback", "loopback_quic"])]
    pub spin: Option<Spin>,
    /// Where YaRN's attention factor comes from, for checkpoints whose config.json states one that its factor does
    /// not give
    #[arg(long, global = true, value_name = "SOURCE", default_value = "config")]
    pub attention_factor: AttentionFactorArg,
}

/// Activation types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ActivationArg {
    /// bfloat16
    Bf16,
    /// IEEE single
    F32,
}

/// Where the trunk's products are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TrunkArg {
    /// MLX: Metal on a Mac
    Mlx,
    /// SIMD on all cores: AVX-512, AVX2 or NEON
    Cpu,
}

impl Default for TrunkArg {
    /// The fastest on this system.
    fn default() -> Self {
        if cfg!(target_os = "macos") { Self::Mlx } else { Self::Cpu }
    }
}

/// Bits of a trunk weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TrunkBitsArg {
    /// As stored
    #[value(name = "16")]
    Sixteen,
    /// Affine, groups of 64
    #[value(name = "8")]
    Eight,
    /// Affine, groups of 64
    #[value(name = "4")]
    Four,
}

impl TrunkBitsArg {
    /// As a number.
    pub const fn bits(self) -> u8 {
        match self {
            Self::Sixteen => 16,
            Self::Eight => 8,
            Self::Four => 4,
        }
    }
}

impl From<TrunkBits> for TrunkBitsArg {
    fn from(bits: TrunkBits) -> Self {
        match bits {
            TrunkBits::Stored => Self::Sixteen,
            TrunkBits::Eight => Self::Eight,
            TrunkBits::Four => Self::Four,
        }
    }
}

impl From<TrunkBitsArg> for TrunkBits {
    fn from(bits: TrunkBitsArg) -> Self {
        match bits {
            TrunkBitsArg::Sixteen => Self::Stored,
            TrunkBitsArg::Eight => Self::Eight,
            TrunkBitsArg::Four => Self::Four,
        }
    }
}

/// Sources of the attention factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AttentionFactorArg {
    /// As config.json says; derived where it is silent
    Config,
    /// 0.1 · ln(factor) + 1, whatever config.json says
    Derived,
}

/// `generate`.
#[derive(Debug, ClapArgs)]
#[command(group = ArgGroup::new("form"))]
pub struct GenerateArgs {
    /// The text
    #[arg(long, short, value_name = "TEXT", allow_hyphen_values = true, required_unless_present = "stray")]
    pub prompt: Option<String>,
    /// What stands there without a flag: taken only to say where it belongs
    #[arg(hide = true)]
    pub stray: Vec<String>,
    /// Most new tokens
    #[arg(long, short = 'n', value_name = "N", default_value_t = 128)]
    pub max_tokens: usize,
    /// Continue the text as it is (the default)
    #[arg(long, group = "form")]
    pub raw: bool,
    /// Treat the text as a user's message, in the checkpoint's own chat template
    #[arg(long, group = "form")]
    pub chat: bool,
    /// Always take the most likely token
    #[arg(long, conflicts_with_all = ["temperature", "top_k", "top_p", "min_p", "seed"])]
    pub greedy: bool,
    /// Divisor of the logits; 0 is greedy [default: the checkpoint's, else 1]
    #[arg(long, value_name = "T", value_parser = non_negative)]
    pub temperature: Option<f32>,
    /// Keep the K most likely tokens; 0 keeps all [default: the checkpoint's, else 0]
    #[arg(long, value_name = "K")]
    pub top_k: Option<usize>,
    /// Keep the most likely tokens that together reach P [default: the checkpoint's, else 1]
    #[arg(long, value_name = "P", value_parser = fraction)]
    pub top_p: Option<f32>,
    /// Keep tokens at least P times as likely as the most likely one [default: the checkpoint's, else 0]
    #[arg(long, value_name = "P", value_parser = fraction)]
    pub min_p: Option<f32>,
    /// Record where the time of each token goes, and write it at the end, as a Chrome trace
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Same seed, same text [default: a new one each time, said on stderr]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

/// `chat`.
#[derive(Debug, ClapArgs)]
pub struct ChatArgs {
    /// Where the server is
    #[arg(long, value_name = "URL", env = "LAGUNA_URL", default_value = "http://127.0.0.1:8080")]
    pub url: String,
    /// File whose first key is sent; without it, the key in the environment variable LAGUNA_API_KEY
    #[arg(long, value_name = "FILE", env = "LAGUNA_API_KEY_FILE")]
    pub api_key_file: Option<PathBuf>,
    /// System prompt
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub system: Option<String>,
    /// Whether the model thinks before it answers [default: as the server has it]
    #[arg(long, value_name = "ON|OFF")]
    pub thinking: Option<Switch>,
    /// Most new tokens of an answer [default: what the context leaves]
    #[arg(long, short = 'n', value_name = "N")]
    pub max_tokens: Option<NonZeroU32>,
    /// Divisor of the logits; 0 is greedy [default: as the server has it]
    #[arg(long, value_name = "T", value_parser = non_negative)]
    pub temperature: Option<f32>,
}

/// `verify`.
#[derive(Debug, ClapArgs)]
pub struct VerifyArgs {
    /// Folders with reference outputs; each is also the checkpoint unless --model or --topology names one
    #[arg(long, short, required_unless_present = "prompt", num_args = 1.., value_name = "DIR")]
    pub reference: Vec<PathBuf>,
    /// With --trunk-bits: a text to measure on, besides the references' prompts
    #[arg(long, short, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// Largest |Δlogit| that passes
    #[arg(long, value_name = "X", default_value_t = 1e-3, value_parser = non_negative)]
    pub tolerance: f32,
    /// One JSON object per reference, on stdout
    #[arg(long)]
    pub json: bool,
}

/// `eval`.
#[derive(Debug, ClapArgs)]
pub struct EvalArgs {
    /// Prompts: [{"key": "a", "input_ids": [2, 17], "greedy": 48}, …]
    #[arg(long, value_name = "FILE")]
    pub prompts: PathBuf,
    /// File to write: a.logits, a.topk_idx, a.topk_weights, a.greedy_ids, a.decode_logits
    #[arg(long, short, value_name = "FILE")]
    pub out: PathBuf,
}

/// `inspect`.
#[derive(Debug, ClapArgs)]
pub struct InspectArgs {
    /// Checkpoint folder
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Show what each of N equal shards would hold
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub shards: usize,
    /// As JSON, on stdout
    #[arg(long)]
    pub json: bool,
}

/// `keygen`.
#[derive(Debug, ClapArgs)]
pub struct KeygenArgs {
    /// Make new keys for nodes that have one already
    #[arg(long)]
    pub renew: bool,
}

fn non_negative(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if value >= 0.0 && value.is_finite() => Ok(value),
        _ => Err("expected a number, 0 or more".into()),
    }
}

fn fraction(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if (0.0..=1.0).contains(&value) => Ok(value),
        _ => Err("expected a number from 0 to 1".into()),
    }
}
