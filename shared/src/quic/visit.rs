//! One coordinator's visit to a worker: from its first datagram to the close.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::drive::{Conn, ConnId, Read, StreamError};
use super::end;
use crate::compute::ExpertBank;
use crate::session::{Server, ServerEnd};
use crate::wire::{CloseCode, Welcome};

/// A coordinator, or a stranger who may become one.
#[derive(Debug)]
pub(crate) struct Visit {
    pub(crate) conn: ConnId,
    remote: SocketAddr,
    /// Whether the coordinator is this process itself, whose coming and going is no news.
    quiet: bool,
    stage: Stage,
    /// When it was last of use, counted in uses of any visit.
    pub(crate) used: u64,
}

#[derive(Debug)]
enum Stage {
    /// Has until then to prove who it is.
    Handshaking(Instant),
    /// Has until then to open its stream.
    Opening(Instant),
    Serving(Box<Server>),
    /// The last bytes have until then to arrive: a close would discard them, and the last frame says why.
    Leaving(Instant, CloseCode),
    Gone,
}

impl Visit {
    pub(crate) fn new(conn: ConnId, remote: SocketAddr, quiet: bool, now: Instant) -> Self {
        Self { conn, remote, quiet, stage: Stage::Handshaking(now + HANDSHAKE_LIMIT), used: 0 }
    }

    /// Moves bytes and stages as far as they go at once.
    pub(crate) fn step(&mut self, conn: &mut Conn, offer: &Arc<Welcome>, now: Instant) {
        let Self { remote, .. } = *self;
        if let Stage::Handshaking(until) = self.stage {
            if let Some(reason) = conn.lost() {
                tracing::warn!(%remote, %reason, "a connection was not accepted");
                self.stage = Stage::Gone;
            } else if conn.is_connected() {
                self.stage = Stage::Opening(now + HANDSHAKE_LIMIT);
            } else if now >= until {
                tracing::warn!(%remote, "a connection was given up during its handshake");
                self.close(conn, CloseCode::TimedOut, now);
            }
        }
        if let Stage::Opening(until) = self.stage {
            if conn.accept() {
                if self.quiet {
                    tracing::debug!(%remote, "coordinator connected");
                } else {
                    tracing::info!(%remote, "coordinator connected");
                }
                self.stage = Stage::Serving(Box::new(Server::new(offer.clone(), now)));
            } else if conn.lost().is_some() || now >= until {
                tracing::warn!(%remote, "a coordinator connected and asked for nothing");
                self.close(conn, CloseCode::TimedOut, now);
            }
        }
        if let Stage::Serving(server) = &mut self.stage {
            if let Err(error) = converse(server, conn, now) {
                let reason = conn.lost().map_or_else(|| error.to_string(), ToString::to_string);
                server.handle_closed(reason);
            }
            self.part(conn, now);
        }
        if let Stage::Leaving(until, close) = self.stage
            && (conn.is_delivered() || conn.lost().is_some() || now >= until)
        {
            self.close(conn, close, now);
        }
    }

    /// Computes one call. What it answers leaves with the next flush.
    pub(crate) fn compute(&mut self, conn: &mut Conn, bank: &mut dyn ExpertBank) {
        if let Stage::Serving(server) = &mut self.stage {
            server.run_next(bank, Instant::now);
            // An error shows again at the next step.
            let _ = write(server, conn);
        }
    }

    /// Takes no more calls, and leaves.
    pub(crate) fn drain(&mut self, conn: &mut Conn, now: Instant) {
        match &mut self.stage {
            Stage::Handshaking(_) | Stage::Opening(_) => self.close(conn, CloseCode::Draining, now),
            Stage::Serving(server) => server.drain(),
            Stage::Leaving(..) | Stage::Gone => {}
        }
    }

    /// Closes whatever the stage, and is gone.
    pub(crate) fn close(&mut self, conn: &mut Conn, close: CloseCode, now: Instant) {
        conn.close(now, end::code(close), close.to_string().into());
        self.stage = Stage::Gone;
    }

    // # Getters

    pub(crate) fn remote(&self) -> SocketAddr {
        self.remote
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        matches!(self.stage, Stage::Handshaking(_))
    }

    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.stage, Stage::Gone)
    }

    /// Whether a call waits to be computed, and its answer could be sent.
    pub(crate) fn has_call(&self, conn: &Conn) -> bool {
        matches!(&self.stage, Stage::Serving(server) if server.has_call()) && !conn.is_blocked()
    }

    /// When to step again at the latest.
    pub(crate) fn due(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Handshaking(until) | Stage::Opening(until) | Stage::Leaving(until, _) => Some(*until),
            Stage::Serving(server) => server.poll_timeout(),
            Stage::Gone => None,
        }
    }

    /// Leaves a session that is over, once everything it had to say was written.
    fn part(&mut self, conn: &mut Conn, now: Instant) {
        let Stage::Serving(server) = &self.stage else { return };
        let Some(end) = server.end() else { return };
        if conn.lost().is_none() && conn.is_blocked() && !matches!(end, ServerEnd::Gone(_)) {
            return;
        }
        let remote = self.remote;
        match end {
            ServerEnd::Gone(_) | ServerEnd::Draining if self.quiet => {
                tracing::debug!(%remote, calls = server.answered(), %end, "coordinator gone");
            }
            ServerEnd::Gone(_) | ServerEnd::Draining => {
                tracing::info!(%remote, calls = server.answered(), %end, "coordinator gone");
            }
            end => tracing::warn!(%remote, %end, "coordinator turned away"),
        }
        let until = if conn.finish() { now + FAREWELL } else { now };
        self.stage = Stage::Leaving(until, end.close_code());
    }
}

/// Reads calls and writes answers. Reads no more than was computed and could be answered: a coordinator that does not
/// listen is not listened to.
fn converse(server: &mut Server, conn: &mut Conn, now: Instant) -> Result<(), StreamError> {
    if server.poll_timeout().is_some_and(|due| due <= now) {
        server.handle_timeout(now);
    }
    loop {
        if !write(server, conn)? || server.has_call() || server.end().is_some() {
            return Ok(());
        }
        match conn.read()? {
            Read::Bytes(bytes) => server.handle_bytes(&bytes, now),
            Read::End => server.handle_closed("stream ended".to_owned()),
            Read::Pending => {
                if let Some(reason) = conn.lost() {
                    server.handle_closed(reason.to_string());
                }
                return Ok(());
            }
        }
    }
}

/// Writes what the session has to say; `false` if some is left for later.
fn write(server: &mut Server, conn: &mut Conn) -> Result<bool, StreamError> {
    while let Some(bytes) = server.poll_transmit() {
        conn.queue(bytes);
    }
    conn.write()
}

/// For a stranger to prove who it is.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// For the last bytes of a session to arrive.
pub(crate) const FAREWELL: Duration = Duration::from_millis(500);
