//! The worker's end: one socket, one thread that reads it and computes.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use laguna_topology::Pin;

use super::host::{Host, Listener};
use super::identity::{Identity, IdentityError};
use super::stop::Stopper;
use super::visit::FAREWELL;
use crate::compute::ExpertBank;
use crate::wire::{CloseCode, Welcome};

/// Where a worker listens, and for whom.
#[derive(Clone, Debug)]
pub struct ServeSettings {
    /// Who this worker is.
    pub identity: Identity,
    /// Address and UDP port to listen at; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Certificates of the coordinators that are admitted.
    pub coordinators: Vec<Pin>,
    /// Bytes of UDP payload to send at most, `1200..=65507`; `None` chooses by path. Probing finds what really passes.
    pub mtu: Option<u16>,
    /// Whether to spin for a while after each call, rather than to sleep at once: see [`spins`](super::spins).
    pub spin: bool,
}

/// Why a worker cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address is taken, not this host's, or not allowed.
    #[error("cannot listen at {0}: {1}")]
    Listen(SocketAddr, io::Error),
    /// The keys cannot be used.
    #[error("cannot use this worker's key: {0}")]
    Tls(String),
    /// The keys cannot be made.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The socket through which the worker is stopped cannot be made.
    #[error("cannot start: {0}")]
    Start(io::Error),
}

/// A worker that listens and does not answer yet.
pub struct QuicServer {
    listener: Listener,
    stop: Stopper,
}

impl QuicServer {
    /// Takes the address.
    pub fn bind(settings: &ServeSettings) -> Result<Self, ServeError> {
        let listener = Listener::bind(settings)?;
        let stop = Stopper::new(listener.address()).map_err(ServeError::Start)?;
        Ok(Self { listener, stop })
    }

    /// Where it listens, the port resolved.
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.address()
    }

    /// What ends [`run`](Self::run).
    pub fn stopper(&self) -> Stopper {
        self.stop.clone()
    }

    /// Serves until told to stop; then finishes the running call, tells every coordinator, and returns.
    ///
    /// `bank` is used on the calling thread only; `stopping` is called there once, before the coordinators are told.
    pub fn run(self, welcome: Welcome, bank: Box<dyn ExpertBank>, stopping: impl FnOnce()) {
        let Self { listener, stop } = self;
        let mut host = listener.serve(welcome, bank);
        // A worker that sleeps finds a call by being woken with it; one that computes one call after another looks.
        let (mut look, mut busy) = (true, false);
        while !stop.is_wanted() {
            let again = host.turn(look);
            let spins = host.spins_on(Instant::now());
            if !again && !spins {
                host.sleep(None);
            }
            look = spins || again && busy;
            busy = again;
        }
        stopping();
        host.drain();
        turn_until(&mut host, DRAIN_LIMIT, Host::is_empty);
        host.close_all(CloseCode::Draining);
        turn_until(&mut host, FAREWELL, Host::is_idle);
    }
}

fn turn_until(host: &mut Host, limit: Duration, is_over: impl Fn(&Host) -> bool) {
    let end = Instant::now() + limit;
    loop {
        let again = host.turn(true);
        if is_over(host) || Instant::now() >= end {
            return;
        }
        if !again {
            host.sleep(Some(end));
        }
    }
}

/// For every session to end after a drain: the running call has returned by then, so only replies are on their way.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);
