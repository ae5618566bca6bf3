//! From a topology file to connected shards.

use std::time::{Duration, Instant};

use laguna_shared::ids::ShardId;
use laguna_shared::quic::{Identity, Machine, Others, Peer, QuicLinks, QuicSettings, spins};
use laguna_shared::session::{
    CallerSettings, ConnectError, Fault, Gone, InMemoryWorker, Links, Missing, ShardError,
};
use laguna_shared::wire::Hello;
use laguna_topology::{NodeName, Pins, Spin, Topology};
use tracing::info;

use super::failure::Failure;
use super::loading::Watch;
use crate::http::state::Loading;

/// Everything needed to connect, checked before the long load begins.
pub struct Connector {
    /// `None` where every shard is in this process.
    remote: Option<Remote>,
    settings: QuicSettings,
    wait: Duration,
}

struct Remote {
    identity: Identity,
    pins: Pins,
    /// `(address, mtu)` of each pin's worker.
    addresses: Vec<String>,
    mtu: Option<u16>,
}

impl Connector {
    /// Loads the coordinator's key and checks that every pin is there. Workers that are still loading are waited for
    /// as long as `wait`. `spin` goes before what the topology says; `threads` is what a worker on this machine computes
    /// with, as far as this node knows.
    ///
    /// # Errors
    /// With one message.
    pub fn prepare(
        topology: &Topology,
        wait: Duration,
        spin: Option<Spin>,
        threads: usize,
    ) -> Result<Self, Failure> {
        // While this end waits, workers on this machine compute, and MLX may with the shared expert. The pool does not:
        // it works for the thread that waits.
        let processes = topology.neighbours(NodeName::Coordinator);
        let others = Others { processes, threads, own: 1 };
        let settings = QuicSettings {
            connect_timeout: topology.link.connect_timeout,
            caller: CallerSettings {
                hello_timeout: topology.link.connect_timeout,
                call_timeout: topology.link.call_timeout,
            },
            spin: spins(spin.unwrap_or(topology.link.spin), Machine::look(), others),
        };
        if topology.workers.is_empty() {
            return Ok(Self { remote: None, settings, wait });
        }
        let pins = topology.require_pins().map_err(Failure::usage)?;
        let key = topology.key_file(NodeName::Coordinator);
        let identity = Identity::load(&key).map_err(|e| {
            Failure::usage(format!(
                "{e}; `laguna-coord keygen` makes the keys: copy this node's file from the machine where it ran"
            ))
        })?;
        if identity.pin() != pins.coordinator {
            return Err(Failure::usage(format!(
                "{}: this key's pin is {}, but the topology gives the coordinator {}; copy the key or the file again",
                key.display(),
                identity.pin(),
                pins.coordinator
            )));
        }
        let address = |(shard, _): &(ShardId, _)| {
            topology.worker(*shard).map(|worker| worker.address.to_string()).unwrap_or_default()
        };
        let addresses = pins.workers.iter().map(address).collect();
        Ok(Self {
            remote: Some(Remote { identity, pins, addresses, mtu: topology.link.mtu }),
            settings,
            wait,
        })
    }

    /// Connects to every worker that `hellos` expects; `watch` is told whom it waits for.
    ///
    /// # Errors
    /// Every worker that could not be reached, authenticated or used.
    pub fn connect(self, hellos: Vec<Hello>, watch: Watch<'_>) -> Result<Box<dyn Links>, Failure> {
        let Some(remote) = self.remote else {
            let none = laguna_shared::session::InMemoryLinks::new(Vec::new(), self.settings.caller);
            return Ok(Box::new(none.map_err(Failure::failed)?));
        };
        let peers: Vec<Peer> = hellos.into_iter().filter_map(|hello| remote.peer(hello)).collect();
        let awaited = |shards: Vec<(ShardId, &str)>| {
            let each: Vec<String> =
                shards.into_iter().map(|(shard, address)| format!("{shard} ({address})")).collect();
            // How long others take is not known here.
            watch(Loading { progress: None, what: format!("waiting for {}", each.join(", ")) });
        };
        awaited(peers.iter().map(|peer| (peer.hello.shard, peer.address.as_str())).collect());
        let deadline = Instant::now() + self.wait;
        let mut said = None;
        loop {
            match QuicLinks::connect(remote.identity.clone(), peers.clone(), self.settings) {
                Ok(links) => return Ok(Box::new(links)),
                Err(error) if Instant::now() < deadline && error.0.iter().all(may_yet_come) => {
                    let now = error.to_string();
                    if said.as_ref() != Some(&now) {
                        info!(
                            "waiting for workers, at most {} s (--wait): {}",
                            self.wait.as_secs(),
                            now.replace('\n', " | ")
                        );
                        said = Some(now);
                        awaited(error.0.iter().map(|error| (error.shard, &*error.address)).collect());
                    }
                    std::thread::sleep(RETRY);
                }
                Err(error) => return Err(Failure::failed(error)),
            }
        }
    }
}

impl Remote {
    fn peer(&self, hello: Hello) -> Option<Peer> {
        let index = self.pins.workers.iter().position(|(shard, _)| *shard == hello.shard)?;
        let (_, pin) = self.pins.workers[index];
        Some(Peer { address: self.addresses[index].clone(), pin, hello, mtu: self.mtu })
    }
}

/// Shards in this process, over real QUIC on 127.0.0.1.
///
/// # Errors
/// With one message.
pub fn loopback(workers: Vec<InMemoryWorker>, caller: CallerSettings) -> Result<Box<dyn Links>, Failure> {
    let settings = QuicSettings { caller, ..QuicSettings::default() };
    let links: Result<QuicLinks, ConnectError> = QuicLinks::loopback(workers, settings);
    Ok(Box::new(links.map_err(Failure::failed)?))
}

/// Whether a worker may only be loading still.
fn may_yet_come(error: &ShardError) -> bool {
    matches!(
        error.fault,
        Fault::PeerGone(Gone::NothingListens)
            | Fault::TimedOut { missing: Missing::Connection | Missing::Welcome, .. }
    )
}

/// Between two tries to reach workers that are still loading.
const RETRY: Duration = Duration::from_millis(500);
