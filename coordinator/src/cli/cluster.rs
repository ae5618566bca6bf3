//! A model and its shards, ready to run.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use laguna_shared::compute::{ActivationType, ExpertBank};
use laguna_shared::config::{AttentionFactor, ConfigOptions};
use laguna_shared::ids::{ExpertId, ExpertRange, ShardId};
use laguna_shared::session::{CallerSettings, InMemoryLinks, InMemoryWorker, Links};
use laguna_topology::{Bytes, Locate, Plan, Topology, plan};
use laguna_worker::bank::load_bank;
use laguna_worker::memory;
use laguna_worker::model::OpenModel;
use laguna_worker::progress::Progress;
use tracing::info;

use super::args::{ActivationArg, AttentionFactorArg, ClusterArgs};
use super::failure::Failure;
use super::quic::{self, Connector};
use crate::experts::Experts;
use crate::experts::local::LocalShard;
use crate::model::Model;

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
    /// Prompt tokens per forward pass.
    pub chunk: NonZeroUsize,
}

/// Where the shards are.
enum Place {
    /// In this process.
    Loopback { shards: usize, over_quic: bool },
    /// Where a topology file says.
    Topology(Topology),
}

/// Opens the cluster that the flags ask for. `default_model` stands in where no flag or file names a checkpoint.
///
/// # Errors
/// With one message that says what is wrong and what to do.
pub fn open(
    args: &ClusterArgs,
    default_activation: ActivationType,
    default_model: Option<&Path>,
) -> Result<Cluster, Failure> {
    let place = place(args)?;
    let dir = model_dir(args, &place, default_model)?;
    let opened = OpenModel::open(&dir, &config_options(args)).map_err(Failure::usage)?;
    let activation = activation(args, default_activation);
    let (owners, links, local, model) = match &place {
        Place::Loopback { shards, over_quic } => loopback(args, &opened, activation, *shards, *over_quic)?,
        Place::Topology(topology) => distributed(args, topology, &opened, activation)?,
    };
    let experts = Experts::new(&owners, links, local).map_err(Failure::failed)?;
    for shard in experts.links().shards() {
        info!(
            "{} ({}): experts {}, {} on {}",
            shard.shard,
            shard.address,
            shard.range,
            Bytes(shard.resident_bytes),
            shard.backend
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

type Opened = (Vec<ShardId>, Box<dyn Links>, Option<LocalShard>, Model);

fn place(args: &ClusterArgs) -> Result<Place, Failure> {
    match (args.loopback, args.loopback_quic) {
        (Some(_), Some(_)) => Err(Failure::usage("--loopback and --loopback-quic exclude each other")),
        (Some(shards), None) => Ok(Place::Loopback { shards, over_quic: false }),
        (None, Some(shards)) => Ok(Place::Loopback { shards, over_quic: true }),
        (None, None) => {
            let file = Locate::from_process(args.topology.clone()).find().map_err(|e| {
                Failure::usage(format!("{e}\nto run everything in this process: --loopback --model DIR"))
            })?;
            Topology::load(&file).map(Place::Topology).map_err(Failure::usage)
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
) -> Result<Opened, Failure> {
    let plan = Plan::even(opened.config.num_experts as u16, shards).map_err(Failure::usage)?;
    let all = ExpertRange::new(0, opened.bytes().num_experts);
    require_memory("the whole model", opened, activation, all)?;

    let model = load_trunk(opened, activation)?;
    let mut workers = Vec::new();
    for shard in plan.shards() {
        let bank = load_shard(args, opened, shard.id, shard.range)?;
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
    Ok((owners(&plan), links, None, model))
}

fn distributed(
    args: &ClusterArgs,
    topology: &Topology,
    opened: &OpenModel,
    activation: ActivationType,
) -> Result<Opened, Failure> {
    let plan = plan(topology, &opened.bytes()).map_err(Failure::usage)?;
    // Everything that can be refused is refused before the long load.
    let held = topology.coordinator.shard.and_then(|id| plan.shard(id)).map(|shard| shard.range);
    require_memory("the coordinator's part", opened, activation, held.unwrap_or_default())?;
    let connector = Connector::prepare(topology, Duration::from_secs(args.wait), args.spin)?;
    let model = load_trunk(opened, activation)?;
    let local = match topology.coordinator.shard.and_then(|id| plan.shard(id)) {
        Some(shard) => Some(LocalShard::new(shard.id, load_shard(args, opened, shard.id, shard.range)?)),
        None => None,
    };
    let hellos = plan
        .shards()
        .iter()
        .filter(|shard| Some(shard.id) != topology.coordinator.shard)
        .map(|shard| opened.hello(shard.id, shard.range, activation))
        .collect::<Result<Vec<_>, _>>()
        .map_err(Failure::failed)?;
    let links = connector.connect(hellos)?;
    Ok((owners(&plan), links, local, model))
}

/// Refuses to load a trunk and the experts of `range` where this machine cannot hold them.
fn require_memory(
    what: &str,
    opened: &OpenModel,
    activation: ActivationType,
    range: ExpertRange,
) -> Result<(), Failure> {
    let bytes = opened.bytes();
    // Published trunks are bf16; f32 activations need f32 weights.
    let trunk = bytes.trunk.saturating_mul(activation.size() as u64 / 2);
    memory::require(what, trunk.saturating_add(bytes.experts(range))).map_err(Failure::failed)
}

fn owners(plan: &Plan) -> Vec<ShardId> {
    (0..).map(ExpertId).map_while(|expert| plan.owner(expert)).collect()
}

fn load_trunk(opened: &OpenModel, activation: ActivationType) -> Result<Model, Failure> {
    let mut progress = Progress::new("trunk", opened.bytes().trunk.0);
    let model =
        Model::load(&opened.checkpoint, &opened.inventory, &opened.config, activation, &mut |bytes| {
            progress.add(bytes);
        })
        .map_err(Failure::failed)?;
    progress.finish();
    Ok(model)
}

fn load_shard(
    args: &ClusterArgs,
    opened: &OpenModel,
    shard: ShardId,
    range: ExpertRange,
) -> Result<Box<dyn ExpertBank>, Failure> {
    let mut progress = Progress::new(shard.to_string(), opened.bytes().experts(range).0);
    let bank =
        load_bank(args.bank, opened, range, &mut |bytes| progress.add(bytes)).map_err(Failure::failed)?;
    progress.finish();
    Ok(bank)
}

/// Prompt tokens per forward pass, where no flag says otherwise.
const DEFAULT_CHUNK: NonZeroUsize = NonZeroUsize::new(512).expect("512 is not 0");
