//! One connection with its one stream: bytes to write, bytes to read, and how it ended. Opens no socket.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Instant;

use bytes::Bytes;
use quinn::{ConnectionError, Dir, StreamId, VarInt};
use quinn_proto::{
    Connection, ConnectionEvent, ConnectionHandle, Endpoint, Event, ReadError, StreamEvent, WriteError,
};

/// What a read came to.
#[derive(Clone, Debug)]
pub(crate) enum Read {
    /// The next bytes, in order.
    Bytes(Bytes),
    /// Nothing has come yet.
    Pending,
    /// The peer has written all it wanted to.
    End,
}

/// Why the stream takes or gives no more, though the connection may be up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StreamError {
    #[error("stream reset by the other end, code {0}")]
    Reset(VarInt),
    #[error("stream not read by the other end, code {0}")]
    Stopped(VarInt),
    #[error("stream closed")]
    Closed,
}

/// A connection of a [`Drive`](super::Drive).
pub(crate) struct Conn {
    pub(super) inner: Connection,
    pub(super) handle: ConnectionHandle,
    stream: Option<StreamId>,
    /// Given to this connection, not yet taken by its stream.
    outgoing: VecDeque<Bytes>,
    is_connected: bool,
    /// The stream may have bytes.
    is_readable: bool,
    is_delivered: bool,
    lost: Option<ConnectionError>,
    /// Something happened since the last flush: there may be datagrams to send, and another time is due.
    pub(super) is_touched: bool,
    pub(super) is_drained: bool,
    /// The owner has let go of it.
    pub(super) is_released: bool,
    /// When a timer is due.
    pub(super) due: Option<Instant>,
}

impl Conn {
    pub(super) fn new(handle: ConnectionHandle, inner: Connection) -> Self {
        Self {
            inner,
            handle,
            stream: None,
            outgoing: VecDeque::new(),
            is_connected: false,
            is_readable: true,
            is_delivered: false,
            lost: None,
            is_touched: true,
            is_drained: false,
            is_released: false,
            due: None,
        }
    }

    // # Events in

    pub(super) fn handle(&mut self, event: ConnectionEvent) {
        self.inner.handle_event(event);
        self.is_touched = true;
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.inner.handle_timeout(now);
        self.is_touched = true;
    }

    /// Takes note of what the protocol says, and lets it talk to its endpoint.
    pub(super) fn settle(&mut self, endpoint: &mut Endpoint) {
        while let Some(event) = self.inner.poll_endpoint_events() {
            self.is_drained |= event.is_drained();
            if let Some(event) = endpoint.handle_event(self.handle, event) {
                self.inner.handle_event(event);
            }
        }
        while let Some(event) = self.inner.poll() {
            match event {
                Event::Connected => self.is_connected = true,
                Event::ConnectionLost { reason } => self.lost = Some(reason),
                Event::Stream(StreamEvent::Finished { .. } | StreamEvent::Stopped { .. }) => {
                    self.is_delivered = true;
                }
                Event::Stream(StreamEvent::Readable { .. }) => self.is_readable = true,
                // What can be written or opened is found by trying.
                Event::Stream(_)
                | Event::HandshakeDataReady
                | Event::DatagramReceived
                | Event::DatagramsUnblocked => {}
            }
        }
    }

    // # The stream

    /// Opens the stream, as the coordinator does; `false` if the peer does not allow it yet.
    pub(crate) fn open(&mut self) -> bool {
        self.stream = self.stream.or_else(|| self.inner.streams().open(Dir::Bi));
        self.stream.is_some()
    }

    /// Takes the stream that the peer has opened; `false` if it has not.
    pub(crate) fn accept(&mut self) -> bool {
        self.stream = self.stream.or_else(|| self.inner.streams().accept(Dir::Bi));
        self.stream.is_some()
    }

    /// Adds bytes to be written.
    pub(crate) fn queue(&mut self, bytes: Bytes) {
        self.outgoing.push_back(bytes);
    }

    /// Writes as much as the stream takes; `false` if some is left for later.
    pub(crate) fn write(&mut self) -> Result<bool, StreamError> {
        if self.outgoing.is_empty() {
            return Ok(true);
        }
        let mut stream = self.inner.send_stream(self.stream.ok_or(StreamError::Closed)?);
        self.is_touched = true;
        while let Some(first) = self.outgoing.front_mut() {
            match stream.write_chunks(std::slice::from_mut(first)) {
                Ok(_) if first.is_empty() => drop(self.outgoing.pop_front()),
                Ok(_) => {}
                Err(WriteError::Blocked) => return Ok(false),
                Err(WriteError::Stopped(code)) => return Err(StreamError::Stopped(code)),
                Err(WriteError::ClosedStream) => return Err(StreamError::Closed),
            }
        }
        Ok(true)
    }

    /// The next bytes that have arrived.
    pub(crate) fn read(&mut self) -> Result<Read, StreamError> {
        if !self.is_readable {
            return Ok(Read::Pending);
        }
        let mut stream = self.inner.recv_stream(self.stream.ok_or(StreamError::Closed)?);
        let mut chunks = stream.read(true).map_err(|_| StreamError::Closed)?;
        let read = chunks.next(usize::MAX);
        if chunks.finalize().should_transmit() {
            self.is_touched = true;
        }
        match read {
            Ok(Some(chunk)) => Ok(Read::Bytes(chunk.bytes)),
            Ok(None) => Ok(Read::End),
            Err(ReadError::Blocked) => {
                self.is_readable = false;
                Ok(Read::Pending)
            }
            Err(ReadError::Reset(code)) => Err(StreamError::Reset(code)),
        }
    }

    /// Nothing more will be written. `false` if the stream is over already.
    pub(crate) fn finish(&mut self) -> bool {
        self.is_touched = true;
        self.stream.is_some_and(|stream| self.inner.send_stream(stream).finish().is_ok())
    }

    /// Ends the connection. What is on its way is not waited for.
    pub(crate) fn close(&mut self, now: Instant, code: VarInt, reason: Bytes) {
        self.inner.close(now, code, reason);
        self.is_touched = true;
    }

    // # Getters

    pub(crate) fn remote(&self) -> SocketAddr {
        self.inner.remote_address()
    }

    /// Whether the handshake is complete.
    pub(crate) fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// Whether everything written before [`finish`](Self::finish) has arrived, or the peer wants no more of it.
    pub(crate) fn is_delivered(&self) -> bool {
        self.is_delivered
    }

    /// Whether bytes wait for the stream to take them.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// How the other end, or time, ended the connection.
    pub(crate) fn lost(&self) -> Option<&ConnectionError> {
        self.lost.as_ref()
    }
}
