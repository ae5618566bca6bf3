//! The connections of one socket: datagrams to the right one, timers when they are due, and back onto the wire.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Instant;

use quinn::{ClientConfig, ConnectError, ConnectionError, EndpointConfig, ServerConfig, Transmit};
use quinn_proto::{ConnectionHandle, DatagramEvent, Endpoint, Incoming};
use rustix::event::{PollFd, PollFlags};

use super::conn::Conn;
use super::socket::{Datagram, Socket};
use super::wait::sleep;

/// A connection of one [`Drive`]; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnId(u64);

/// A socket and its connections.
pub(crate) struct Drive {
    socket: Socket,
    address: SocketAddr,
    endpoint: Endpoint,
    /// A handful: looking through them is quicker than any table.
    conns: Vec<(ConnId, Conn)>,
    next: u64,
    arrivals: VecDeque<Incoming>,
    arrived: Vec<Datagram>,
    /// The socket was, when last looked at.
    is_empty: bool,
    packet: Vec<u8>,
    /// Lies in `packet` until the kernel has room for it.
    stuck: Option<Transmit>,
    response: Vec<u8>,
}

impl Drive {
    /// `server` is what connections from outside start with; without one there are none.
    pub(crate) fn new(
        socket: UdpSocket,
        config: EndpointConfig,
        server: Option<ServerConfig>,
    ) -> io::Result<Self> {
        let address = socket.local_addr()?;
        let socket = Socket::new(socket)?;
        let endpoint = Endpoint::new(Arc::new(config), server.map(Arc::new), !socket.may_fragment(), None);
        Ok(Self {
            socket,
            address,
            endpoint,
            conns: Vec::new(),
            next: 0,
            arrivals: VecDeque::new(),
            arrived: Vec::new(),
            is_empty: false,
            packet: Vec::new(),
            stuck: None,
            response: Vec::new(),
        })
    }

    // # Connections

    /// Begins to connect.
    pub(crate) fn connect(
        &mut self,
        config: ClientConfig,
        remote: SocketAddr,
        name: &str,
        now: Instant,
    ) -> Result<ConnId, ConnectError> {
        let (handle, inner) = self.endpoint.connect(now, config, remote, name)?;
        Ok(self.add(handle, inner))
    }

    /// A stranger that wants to connect: to be accepted, refused or ignored.
    pub(crate) fn poll_incoming(&mut self) -> Option<Incoming> {
        self.arrivals.pop_front()
    }

    /// Lets it try to prove who it is.
    pub(crate) fn accept(
        &mut self,
        incoming: Incoming,
        config: ServerConfig,
        now: Instant,
    ) -> Result<ConnId, ConnectionError> {
        self.response.clear();
        match self.endpoint.accept(incoming, now, &mut self.response, Some(Arc::new(config))) {
            Ok((handle, inner)) => Ok(self.add(handle, inner)),
            Err(error) => {
                if let Some(transmit) = error.response {
                    self.respond(&transmit);
                }
                Err(error.cause)
            }
        }
    }

    /// Turns it away with a word.
    pub(crate) fn refuse(&mut self, incoming: Incoming) {
        self.response.clear();
        let transmit = self.endpoint.refuse(incoming, &mut self.response);
        self.respond(&transmit);
    }

    /// Turns it away without one: it may ask again.
    pub(crate) fn ignore(&mut self, incoming: Incoming) {
        self.endpoint.ignore(incoming);
    }

    /// A connection that was not released.
    pub(crate) fn conn(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.conns.iter_mut().find(|(other, _)| *other == id).map(|(_, conn)| conn)
    }

    /// The owner is done with a closed or lost connection; it is dropped once the protocol is, too.
    pub(crate) fn release(&mut self, id: ConnId) {
        if let Some(conn) = self.conn(id) {
            conn.is_released = true;
            conn.is_touched = true;
        }
    }

    /// Whether no connection is left, not even one that says goodbye.
    pub(crate) fn is_idle(&self) -> bool {
        self.conns.iter().all(|(_, conn)| conn.is_drained)
    }

    /// Where the socket is bound.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    // # A turn

    /// Takes in what has arrived and what time has brought. Returns whether there is more to take in at once.
    ///
    /// Without a `look` at the socket only what [`sleep`](Self::sleep) has found is taken in. Timers wait until the socket
    /// was seen empty.
    pub(crate) fn advance(&mut self, look: bool, now: Instant) -> bool {
        if look {
            self.is_empty = !self.socket.receive(&mut self.arrived);
        }
        let is_empty = std::mem::take(&mut self.is_empty);
        let mut arrived = std::mem::take(&mut self.arrived);
        arrived.drain(..).for_each(|datagram| self.handle(datagram, now));
        self.arrived = arrived;
        let Self { endpoint, conns, .. } = self;
        for (_, conn) in conns {
            if is_empty && conn.due.is_some_and(|due| due <= now) {
                conn.handle_timeout(now);
            }
            if conn.is_touched {
                conn.settle(endpoint);
            }
        }
        look && !is_empty
    }

    /// Sends whatever the connections have to send, as far as the kernel takes it.
    pub(crate) fn flush(&mut self, now: Instant) {
        let Self { socket, endpoint, conns, packet, stuck, .. } = self;
        if let Some(transmit) = stuck.take()
            && !socket.send(&transmit, packet)
        {
            *stuck = Some(transmit);
            return;
        }
        let mut over = false;
        for (_, conn) in conns.iter_mut().filter(|(_, conn)| conn.is_touched) {
            loop {
                packet.clear();
                let batch = socket.batch(conn.inner.current_mtu());
                let Some(transmit) = conn.inner.poll_transmit(now, batch, packet) else { break };
                if !socket.send(&transmit, packet) {
                    *stuck = Some(transmit);
                    return;
                }
            }
            conn.settle(endpoint);
            conn.is_touched = false;
            conn.due = conn.inner.poll_timeout();
            over |= conn.is_released && conn.is_drained;
        }
        if over {
            conns.retain(|(_, conn)| !(conn.is_released && conn.is_drained));
        }
    }

    /// Sleeps until a datagram comes or time has; wakes early now and then.
    pub(crate) fn sleep(&mut self, until: Option<Instant>) {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let before = self.arrived.len();
        if self.stuck.is_none() && self.socket.sleep(left, &mut self.arrived) {
            self.is_empty = self.arrived.len() == before;
        } else {
            sleep(&mut [self.poll_fd()], until);
            self.is_empty = !self.socket.receive(&mut self.arrived);
        }
    }

    /// When the next timer is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.conns.iter().filter_map(|(_, conn)| conn.due).min()
    }

    /// What to sleep on.
    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        let writable = if self.stuck.is_some() { PollFlags::OUT } else { PollFlags::empty() };
        PollFd::new(&self.socket, PollFlags::IN | writable)
    }

    fn handle(&mut self, datagram: Datagram, now: Instant) {
        let Self { endpoint, conns, arrivals, response, .. } = self;
        let Datagram { from, to, ecn, bytes } = datagram;
        response.clear();
        match endpoint.handle(now, from, to, ecn, bytes, response) {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                let conn = conns.iter_mut().find(|(_, conn)| conn.handle == handle && !conn.is_drained);
                if let Some((_, conn)) = conn {
                    conn.handle(event);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => arrivals.push_back(incoming),
            Some(DatagramEvent::Response(transmit)) => self.respond(&transmit),
            None => {}
        }
    }

    /// Sends an answer to nobody in particular, if there is room: whoever needs it will ask again.
    fn respond(&self, transmit: &Transmit) {
        self.socket.send(transmit, &self.response);
    }

    fn add(&mut self, handle: ConnectionHandle, inner: quinn_proto::Connection) -> ConnId {
        let id = ConnId(self.next);
        self.next += 1;
        self.conns.push((id, Conn::new(handle, inner)));
        id
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        while let Some(incoming) = self.arrivals.pop_front() {
            self.endpoint.ignore(incoming);
        }
    }
}
