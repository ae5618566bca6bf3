//! A worker's life: topology and plan, key and socket, experts, then calls until told to stop.

use std::io;
use std::path::PathBuf;

use laguna_shared::compute::BankLoadError;
use laguna_shared::config::ConfigOptions;
use laguna_shared::ids::ShardId;
use laguna_shared::quic::{
    Identity, IdentityError, Machine, Others, QuicServer, ServeError, ServeSettings, Stopper, spins,
};
use laguna_shared::weights::CheckpointError;
use laguna_topology::{Bytes, Locate, NodeName, NotFound, Pin, PlanError, Topology, TopologyError, plan};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::pipe;
use tracing::{info, warn};

use crate::args::Args;
use crate::bank::{BankKind, load_bank, pool};
use crate::memory::{self, TooLittleMemory};
use crate::model::{OpenError, OpenModel};
use crate::progress::Progress;

/// Why a worker did not serve.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No topology file.
    #[error(transparent)]
    NotFound(#[from] NotFound),
    /// A topology file with faults.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A shard that the file does not give to a worker.
    #[error("{}: no [[worker]] has shard = {}; workers there: {known}", file.display(), shard.0)]
    UnknownShard {
        /// The file.
        file: PathBuf,
        /// As asked.
        shard: ShardId,
        /// Shards of the file's workers.
        known: String,
    },
    /// The coordinator's own shard.
    #[error("{}: {shard} is the coordinator's own (`shard` in [coordinator]): laguna-coord holds it; workers there: {known}", file.display())]
    CoordinatorsShard {
        /// The file.
        file: PathBuf,
        /// As asked.
        shard: ShardId,
        /// Shards of the file's workers.
        known: String,
    },
    /// A pin that is missing from the file.
    #[error("{}: {node} has no pin; run `laguna-coord keygen --topology {}` once, and copy the file to every node", file.display(), file.display())]
    MissingPin {
        /// The file.
        file: PathBuf,
        /// Whose.
        node: NodeName,
    },
    /// The key file.
    #[error("{0}; `laguna-coord keygen` makes the keys: copy this node's file from the machine where it ran")]
    Key(#[from] IdentityError),
    /// The key in the file is not the one that the topology names.
    #[error("{}: this key's pin is {found}, but {} gives {node} the pin {expected}; copy the key or the topology file again", key.display(), file.display())]
    WrongKey {
        /// The key file.
        key: PathBuf,
        /// The topology file.
        file: PathBuf,
        /// Whose.
        node: NodeName,
        /// As in the key file.
        found: Pin,
        /// As in the topology file.
        expected: Pin,
    },
    /// The checkpoint.
    #[error(transparent)]
    Model(#[from] OpenError),
    /// No such folder.
    #[error("model {}: no such folder; correct `model` in the topology file, or give --model DIR", .0.display())]
    NoModel(PathBuf),
    /// The plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Too little memory for the shard.
    #[error(transparent)]
    Memory(#[from] TooLittleMemory),
    /// The experts could not be loaded.
    #[error(transparent)]
    Bank(#[from] BankLoadError),
    /// The shard's weights could not be sampled.
    #[error(transparent)]
    Weights(#[from] CheckpointError),
    /// The address could not be listened at.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

impl RunError {
    /// 2 where what was asked cannot be done as asked, 1 where it was tried and failed.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Memory(_) | Self::Bank(_) | Self::Weights(_) | Self::Serve(_) => 1,
            _ => 2,
        }
    }
}

/// Loads the shard and serves it until SIGTERM or Ctrl-C.
///
/// # Errors
/// See [`RunError`].
pub fn run(args: &Args) -> Result<(), RunError> {
    let file = Locate::from_process(args.topology.clone()).find()?;
    let topology = Topology::load(&file)?;
    let shard = ShardId(args.shard);
    let node = NodeName::Worker(shard);
    let Some(worker) = topology.worker(shard) else {
        let known: Vec<String> = topology.workers.iter().map(|w| w.shard.0.to_string()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(if topology.coordinator.shard == Some(shard) {
            RunError::CoordinatorsShard { file, shard, known }
        } else {
            RunError::UnknownShard { file, shard, known }
        });
    };
    let identity = load_identity(&topology, &file, node)?;
    let coordinator = topology
        .pin(NodeName::Coordinator)
        .ok_or_else(|| RunError::MissingPin { file: file.clone(), node: NodeName::Coordinator })?;

    let dir = args.model.as_deref().unwrap_or_else(|| topology.model_of(node));
    if !dir.is_dir() {
        return Err(RunError::NoModel(dir.to_owned()));
    }
    let model = OpenModel::open(dir, &ConfigOptions::default())?;
    let bytes = model.bytes();
    let plan = plan(&topology, &bytes)?;
    let range = plan.shard(shard).map(|planned| planned.range).unwrap_or_default();
    memory::require(shard.to_string(), bytes.experts(range))?;

    let pool = pool(args.threads);
    // While this node waits for a call, another of this machine computes; nothing of its own does.
    let processes = topology.neighbours(node);
    let others = Others { processes, threads: args.bank.threads(&pool), own: 0 };
    // The socket first: an address that is taken should not cost a long load.
    let server = QuicServer::bind(&ServeSettings {
        identity,
        listen: args.listen.unwrap_or(worker.listen),
        coordinators: vec![coordinator],
        mtu: topology.link.mtu,
        spin: spins(args.spin.unwrap_or(topology.link.spin), Machine::look(), others),
    })?;
    let mut progress = Progress::new(format!("{shard}, experts {range}"), bytes.experts(range).0);
    let bank = load_bank(args.bank, &model, range, &pool, &mut |bytes| progress.add(bytes))?;
    let took = progress.finish();
    if args.bank == BankKind::Mlx {
        memory::wire_loaded();
    }
    let welcome = model.welcome(shard, bank.as_ref())?;
    let serving = format!(
        "{shard}: experts {range} in {} sparse layers, {} resident, bank {}, loaded in {:.1} s, at {}",
        welcome.sparse_layers.len(),
        Bytes(welcome.resident_bytes),
        welcome.backend,
        took.as_secs_f64(),
        server.local_addr()
    );
    if let Err(error) = stop_at_signals(&server.stopper()) {
        // The signals' defaults apply: the process ends without a word to its coordinators.
        warn!("cannot watch for signals ({error}), so stopping will not drain");
    }
    // Whoever reads this may stop the worker, and be sure that it drains.
    info!("{serving}");
    server.run(welcome, bank, || info!("draining; Ctrl-C again ends at once"));
    info!("{shard}: stopped");
    Ok(())
}

fn load_identity(topology: &Topology, file: &std::path::Path, node: NodeName) -> Result<Identity, RunError> {
    let key = topology.key_file(node);
    let identity = Identity::load(&key)?;
    let expected = topology.pin(node).ok_or_else(|| RunError::MissingPin { file: file.to_owned(), node })?;
    let found = identity.pin();
    if found == expected {
        Ok(identity)
    } else {
        Err(RunError::WrongKey { key, file: file.to_owned(), node, found, expected })
    }
}

/// Stops the worker at SIGTERM or Ctrl-C. A Ctrl-C after that ends the process at once.
fn stop_at_signals(stopper: &Stopper) -> io::Result<()> {
    // In this order, so that the first Ctrl-C does not see its own mark.
    flag::register_conditional_shutdown(SIGINT, 130, stopper.flag())?;
    for signal in [SIGTERM, SIGINT] {
        flag::register(signal, stopper.flag())?;
        pipe::register(signal, stopper.waker()?)?;
    }
    Ok(())
}
