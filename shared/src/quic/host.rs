//! A worker's end on whatever thread turns it: accepts coordinators, computes for them in turns.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use quinn::ServerConfig;
use rustix::event::PollFd;

use super::drive::Drive;
use super::drive::wait::Spin;
use super::path::{self, End};
use super::server::{ServeError, ServeSettings};
use super::visit::Visit;
use super::{restart, tls};
use crate::compute::ExpertBank;
use crate::wire::{CloseCode, Welcome};

/// A socket with this worker's key, and nobody behind it yet.
pub(crate) struct Listener {
    drive: Drive,
    config: ServerConfig,
    mtu: Option<u16>,
    spin: bool,
    quiet: bool,
}

impl Listener {
    pub(crate) fn bind(settings: &ServeSettings) -> Result<Self, ServeError> {
        let ServeSettings { identity, listen, coordinators, mtu, spin } = settings;
        let crypto = tls::server(identity, coordinators.clone());
        let crypto = crypto.map_err(|error| ServeError::Tls(error.to_string()))?;
        let mut config = ServerConfig::with_crypto(Arc::new(crypto));
        config.max_incoming(MAX_STRANGERS);
        let cannot = |error| ServeError::Listen(*listen, error);
        let socket = path::listener(*listen).map_err(cannot)?;
        let mut endpoint = path::endpoint();
        restart::outlive(&mut endpoint, identity);
        let drive = Drive::new(socket, endpoint, Some(config.clone())).map_err(cannot)?;
        Ok(Self { drive, config, mtu: *mtu, spin: *spin, quiet: false })
    }

    /// For coordinators in this process: that they come and go is told at debug.
    pub(crate) fn quiet(self) -> Self {
        Self { quiet: true, ..self }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.drive.address()
    }

    /// Puts a bank behind it.
    pub(crate) fn serve(self, welcome: Welcome, bank: Box<dyn ExpertBank>) -> Host {
        Host {
            listener: self,
            offer: Arc::new(welcome),
            bank,
            visits: Vec::new(),
            next: 0,
            uses: 0,
            spin: Spin::new(false, Instant::now()),
            is_draining: false,
        }
    }
}

/// A worker that serves. `turn` it, and between two turns `sleep`, or sleep on `poll_fd` until `due` and then look.
pub(crate) struct Host {
    listener: Listener,
    offer: Arc<Welcome>,
    bank: Box<dyn ExpertBank>,
    visits: Vec<Visit>,
    /// Whose turn it is to have a call computed.
    next: usize,
    uses: u64,
    spin: Spin,
    is_draining: bool,
}

impl Host {
    /// Moves everything that can be moved, after a look at the socket or without, and computes at most one call. Returns
    /// whether to turn again at once.
    pub(crate) fn turn(&mut self, look: bool) -> bool {
        let now = Instant::now();
        let more = self.listener.drive.advance(look, now);
        while let Some(incoming) = self.listener.drive.poll_incoming() {
            self.take(incoming, now);
        }
        self.step(now);
        // Acknowledgements and window updates do not wait for the bank.
        self.listener.drive.flush(now);
        self.compute() || more
    }

    /// Takes no more calls and tells every coordinator. Go on turning until [`is_empty`](Self::is_empty).
    pub(crate) fn drain(&mut self) {
        self.is_draining = true;
        let now = Instant::now();
        for visit in &mut self.visits {
            if let Some(conn) = self.listener.drive.conn(visit.conn) {
                visit.drain(conn, now);
            }
        }
    }

    /// Closes whatever is left.
    pub(crate) fn close_all(&mut self, close: CloseCode) {
        let now = Instant::now();
        for visit in &mut self.visits {
            if let Some(conn) = self.listener.drive.conn(visit.conn) {
                visit.close(conn, close, now);
            }
        }
        self.step(now);
        self.listener.drive.flush(now);
    }

    // # Getters

    /// Whether no coordinator is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.visits.is_empty()
    }

    /// Whether the last connection has said goodbye, too.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_empty() && self.listener.drive.is_idle()
    }

    /// When to turn again at the latest.
    pub(crate) fn due(&self) -> Option<Instant> {
        let visits = self.visits.iter().filter_map(Visit::due);
        visits.chain(self.listener.drive.due()).min()
    }

    /// Whether to go on looking, rather than to sleep: a coordinator that called just now is likely to call again.
    pub(crate) fn spins_on(&self, now: Instant) -> bool {
        self.spin.goes_on(now)
    }

    /// Sleeps until a datagram comes, something is due, or until then.
    pub(crate) fn sleep(&mut self, until: Option<Instant>) {
        let due = self.due().into_iter().chain(until).min();
        self.listener.drive.sleep(due);
    }

    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        self.listener.drive.poll_fd()
    }

    fn take(&mut self, incoming: quinn_proto::Incoming, now: Instant) {
        let Listener { drive, config, mtu, .. } = &mut self.listener;
        if self.is_draining {
            return drive.refuse(incoming);
        }
        if self.visits.iter().filter(|visit| visit.is_handshaking()).count() >= MAX_STRANGERS {
            return drive.ignore(incoming);
        }
        let remote = incoming.remote_address();
        // The datagram size depends on where the coordinator is, so the settings are made for each.
        let mut config = config.clone();
        let bound = path::datagram_bound(remote.ip(), *mtu);
        config.transport_config(Arc::new(path::transport(bound, End::Worker)));
        match drive.accept(incoming, config, now) {
            Ok(conn) => self.visits.push(Visit::new(conn, remote, self.listener.quiet, now)),
            Err(reason) => tracing::warn!(%remote, %reason, "a connection was not accepted"),
        }
    }

    fn step(&mut self, now: Instant) {
        for at in 0..self.visits.len() {
            let visit = &mut self.visits[at];
            let Some(conn) = self.listener.drive.conn(visit.conn) else { continue };
            let was_handshaking = visit.is_handshaking();
            visit.step(conn, &self.offer, now);
            if was_handshaking && !visit.is_handshaking() && !visit.is_gone() {
                self.admit(at, now);
            }
        }
        let drive = &mut self.listener.drive;
        self.visits.retain(|visit| {
            if visit.is_gone() {
                drive.release(visit.conn);
            }
            !visit.is_gone()
        });
    }

    /// Makes room for a coordinator that has proved who it is: one that has died unnoticed must not shut others out.
    fn admit(&mut self, at: usize, now: Instant) {
        self.uses += 1;
        self.visits[at].used = self.uses;
        let admitted = |visit: &&mut Visit| !visit.is_handshaking() && !visit.is_gone();
        if self.visits.iter_mut().filter(admitted).count() <= MAX_COORDINATORS {
            return;
        }
        let idle = self.visits.iter_mut().filter(admitted).min_by_key(|visit| visit.used);
        if let Some(idle) = idle
            && let Some(conn) = self.listener.drive.conn(idle.conn)
        {
            let remote = idle.remote();
            tracing::warn!(%remote, "the connection idle longest makes room for a new one");
            idle.close(conn, CloseCode::Crowded, now);
        }
    }

    /// Computes one call of whoever's turn it is, and sends the answer.
    fn compute(&mut self) -> bool {
        let Self { listener, bank, visits, next, uses, spin, .. } = self;
        let Listener { drive, spin: spins, .. } = listener;
        for turn in 0..visits.len() {
            let at = (*next + turn) % visits.len();
            let visit = &mut visits[at];
            let Some(conn) = drive.conn(visit.conn) else { continue };
            if !visit.has_call(conn) {
                continue;
            }
            visit.compute(conn, &mut **bank);
            *uses += 1;
            visit.used = *uses;
            *next = at + 1;
            let now = Instant::now();
            drive.flush(now);
            *spin = Spin::new(*spins, now);
            return true;
        }
        false
    }
}

/// Connections of admitted coordinators at a time.
const MAX_COORDINATORS: usize = 8;

/// Connections that have not yet proved who they are, at a time. Others may ask again.
const MAX_STRANGERS: usize = 64;
