//! A model and its shards, ready to run.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use laguna_shared::compute::cpu::Pool;
use laguna_shared::compute::{ActivationType, ExpertBank};
use laguna_shared::config::{AttentionFactor, ConfigOptions};
use laguna_shared::ids::{ExpertId, ExpertRange, ShardId};
use laguna_shared::session::{CallerSettings, InMemoryLinks, InMemoryWorker, Links};
use laguna_topology::{Bytes, Locate, Plan, Topology, plan};
use laguna_worker::bank::{self, BankKind, load_bank};
use laguna_worker::memory;
use laguna_worker::model::OpenModel;
use tracing::info;

use super::args::{ActivationArg, AttentionFactorArg, ClusterArgs, TrunkArg};
use super::failure::Failure;
use super::loading::{Load, Watch};
use super::quic::{self, Connector};
use crate::experts::Experts;
use crate::experts::local::LocalShard;
use crate::model::Model;
use crate::model::linear::TrunkMath;
use crate::model::load::TrunkSettings;

/// A loaded trunk and connected shards.
pub struct Cluster {
    /// The checkpoint's folder.
    pub dir: PathBuf,
    /// What the checkpoint says of itself.
    pub opened: OpenModel,
    /// The trunk.
    pub model: Model,
    /// The shards.
    pub experts: Experts,
    /// Prompt tokens a micro-batch.
    pub chunk: NonZeroUsize,
}

/// Where the shards are.
enum Place {
    /// In this process.
    Loopback { shards: usize, over_quic: bool },
    /// Where a topology file says.
    Topology(Box<Topology>),
}

/// Opens the cluster that the flags ask for. `default_model` stands in where no flag or file names a checkpoint;
/// `watch` is told how far the load is.
///
/// # Errors
/// With one message that says what is wrong and what to do.
pub fn open(
    args: &ClusterArgs,
    default_activation: ActivationType,
    default_model: Option<&Path>,
    watch: Watch<'_>,
) -> Result<Cluster, Failure> {
    let place = place(args)?;
    let dir = model_dir(args, &place, default_model)?;
    let opened = OpenModel::open(&dir, &config_options(args)).map_err(Failure::usage)?;
    let activation = activation(args, default_activation);
    let Opened { owners, links, local, model, took } = match &place {
        Place::Loopback { shards, over_quic } => {
            loopback(args, &opened, activation, *shards, *over_quic, watch)?
        }
        Place::Topology(topology) => distributed(args, topology, &opened, activation, watch)?,
    };
    if args.bank == BankKind::Mlx || args.trunk == TrunkArg::Mlx {
        memory::wire_loaded();
    }
    let mut experts = Experts::new(&owners, links, local).map_err(Failure::failed)?;
    for shard in experts.shard_status() {
        let took = took.iter().find(|(id, _)| *id == shard.shard);
        let took =
            took.map_or_else(String::new, |(_, took)| format!(", loaded in {:.1} s", took.as_secs_f64()));
        let bytes = Bytes(shard.resident_bytes);
        info!(
            "{} ({}): experts {}, {bytes} on {}{took}",
            shard.shard, shard.address, shard.range, shard.backend
        );
    }
    let chunk = args.chunk.unwrap_or(DEFAULT_CHUNK);
    Ok(Cluster { dir, opened, model, experts, chunk })
}

/// The checkpoint's folder that [`open`] would open.
///
/// # Errors
/// With one message that says what is wrong and what to do.
pub fn folder(args: &ClusterArgs) -> Result<PathBuf, Failure> {
    model_dir(args, &place(args)?, None)
}

/// How the flags want `config.json` read.
pub const fn config_options(args: &ClusterArgs) -> ConfigOptions {
    ConfigOptions {
        attention_factor: match args.attention_factor {
            AttentionFactorArg::Config => AttentionFactor::FromConfig,
            AttentionFactorArg::Derived => AttentionFactor::Derived,
        },
    }
}

/// The activation type the flags ask for.
pub fn activation(args: &ClusterArgs, default: ActivationType) -> ActivationType {
    match args.dtype {
        Some(ActivationArg::Bf16) => ActivationType::Bf16,
        Some(ActivationArg::F32) => ActivationType::F32,
        None => default,
    }
}

/// The activation type that this kind of machine is quick with.
pub const fn native_activation() -> ActivationType {
    if cfg!(target_os = "macos") { ActivationType::Bf16 } else { ActivationType::F32 }
}

/// What [`Cluster`] is made of.
struct Opened {
    owners: Vec<ShardId>,
    links: Box<dyn Links>,
    local: Option<LocalShard>,
    model: Model,
    /// How long each shard of this process took to load.
    took: Vec<(ShardId, Duration)>,
}

fn place(args: &ClusterArgs) -> Result<Place, Failure> {
    match (args.loopback, args.loopback_quic) {
        (Some(_), Some(_)) => Err(Failure::usage("--loopback and --loopback-quic exclude each other")),
        (Some(shards), None) => Ok(Place::Loopback { shards, over_quic: false }),
        (None, Some(shards)) => Ok(Place::Loopback { shards, over_quic: true }),
        (None, None) => {
            let file = Locate::from_process(args.topology.clone()).find().map_err(|e| {
                Failure::usage(format!("{e}\nto run everything in this process: --loopback --model DIR"))
            })?;
            Topology::load(&file).map(|topology| Place::Topology(Box::new(topology))).map_err(Failure::usage)
        }
    }
}

fn model_dir(args: &ClusterArgs, place: &Place, default: Option<&Path>) -> Result<PathBuf, Failure> {
    let named = match (place, &args.model) {
        (_, Some(dir)) => Some(dir.as_path()),
        (Place::Topology(topology), None) => Some(topology.model.as_path()),
        (Place::Loopback { .. }, None) => default,
    };
    let dir = named.ok_or_else(|| Failure::usage("--loopback needs --model DIR, the checkpoint's folder"))?;
    if !dir.is_dir() {
        return Err(Failure::usage(format!("model {}: no such folder", dir.display())));
    }
    Ok(dir.to_owned())
}

fn loopback(
    args: &ClusterArgs,
    opened: &OpenModel,
    activation: ActivationType,
    shards: usize,
    over_quic: bool,
    watch: Watch<'_>,
) -> Result<Opened, Failure> {
    let plan = Plan::even(opened.config.num_experts as u16, shards).map_err(Failure::usage)?;
    let all = ExpertRange::new(0, opened.bytes().num_experts);
    require_memory(args, "the whole model", opened, activation, all)?;

    let mut load = Load::new(watch, opened.bytes().trunk.saturating_add(opened.bytes().experts(all)));
    let pool = bank::pool(args.threads);
    let model = load_trunk(args, opened, activation, &pool, &mut load)?;
    let (mut workers, mut took) = (Vec::new(), Vec::new());
    for shard in plan.shards() {
        let (bank, time) = load_shard(args, opened, shard.id, shard.range, &pool, &mut load)?;
        took.push((shard.id, time));
        let hello = opened.hello(shard.id, shard.range, activation).map_err(Failure::failed)?;
        let welcome = opened.welcome(shard.id, bank.as_ref()).map_err(Failure::failed)?;
        workers.push(InMemoryWorker { hello, welcome, bank });
    }
    let settings = CallerSettings::default();
    let links: Box<dyn Links> = if over_quic {
        quic::loopback(workers, settings)?
    } else {
        Box::new(InMemoryLinks::new(workers, settings).map_err(Failure::failed)?)
    };
    Ok(Opened { owners: owners(&plan), links, local: None, model, took })
}

fn distributed(
    args: &ClusterArgs,
    topology: &Topology,
    opened: &OpenModel,
    activation: ActivationType,
    watch: Watch<'_>,
) -> Result<Opened, Failure> {
    let plan = plan(topology, &opened.bytes()).map_err(Failure::usage)?;
    require_context(topology, opened)?;
    // Everything that can be refused is refused before the long load.
    let held = topology.coordinator.shard.and_then(|id| plan.shard(id)).map(|shard| shard.range);
    require_memory(args, "the coordinator's part", opened, activation, held.unwrap_or_default())?;
    let pool = bank::pool(args.threads);
    let wait = Duration::from_secs(args.wait);
    let connector = Connector::prepare(topology, wait, args.spin, args.bank.threads(&pool))?;
    let here = opened.bytes().experts(held.unwrap_or_default());
    let mut load = Load::new(watch, opened.bytes().trunk.saturating_add(here));
    let model = load_trunk(args, opened, activation, &pool, &mut load)?;
    let (mut local, mut took) = (None, Vec::new());
    if let Some(shard) = topology.coordinator.shard.and_then(|id| plan.shard(id)) {
        let (bank, time) = load_shard(args, opened, shard.id, shard.range, &pool, &mut load)?;
        took.push((shard.id, time));
        local = Some(LocalShard::new(shard.id, bank));
    }
    let hellos = plan
        .shards()
        .iter()
        .filter(|shard| Some(shard.id) != topology.coordinator.shard)
        .map(|shard| opened.hello(shard.id, shard.range, activation))
        .collect::<Result<Vec<_>, _>>()
        .map_err(Failure::failed)?;
    let links = connector.connect(hellos, watch)?;
    Ok(Opened { owners: owners(&plan), links, local, model, took })
}

/// Refuses a file that plans for more context than the checkpoint has.
fn require_context(topology: &Topology, opened: &OpenModel) -> Result<(), Failure> {
    let trained = opened.config.max_position_embeddings;
    match topology.coordinator.context {
        Some(context) if context > trained as u64 => Err(Failure::usage(format!(
            "context = {context} in [coordinator] of the topology file: this checkpoint's context is {trained} tokens"
        ))),
        _ => Ok(()),
    }
}

/// Where the trunk's products are computed.
fn math(args: &ClusterArgs, pool: &Arc<Pool>) -> TrunkMath {
    match args.trunk {
        TrunkArg::Mlx => TrunkMath::Mlx,
        TrunkArg::Cpu => TrunkMath::Cpu(Arc::clone(pool)),
    }
}

/// Refuses to load a trunk and the experts of `range` where this machine cannot hold them.
fn require_memory(
    args: &ClusterArgs,
    what: &str,
    opened: &OpenModel,
    activation: ActivationType,
    range: ExpertRange,
) -> Result<(), Failure> {
    let bytes = opened.bytes();
    // Published trunks are bf16; MLX wants weights of the activations' type.
    let wider = if args.trunk == TrunkArg::Mlx { activation.size() as u64 / 2 } else { 1 };
    let trunk = bytes.trunk.saturating_mul(wider);
    memory::require(what, trunk.saturating_add(bytes.experts(range))).map_err(Failure::failed)
}

fn owners(plan: &Plan) -> Vec<ShardId> {
    (0..).map(ExpertId).map_while(|expert| plan.owner(expert)).collect()
}

fn load_trunk(
    args: &ClusterArgs,
    opened: &OpenModel,
    activation: ActivationType,
    pool: &Arc<Pool>,
    load: &mut Load<'_>,
) -> Result<Model, Failure> {
    let OpenModel { checkpoint, inventory, config, .. } = opened;
    let settings = TrunkSettings { activation, bits: args.trunk_bits.into(), math: math(args, pool) };
    let bytes = opened.bytes().trunk;
    let read = |tell: &mut dyn FnMut(u64)| Model::load(checkpoint, inventory, config, &settings, tell);
    let (model, took) = load.part("trunk", bytes, read).map_err(Failure::failed)?;
    info!("trunk: {bytes}, loaded in {:.1} s", took.as_secs_f64());
    Ok(model)
}

fn load_shard(
    args: &ClusterArgs,
    opened: &OpenModel,
    shard: ShardId,
    range: ExpertRange,
    pool: &Arc<Pool>,
    load: &mut Load<'_>,
) -> Result<(Box<dyn ExpertBank>, Duration), Failure> {
    let read = |tell: &mut dyn FnMut(u64)| load_bank(args.bank, opened, range, pool, tell);
    load.part(&shard.to_string(), opened.bytes().experts(range), read).map_err(Failure::failed)
}

/// Prompt tokens a micro-batch, where no flag says otherwise.
const DEFAULT_CHUNK: NonZeroUsize = NonZeroUsize::new(512).expect("512 is not 0");
