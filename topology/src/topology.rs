//! The topology file once it is known to be sound. Everything here is as checked; ranges left out stay left out
//! until [`plan`](crate::plan()) fills them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs};

use crate::address::Address;
use crate::check;
use crate::fault::{Faults, TopologyError};
use crate::file::{self, Place};
use crate::ids::{ExpertRange, ShardId};
use crate::memory::Bytes;
use crate::node::NodeName;
use crate::pin::Pin;
use crate::spin::Spin;

/// A cluster: one coordinator, any number of workers, and the checkpoint they share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// The file it was read from, if it was a file.
    pub file: Option<PathBuf>,
    /// Folder of the checkpoint, unless a node says otherwise. Made from a relative path with the file's folder.
    pub model: PathBuf,
    /// Folder of the key files, one `<node>.pem` each.
    pub keys: PathBuf,
    /// The process that holds the trunk.
    pub coordinator: Coordinator,
    /// The processes that hold shards, in file order.
    pub workers: Vec<Worker>,
    /// How the two sides talk.
    pub link: Link,
}

/// The `[coordinator]` table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coordinator {
    /// Line of its header in the file, counted from 1; 1 if the file has no such table.
    pub line: u32,
    /// Digest of its key; `None` until `keygen` wrote it.
    pub pin: Option<Pin>,
    /// What the process may use for weights, KV cache and scratch together.
    pub memory: Option<Bytes>,
    /// The shard it holds itself, if any.
    pub shard: Option<ShardId>,
    /// Experts of that shard, where the file fixes them; never without `shard`.
    pub experts: Option<ExpertRange>,
    /// Tokens to plan KV cache for, `1..=16_777_216`, where the file says.
    pub context: Option<u64>,
}

impl Coordinator {
    /// Tokens to plan KV cache for: [`DEFAULT_CONTEXT`] if the file is silent.
    pub fn planned_context(&self) -> u64 {
        self.context.unwrap_or(DEFAULT_CONTEXT)
    }
}

/// A `[[worker]]` table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Line of its header in the file, counted from 1.
    pub line: u32,
    /// The shard it holds; no other node has the same number.
    pub shard: ShardId,
    /// Where the coordinator reaches it.
    pub address: Address,
    /// What it binds; see [`Address::default_listen`] for what it is when the file is silent.
    pub listen: SocketAddr,
    /// Digest of its key; `None` until `keygen` wrote it.
    pub pin: Option<Pin>,
    /// What the process may use for weights and scratch together.
    pub memory: Option<Bytes>,
    /// Experts it holds, where the file fixes them. May overlap other shards': replicas.
    pub experts: Option<ExpertRange>,
    /// Folder of the checkpoint on this node, where it differs from [`Topology::model`].
    pub model: Option<PathBuf>,
}

/// The `[link]` table: how coordinator and workers talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// How long a call may take before its worker counts as failed, 10 ms to 10 min. Default 30 s.
    pub call_timeout: Duration,
    /// How long a connection may take to stand, 10 ms to 1 min. Default 5 s.
    pub connect_timeout: Duration,
    /// Bytes of UDP payload to send at most, `1200..=65507`; `None` leaves it to the transport's discovery.
    pub mtu: Option<u16>,
    /// Whether a node that waits spins before it sleeps. Default `auto`.
    pub spin: Spin,
}

/// A shard and the node that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard<'t> {
    /// Its number.
    pub id: ShardId,
    /// Who holds it.
    pub node: Node<'t>,
}

/// A node that holds a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node<'t> {
    /// The coordinator itself: no wire between.
    Coordinator(&'t Coordinator),
    /// A worker, behind an address.
    Worker(&'t Worker),
}

/// The pins of a cluster that has all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pins {
    /// The coordinator's.
    pub coordinator: Pin,
    /// Each worker's, in file order.
    pub workers: Vec<(ShardId, Pin)>,
}

/// Nodes without a pin, where pins are needed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no pin for {}{}: run `laguna-coord keygen` with this topology",
    nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    file.as_ref().map(|file| format!(" in {}", file.display())).unwrap_or_default())]
pub struct MissingPins {
    /// The file, if the topology came from one.
    pub file: Option<PathBuf>,
    /// The nodes, coordinator first; never empty.
    pub nodes: Vec<NodeName>,
}

impl Topology {
    /// Reads and checks the file at `path`. Relative paths in it start at its folder.
    ///
    /// # Errors
    ///
    /// [`TopologyError::Unreadable`], or [`TopologyError::Faulty`] with every fault in the file.
    pub fn load(path: &Path) -> Result<Self, TopologyError> {
        let text = fs::read_to_string(path)
            .map_err(|error| TopologyError::Unreadable { path: path.to_owned(), error })?;
        let dir = path.parent().unwrap_or_else(|| Path::new(""));
        Ok(Self::read(&text, dir, env::home_dir().as_deref(), Some(path))?)
    }

    /// Checks `text` as if it were a file in the folder `dir`. A leading `~` is this user's home folder.
    ///
    /// # Errors
    ///
    /// Every fault in the text.
    pub fn parse(text: &str, dir: &Path) -> Result<Self, Faults> {
        Self::read(text, dir, env::home_dir().as_deref(), None)
    }

    fn read(text: &str, dir: &Path, home: Option<&Path>, path: Option<&Path>) -> Result<Self, Faults> {
        let path = path.map(Path::to_owned);
        let (file, mut faults) = file::read(text, Place { dir, home });
        check::cross(&file, &mut faults);
        match check::topology(file, path.clone()) {
            Some(topology) if faults.is_empty() => Ok(topology),
            _ => Err(Faults::new(path, faults)),
        }
    }

    /// Every shard with its node, ascending by shard number.
    pub fn shards(&self) -> impl Iterator<Item = Shard<'_>> {
        let own = self.coordinator.shard.map(|id| Shard { id, node: Node::Coordinator(&self.coordinator) });
        let workers =
            self.workers.iter().map(|worker| Shard { id: worker.shard, node: Node::Worker(worker) });
        let mut shards: Vec<_> = own.into_iter().chain(workers).collect();
        shards.sort_by_key(|shard| shard.id);
        shards.into_iter()
    }

    /// The worker that holds `shard`; `None` if nobody or the coordinator holds it.
    pub fn worker(&self, shard: ShardId) -> Option<&Worker> {
        self.workers.iter().find(|worker| worker.shard == shard)
    }

    /// Folder of the checkpoint on this node.
    pub fn model_of(&self, node: NodeName) -> &Path {
        match node {
            NodeName::Coordinator => &self.model,
            NodeName::Worker(shard) => {
                self.worker(shard).and_then(|worker| worker.model.as_deref()).unwrap_or(&self.model)
            }
        }
    }

    /// The key file of this node: `<keys>/<node>.pem`.
    pub fn key_file(&self, node: NodeName) -> PathBuf {
        self.keys.join(format!("{node}.pem"))
    }

    /// Every process of the cluster, the coordinator first, workers in file order.
    pub fn nodes(&self) -> impl Iterator<Item = NodeName> {
        let workers = self.workers.iter().map(|worker| NodeName::Worker(worker.shard));
        std::iter::once(NodeName::Coordinator).chain(workers)
    }

    /// How many other processes of the cluster share this node's machine, as far as addresses tell.
    pub fn neighbours(&self, node: NodeName) -> usize {
        let local = self.workers.iter().filter(|worker| worker.address.is_loopback()).count();
        match node {
            NodeName::Coordinator => local,
            NodeName::Worker(shard) => match self.worker(shard) {
                // The coordinator is on the one machine that reaches it there, and so is every worker like it.
                Some(own) if own.address.is_loopback() => local,
                Some(own) => {
                    self.workers.iter().filter(|other| other.address.host == own.address.host).count() - 1
                }
                None => 0,
            },
        }
    }

    /// The pins of every node. Not to be asked where no worker exists: then nobody is authenticated.
    ///
    /// # Errors
    ///
    /// Every node that has none.
    pub fn require_pins(&self) -> Result<Pins, MissingPins> {
        let workers: Vec<_> =
            self.workers.iter().filter_map(|worker| Some((worker.shard, worker.pin?))).collect();
        match self.coordinator.pin {
            Some(coordinator) if workers.len() == self.workers.len() => Ok(Pins { coordinator, workers }),
            _ => {
                let nodes = self.nodes().filter(|node| self.pin(*node).is_none()).collect();
                Err(MissingPins { file: self.file.clone(), nodes })
            }
        }
    }

    /// The pin of one node, if the file has it.
    pub fn pin(&self, node: NodeName) -> Option<Pin> {
        match node {
            NodeName::Coordinator => self.coordinator.pin,
            NodeName::Worker(shard) => self.worker(shard)?.pin,
        }
    }
}

impl Node<'_> {
    /// Its name in messages and key files.
    pub const fn name(&self) -> NodeName {
        match self {
            Self::Coordinator(_) => NodeName::Coordinator,
            Self::Worker(worker) => NodeName::Worker(worker.shard),
        }
    }

    /// What the process may use, if the file says so.
    pub const fn memory(&self) -> Option<Bytes> {
        match self {
            Self::Coordinator(node) => node.memory,
            Self::Worker(node) => node.memory,
        }
    }

    /// Experts the file fixes for its shard.
    pub const fn experts(&self) -> Option<ExpertRange> {
        match self {
            Self::Coordinator(node) => node.experts,
            Self::Worker(node) => node.experts,
        }
    }

    /// Line of its table in the file, counted from 1.
    pub const fn line(&self) -> u32 {
        match self {
            Self::Coordinator(node) => node.line,
            Self::Worker(node) => node.line,
        }
    }
}

impl Default for Link {
    fn default() -> Self {
        Self {
            call_timeout: DEFAULT_CALL_TIMEOUT,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            mtu: None,
            spin: Spin::Auto,
        }
    }
}

/// Tokens of context planned for when the file does not say: an agent's usual session.
pub const DEFAULT_CONTEXT: u64 = 32_768;

/// Long enough for a prefill chunk over a slow cable.
const DEFAULT_CALL_TIMEOUT: Duration = Duration::from_secs(30);

const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
model = "models/s"
keys = "~/keys"
[coordinator]
pin = "sha256:00000000000000000000000000000000000000000000000000000000000000ff"
shard = 2
context = 131072
[[worker]]
shard = 3
address = "studio.local:4433"
experts = "96..256"
memory = "47.5 GiB"
[[worker]]
shard = 0
address = "[fd00::2]:4433"
listen = "0.0.0.0:4000"
model = "/other"
[link]
call_timeout_ms = 1000
mtu = 8952
spin = "off"
"#;

    fn read(text: &str, home: Option<&str>) -> Result<Topology, Faults> {
        Topology::read(text, Path::new("/etc/laguna"), home.map(Path::new), None)
    }

    #[test]
    fn reads_every_field() {
        let topology = read(TEXT, Some("/home/me")).unwrap();
        assert_eq!(topology.model, Path::new("/etc/laguna/models/s"));
        assert_eq!(topology.keys, Path::new("/home/me/keys"));
        assert_eq!(topology.coordinator.context, Some(131_072));
        assert_eq!(topology.coordinator.memory, None);
        assert_eq!(topology.workers[0].experts, Some(ExpertRange::new(96, 256)));
        assert_eq!(topology.workers[0].memory, Some(Bytes(51_002_736_640)));
        assert_eq!(topology.workers[0].listen.to_string(), "[::]:4433");
        assert_eq!(topology.workers[1].listen.to_string(), "0.0.0.0:4000");
        assert_eq!(topology.workers[1].line, 13);
        let defaults = Link::default();
        let link =
            Link { call_timeout: Duration::from_secs(1), mtu: Some(8952), spin: Spin::Off, ..defaults };
        assert_eq!(topology.link, link);
        assert_eq!(topology.model_of(NodeName::Worker(ShardId(0))), Path::new("/other"));
        assert_eq!(topology.model_of(NodeName::Worker(ShardId(3))), topology.model);
        let shards: Vec<_> =
            topology.shards().map(|shard| (shard.id.0, shard.node.name().to_string())).collect();
        let expected = [(0, "shard-0"), (2, "coordinator"), (3, "shard-3")];
        assert_eq!(shards, expected.map(|(id, name)| (id, name.to_string())));
    }

    #[test]
    fn the_least_a_file_can_say() {
        let topology = read("model = '/m'\ncoordinator.shard = 0", None).unwrap();
        assert_eq!(topology.keys, Path::new("/etc/laguna/keys"));
        assert_eq!(topology.coordinator.planned_context(), DEFAULT_CONTEXT);
        assert_eq!(topology.link, Link::default());
        let topology = read("model = '/m'\nworker = [{ shard = 0, address = 'a:1' }]", None).unwrap();
        assert_eq!(topology.workers.len(), 1);
    }

    #[test]
    fn home_must_be_known_to_be_meant() {
        let faults = read("model = '~/m'\ncoordinator.shard = 0", None).unwrap_err();
        assert!(
            faults.to_string().contains("line 1: `model` is \"~/m\" and no home folder is known"),
            "{faults}"
        );
    }

    #[test]
    fn missing_pins_are_named_together() {
        let missing = read(TEXT, Some("/")).unwrap().require_pins().unwrap_err();
        assert_eq!(missing.nodes, [NodeName::Worker(ShardId(3)), NodeName::Worker(ShardId(0))]);
        let shown = missing.to_string();
        assert_eq!(shown, "no pin for shard-3, shard-0: run `laguna-coord keygen` with this topology");
    }

    #[test]
    fn neighbours_share_a_machine() {
        let text = |addresses: &[&str]| {
            let worker = |(shard, address): (usize, &&str)| {
                format!("[[worker]]\nshard = {shard}\naddress = \"{address}\"\n")
            };
            format!("model = \"m\"\n{}", addresses.iter().enumerate().map(worker).collect::<String>())
        };
        let addresses = ["127.0.0.1:1", "localhost:2", "studio.local:1", "studio.local:2", "mini.local:1"];
        let topology = read(&text(&addresses), None).unwrap();
        assert_eq!(topology.neighbours(NodeName::Coordinator), 2);
        let of_workers = [0, 1, 2, 3, 4, 5].map(|n| topology.neighbours(NodeName::Worker(ShardId(n))));
        assert_eq!(of_workers, [2, 2, 1, 1, 0, 0]);
    }
}
