//! Bytes between the coordinator's session with one worker and the connection to it, as far as they go at once.

use std::time::Instant;

use quinn::ConnectionError;

use super::drive::{Conn, ConnId, Read, StreamError};
use super::end;
use super::probe::{INTERVAL, PATIENCE, Probe};
use crate::session::{Caller, Fault};

/// The coordinator's connection to one worker.
#[derive(Debug)]
pub(crate) struct Wire {
    /// Where in its drive it is.
    pub(crate) conn: ConnId,
    probe: Option<Probe>,
    next_probe: Option<Instant>,
    /// The worker has finished its stream: the close that says why comes next.
    has_ended: bool,
}

impl Wire {
    pub(crate) fn new(conn: ConnId) -> Self {
        Self { conn, probe: None, next_probe: None, has_ended: false }
    }

    /// Moves what can be moved.
    pub(crate) fn pump(&mut self, conn: &mut Conn, caller: &mut Caller) {
        if caller.fault().is_none()
            && let Err(fault) = self.write(conn, caller).and_then(|()| self.read(conn, caller))
        {
            caller.handle_closed(fault);
        }
    }

    /// Writes what the stream takes now.
    pub(crate) fn write(&mut self, conn: &mut Conn, caller: &mut Caller) -> Result<(), Fault> {
        while let Some(bytes) = caller.poll_transmit() {
            conn.queue(bytes);
        }
        conn.write().map(drop).map_err(|error| broken(conn, error))
    }

    fn read(&mut self, conn: &mut Conn, caller: &mut Caller) -> Result<(), Fault> {
        while !self.has_ended {
            match conn.read().map_err(|error| broken(conn, error))? {
                Read::Bytes(bytes) => caller.handle_bytes(&bytes, Instant::now()),
                Read::Pending => break,
                // The worker finishes before it closes; the close follows at once, or the deadline passes.
                Read::End => self.has_ended = true,
            }
        }
        conn.lost().map_or(Ok(()), |error| Err(end::of_connection(ConnectionError::clone(error))))
    }

    /// When the worker is to be asked for, given the oldest call in flight.
    pub(crate) fn probe_due(&self, caller: &Caller) -> Option<Instant> {
        let oldest = caller.oldest_call()? + PATIENCE;
        Some(self.next_probe.map_or(oldest, |next| next.max(oldest)))
    }

    /// Asks for the worker if that is due.
    pub(crate) fn ask(&mut self, conn: &Conn, caller: &mut Caller, now: Instant) {
        if self.probe_due(caller).is_none_or(|due| now < due) {
            return;
        }
        self.next_probe = Some(now + INTERVAL);
        if self.probe.is_none() {
            match Probe::new(conn.remote()) {
                Ok(probe) => self.probe = Some(probe),
                Err(error) => tracing::debug!(%error, "no probe: the call's deadline has to do"),
            }
        }
        if let Some(Err(gone)) = self.probe.as_mut().map(Probe::ask) {
            caller.handle_closed(Fault::PeerGone(gone));
        }
    }
}

/// A lost connection says more than the stream it took along.
fn broken(conn: &Conn, error: StreamError) -> Fault {
    conn.lost().cloned().map_or_else(|| end::of_stream(error), end::of_connection)
}
