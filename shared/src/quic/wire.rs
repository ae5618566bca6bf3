//! Bytes between one session and one connection's stream, as far as they go without blocking.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use quinn::{Connection, ConnectionError, RecvStream, SendStream};

use super::end;
use super::probe::{INTERVAL, PATIENCE, Probe};
use crate::session::{Caller, Fault};
use crate::wire::CloseCode;

/// The coordinator's connection to one worker.
pub(crate) struct Wire {
    connection: Connection,
    send: SendStream,
    recv: RecvStream,
    /// Accepted from the session, not yet by the stream.
    pending: VecDeque<Bytes>,
    probe: Option<Probe>,
    next_probe: Option<Instant>,
    /// The close that follows the end of the stream.
    end: Option<Pin<Box<dyn Future<Output = ConnectionError> + Send>>>,
}

impl Wire {
    pub(crate) fn new(connection: Connection, send: SendStream, recv: RecvStream) -> Self {
        Self { connection, send, recv, pending: VecDeque::new(), probe: None, next_probe: None, end: None }
    }

    /// Moves what can be moved; `cx` is woken when to try again.
    pub(crate) fn poll(&mut self, caller: &mut Caller, cx: &mut Context<'_>) {
        if caller.fault().is_none()
            && let Err(fault) = self.write(caller, cx).and_then(|()| self.read(caller, cx))
        {
            caller.handle_closed(fault);
        }
    }

    /// Writes what the stream takes now.
    pub(crate) fn write(&mut self, caller: &mut Caller, cx: &mut Context<'_>) -> Result<(), Fault> {
        while let Some(bytes) = caller.poll_transmit() {
            self.pending.push_back(bytes);
        }
        while let Some(first) = self.pending.front_mut() {
            let written = pin!(self.send.write_chunks(std::slice::from_mut(first))).poll(cx);
            match written {
                Poll::Ready(Ok(_)) if first.is_empty() => drop(self.pending.pop_front()),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Err(end::of_write(error)),
                Poll::Pending => break,
            }
        }
        Ok(())
    }

    fn read(&mut self, caller: &mut Caller, cx: &mut Context<'_>) -> Result<(), Fault> {
        if self.end.is_some() {
            return self.read_end(cx);
        }
        loop {
            let chunk = pin!(self.recv.read_chunk(usize::MAX, true)).poll(cx);
            match chunk {
                Poll::Ready(Ok(Some(chunk))) => caller.handle_bytes(&chunk.bytes, Instant::now()),
                Poll::Ready(Ok(None)) => return self.read_end(cx),
                Poll::Ready(Err(error)) => return Err(end::of_read(error)),
                Poll::Pending => return Ok(()),
            }
        }
    }

    /// The worker finishes its stream before it closes; the close says why and follows at once, or the deadline passes.
    fn read_end(&mut self, cx: &mut Context<'_>) -> Result<(), Fault> {
        let connection = self.connection.clone();
        let end = self.end.get_or_insert_with(|| Box::pin(async move { connection.closed().await }));
        match end.as_mut().poll(cx) {
            Poll::Ready(error) => Err(end::of_connection(error)),
            Poll::Pending => Ok(()),
        }
    }

    /// When the worker is to be asked for, given the oldest call in flight.
    pub(crate) fn probe_due(&self, caller: &Caller) -> Option<Instant> {
        let oldest = caller.oldest_call()? + PATIENCE;
        Some(self.next_probe.map_or(oldest, |next| next.max(oldest)))
    }

    /// Asks for the worker if that is due.
    pub(crate) fn ask(&mut self, caller: &mut Caller, now: Instant) {
        if self.probe_due(caller).is_none_or(|due| now < due) {
            return;
        }
        self.next_probe = Some(now + INTERVAL);
        if self.probe.is_none() {
            match Probe::new(self.connection.remote_address()) {
                Ok(probe) => self.probe = Some(probe),
                Err(error) => tracing::debug!(%error, "no probe: the call's deadline has to do"),
            }
        }
        if let Some(Err(gone)) = self.probe.as_mut().map(Probe::ask) {
            caller.handle_closed(Fault::PeerGone(gone));
        }
    }

    /// Closes with a code. The bytes leave when the runtime runs next.
    pub(crate) fn close(&self, close: CloseCode) {
        self.connection.close(end::code(close), close.to_string().as_bytes());
    }
}
