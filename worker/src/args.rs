//! Flags, as plain data.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Parser;
use laguna_topology::Spin;

use crate::bank::BankKind;

/// Holds one shard of a Laguna's routed experts and computes them for the coordinator.
///
/// `laguna-worker --shard 0` needs nothing else: the topology file says which checkpoint, which experts, which address
/// and whose calls to answer. It is looked for at --topology, then LAGUNA_TOPOLOGY, then ./topology.toml, then the
/// user's config folder. The worker's key is keys/shard-0.pem beside that file, made by `laguna-coord keygen`.
#[derive(Debug, Parser)]
#[command(name = "laguna-worker", version, max_term_width = 110)]
pub struct Args {
    /// Which shard to hold, as the topology file numbers them
    #[arg(long, short, value_name = "N")]
    pub shard: u16,
    /// Topology file, the same on every machine
    #[arg(long, short, value_name = "FILE")]
    pub topology: Option<PathBuf>,
    /// Checkpoint folder on this machine [default: as the topology file says]
    #[arg(long, short, value_name = "DIR", env = "LAGUNA_MODEL")]
    pub model: Option<PathBuf>,
    /// Address and UDP port to listen at [default: as the topology file says]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// Arithmetic of the experts [default: mlx on a Mac, cpu elsewhere]
    #[arg(long, value_name = "NAME", value_enum, default_value_t, hide_default_value = true)]
    pub bank: BankKind,
    /// Threads to compute with, for the bank `cpu` [default: one for each physical core]
    #[arg(long, value_name = "N", env = "LAGUNA_THREADS")]
    pub threads: Option<NonZeroUsize>,
    /// Spin for a while after each call, rather than sleep: quicker by a wake-up in every layer, and takes a core:
    /// auto, on or off [default: as the topology file says, else auto]
    #[arg(long, value_name = "WHEN")]
    pub spin: Option<Spin>,
}
