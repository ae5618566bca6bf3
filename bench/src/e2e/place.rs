//! Where the experts are: shards in the coordinator's process, or workers in processes of their own, at the end of any
//! link.

use std::fmt;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::ValueEnum;
use laguna_shared::quic::Identity;
use laguna_tests::cluster::free_port;
use laguna_tests::relay::{Preset, Relay};
use laguna_topology::{Topology, write_pins};
use laguna_worker::bank::BankKind;
use serde::{Deserialize, Serialize};

use crate::child::{Child, Launch, Role};
use crate::error::BenchError;

/// How the coordinator reaches a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// In the coordinator's process, by a function call.
    Loopback,
    /// In the coordinator's process, over QUIC.
    LoopbackQuic,
    /// In a process of its own, over QUIC.
    Processes,
}

/// Where the experts are: `loopback-2`, `loopback-quic-2`, `processes-2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SetUp {
    /// How they are reached.
    pub reach: Reach,
    /// Shards, each with as many experts; at least one.
    pub shards: u16,
}

impl FromStr for SetUp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.rsplit_once('-').and_then(|(reach, shards)| {
            let reach = REACHES.into_iter().find(|(name, _)| *name == reach)?.1;
            Some((reach, shards.parse().ok().filter(|shards| (1..=MOST_SHARDS).contains(shards))?))
        });
        let (reach, shards) = parts.ok_or_else(|| {
            format!(
                "{text:?} is not loopback-N, loopback-quic-N or processes-N, with N from 1 to {MOST_SHARDS}"
            )
        })?;
        Ok(Self { reach, shards })
    }
}

impl fmt::Display for SetUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = REACHES.into_iter().find(|(_, reach)| *reach == self.reach).map_or("", |(name, _)| name);
        write!(f, "{name}-{}", self.shards)
    }
}

impl TryFrom<String> for SetUp {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<SetUp> for String {
    fn from(set_up: SetUp) -> Self {
        set_up.to_string()
    }
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
    /// Whether it tells its parent on stderr how far it is.
    pub logs: bool,
}

/// Serves a shard until the parent is gone.
///
/// # Errors
/// What the worker says.
pub fn serve(role: &WorkerRole) -> Result<(), BenchError> {
    if role.logs {
        laguna_worker::logging::init();
    }
    let args = laguna_worker::args::Args {
        shard: role.shard,
        topology: Some(role.topology.clone()),
        model: None,
        listen: None,
        bank: BankKind::from_str(&role.bank, true).map_err(BenchError::Usage)?,
        threads: None,
        spin: None,
    };
    laguna_worker::run::run(&args).map_err(BenchError::failed)
}

/// Worker processes, and what lies between them and the coordinator.
pub struct Workers {
    processes: Vec<Child>,
    _relays: Vec<Relay>,
    /// The coordinator's topology file; none without workers.
    pub topology: Option<PathBuf>,
}

impl Workers {
    /// None at all.
    pub const fn none() -> Self {
        Self { processes: Vec::new(), _relays: Vec::new(), topology: None }
    }

    /// Starts `count` of them for `model`, each at the end of a link of its own if one is given. `dir` gets the
    /// topology files and the keys.
    ///
    /// # Errors
    /// If a file cannot be written, or a process or a relay not be started.
    pub fn start(
        dir: &Path,
        model: &Path,
        count: u16,
        bank: &str,
        link: Option<Preset>,
    ) -> Result<Self, BenchError> {
        let addresses = free_addresses(count);
        let near = write_topology(dir, "topology.toml", model, &addresses)?;
        let start = |shard| {
            let role = WorkerRole { shard, topology: near.clone(), bank: bank.to_owned(), logs: false };
            Child::start(&Role::Worker(role), &Launch::default())
        };
        let processes = (0..count).map(start).collect::<Result<_, _>>()?;
        let Some(link) = link else {
            return Ok(Self { processes, _relays: Vec::new(), topology: Some(near) });
        };
        let relay =
            |(address, seed)| Relay::start(address, &link.link(), seed).map_err(BenchError::io("relay"));
        let relays: Vec<Relay> = addresses.into_iter().zip(0..).map(relay).collect::<Result<_, _>>()?;
        let behind: Vec<SocketAddr> = relays.iter().map(Relay::address).collect();
        let far = write_topology(dir, "far.toml", model, &behind)?;
        Ok(Self { processes, _relays: relays, topology: Some(far) })
    }

    /// Most bytes that any of them has had resident so far; 0 without workers.
    ///
    /// # Errors
    /// If one has ended.
    pub fn peak_bytes(&mut self) -> Result<u64, BenchError> {
        let peaks = self.processes.iter_mut().map(Child::peak_bytes).collect::<Result<Vec<_>, _>>()?;
        Ok(peaks.into_iter().max().unwrap_or_default())
    }
}

/// Addresses of this machine that nobody has now, and that the system gives to no outgoing socket meanwhile.
pub fn free_addresses(count: u16) -> Vec<SocketAddr> {
    (0..count).map(|_| (Ipv4Addr::LOCALHOST, free_port()).into()).collect()
}

/// A topology of workers at these addresses, with keys beside it; keys that are there already are kept.
///
/// # Errors
/// If a file cannot be written.
pub fn write_topology(
    dir: &Path,
    name: &str,
    model: &Path,
    workers: &[SocketAddr],
) -> Result<PathBuf, BenchError> {
    let file = dir.join(name);
    let model = model.canonicalize().map_err(BenchError::io(model.display()))?;
    let mut text = format!("model = {:?}\n[coordinator]\n", model.to_string_lossy());
    for (shard, address) in workers.iter().enumerate() {
        text.push_str(&format!("[[worker]]\nshard = {shard}\naddress = \"{address}\"\n"));
    }
    fs::write(&file, &text).map_err(BenchError::io(file.display()))?;
    let topology = Topology::load(&file).map_err(BenchError::failed)?;
    fs::create_dir_all(&topology.keys).map_err(BenchError::io(topology.keys.display()))?;
    let pin = |node| {
        let key = topology.key_file(node);
        let identity = if key.exists() { Identity::load(&key) } else { Identity::create(&key) };
        identity.map(|identity| (node, identity.pin()))
    };
    let pins: Vec<_> = topology.nodes().map(pin).collect::<Result<_, _>>().map_err(BenchError::failed)?;
    let pinned = write_pins(&text, &pins).map_err(BenchError::failed)?;
    fs::write(&file, pinned).map_err(BenchError::io(file.display()))?;
    Ok(file)
}

const REACHES: [(&str, Reach); 3] =
    [("loopback", Reach::Loopback), ("loopback-quic", Reach::LoopbackQuic), ("processes", Reach::Processes)];

const MOST_SHARDS: u16 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_ups_are_named_as_they_are_written() {
        for (text, reach, shards) in [
            ("loopback-1", Reach::Loopback, 1),
            ("loopback-quic-2", Reach::LoopbackQuic, 2),
            ("processes-16", Reach::Processes, 16),
        ] {
            assert_eq!(text.parse(), Ok(SetUp { reach, shards }));
            assert_eq!(SetUp { reach, shards }.to_string(), text);
        }
        for text in ["", "2", "processes", "processes-0", "processes-65", "loopback-quic-", "tcp-2"] {
            assert!(text.parse::<SetUp>().is_err(), "{text:?}");
        }
    }
}
