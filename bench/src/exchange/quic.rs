//! The project's own exchange: [`QuicLinks`] here, one [`QuicServer`] in each child, both ends authenticated.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use laguna_shared::ids::{ExpertRange, ShardId};
use laguna_shared::quic::{Identity, Peer, QuicLinks, QuicServer, QuicSettings, ServeSettings};
use laguna_shared::session::{Links, Reply};
use laguna_topology::Pin;
use serde::{Deserialize, Serialize};

use super::echo::EchoBank;
use super::payload::{Payload, Rows, range_of};
use super::{Exchange, Wait};
use crate::allocations;
use crate::child::{Child, Launch, Role, say};
use crate::error::BenchError;

/// A worker with an echo for a bank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QuicRole {
    /// Number of the shard.
    pub shard: u16,
    /// First expert and the one after the last.
    pub experts: (u16, u16),
    /// Pin of the coordinator.
    pub coordinator: String,
    /// How it waits for calls.
    pub wait: Wait,
}

impl QuicRole {
    const fn range(&self) -> ExpertRange {
        ExpertRange::new(self.experts.0, self.experts.1)
    }
}

/// How often a call asks for memory.
#[derive(Clone, Copy, Debug)]
pub struct Allocations {
    /// In the coordinator's process.
    pub here: f64,
    /// In a worker's.
    pub there: f64,
}

/// Links to every child.
pub struct Quic {
    calls: Calls<QuicLinks>,
    children: Vec<Child>,
}

impl Quic {
    /// Starts the children.
    ///
    /// # Errors
    /// If one does not start.
    pub fn start(payload: Payload, wait: Wait, workers: usize, launch: &Launch) -> Result<Self, BenchError> {
        let identity = Identity::generate().map_err(BenchError::failed)?;
        let (mut peers, mut children) = (Vec::new(), Vec::new());
        for index in 0..workers {
            let range = range_of(index, workers);
            let shard = index as u16;
            let role = QuicRole {
                shard,
                experts: (range.start, range.end),
                coordinator: identity.pin().to_string(),
                wait,
            };
            let mut child = Child::start(&Role::Quic(role), launch)?;
            let (address, pin): (SocketAddr, String) = child.hear()?;
            peers.push(Peer {
                address: address.to_string(),
                pin: parse_pin(&pin)?,
                hello: EchoBank { range }.welcome(ShardId(shard)).expected_hello(payload.activation()),
                mtu: None,
            });
            children.push(child);
        }
        let settings = QuicSettings { spin: wait == Wait::Spin, ..QuicSettings::default() };
        let links = QuicLinks::connect(identity, peers, settings).map_err(BenchError::failed)?;
        Ok(Self { calls: Calls::new(links, payload, workers), children })
    }

    /// Allocations per call, here and at the first worker, over some calls.
    ///
    /// # Errors
    /// If a call fails.
    pub fn allocations(&mut self, calls: usize) -> Result<Allocations, BenchError> {
        self.calls.compute = Vec::with_capacity(calls);
        let worker = |children: &mut Vec<Child>| children.first_mut().map_or(Ok(0), Child::allocations);
        let there = worker(&mut self.children)?;
        let here = allocations::count();
        (0..calls).try_for_each(|_| self.calls.call())?;
        let here = allocations::count() - here;
        let there = worker(&mut self.children)? - there;
        self.take_compute();
        Ok(Allocations { here: here as f64 / calls as f64, there: there as f64 / calls as f64 })
    }

    /// Time that the slowest bank took in each call since this was last asked.
    pub fn take_compute(&mut self) -> Vec<Duration> {
        std::mem::take(&mut self.calls.compute)
    }
}

impl Exchange for Quic {
    fn call(&mut self) -> Result<(), BenchError> {
        self.calls.call()
    }
}

/// The child.
///
/// # Errors
/// If it cannot listen.
pub fn serve(role: &QuicRole) -> Result<(), BenchError> {
    let identity = Identity::generate().map_err(BenchError::failed)?;
    let pin = identity.pin().to_string();
    let server = QuicServer::bind(&ServeSettings {
        identity,
        listen: (Ipv4Addr::LOCALHOST, 0).into(),
        coordinators: vec![parse_pin(&role.coordinator)?],
        mtu: None,
        spin: role.wait == Wait::Spin,
    })
    .map_err(BenchError::failed)?;
    say(&(server.local_addr(), pin))?;
    let bank = EchoBank { range: role.range() };
    server.run(bank.welcome(ShardId(role.shard)), Box::new(bank), || {});
    Ok(())
}

/// Calls over any links, to every worker at once.
pub(super) struct Calls<L> {
    links: L,
    rows: Vec<Rows>,
    replies: Vec<Reply>,
    compute: Vec<Duration>,
}

impl<L: Links> Calls<L> {
    pub(super) fn new(links: L, payload: Payload, workers: usize) -> Self {
        let rows = (0..workers).map(|index| payload.rows_for(index, workers)).collect();
        Self { links, rows, replies: Vec::new(), compute: Vec::new() }
    }

    /// As the engine does it: replies are held until all are there.
    pub(super) fn call(&mut self) -> Result<(), BenchError> {
        for (link, rows) in self.rows.iter().enumerate() {
            self.links.send(link, &rows.batch()).map_err(BenchError::failed)?;
        }
        while self.replies.len() < self.rows.len() {
            match self.links.recv().map_err(BenchError::failed)? {
                Some(reply) => self.replies.push(reply),
                None => return Err(BenchError::Failed("a call has no reply".to_owned())),
            }
        }
        self.compute.push(self.replies.iter().map(|reply| reply.times().compute).max().unwrap_or_default());
        for reply in self.replies.drain(..) {
            self.links.recycle(reply);
        }
        Ok(())
    }
}

fn parse_pin(text: &str) -> Result<Pin, BenchError> {
    text.parse().map_err(|_| BenchError::Failed(format!("not a pin: {text}")))
}
