//! Raw UDP, blocking or spinning: the least that a round trip between two processes costs. No acknowledgements but those without
//! which a large message would overrun the socket buffer; no recovery either: a lost datagram is an error.

use std::hint;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};

use super::payload::Sizes;
use super::{Exchange, Wait};
use crate::child::{Child, Launch, Role, say};
use crate::error::BenchError;

/// An answering child.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct UdpRole {
    /// How long its messages are.
    pub sizes: Sizes,
    /// How it waits for them.
    pub wait: Wait,
}

/// One socket to each child.
pub struct Udp {
    peers: Vec<(Wire, Child)>,
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl Udp {
    /// Starts the children.
    ///
    /// # Errors
    /// If one does not start.
    pub fn start(sizes: Sizes, wait: Wait, workers: usize, launch: &Launch) -> Result<Self, BenchError> {
        let peer = |_| {
            let mut child = Child::start(&Role::Udp(UdpRole { sizes, wait }), launch)?;
            let address: SocketAddr = child.hear()?;
            let wire = socket(Some(LOST_AFTER)).and_then(|socket| Wire::new(socket, address, wait));
            Ok((wire.map_err(BenchError::io("UDP socket"))?, child))
        };
        let peers = (0..workers).map(peer).collect::<Result<_, BenchError>>()?;
        Ok(Self { peers, request: vec![1; sizes.request], reply: vec![0; sizes.reply] })
    }
}

impl Exchange for Udp {
    fn call(&mut self) -> Result<(), BenchError> {
        let lost = || BenchError::io("raw UDP (a datagram may be lost)");
        for (wire, _) in &self.peers {
            wire.send(&self.request).map_err(lost())?;
        }
        for (wire, _) in &self.peers {
            wire.receive(&mut self.reply).map_err(lost())?;
        }
        Ok(())
    }
}

/// The child: answers whoever speaks first, for ever.
///
/// # Errors
/// If the socket fails.
pub fn serve(role: UdpRole) -> Result<(), BenchError> {
    let socket = socket(None).map_err(BenchError::io("UDP socket"))?;
    say(&socket.local_addr().map_err(BenchError::io("UDP socket"))?)?;
    answer(socket, role).map_err(BenchError::io("raw UDP"))
}

/// Ends with an error only.
fn answer(socket: UdpSocket, UdpRole { sizes, wait }: UdpRole) -> io::Result<()> {
    let (mut request, reply) = (vec![0; sizes.request], vec![2; sizes.reply]);
    let (_, parent) = socket.peek_from(&mut [0])?;
    let wire = Wire::new(socket, parent, wait)?;
    loop {
        wire.receive(&mut request)?;
        wire.send(&reply)?;
    }
}

/// A socket with its one peer.
struct Wire {
    socket: UdpSocket,
    wait: Wait,
}

impl Wire {
    fn new(socket: UdpSocket, peer: SocketAddr, wait: Wait) -> io::Result<Self> {
        socket.connect(peer)?;
        socket.set_nonblocking(wait == Wait::Spin)?;
        Ok(Self { socket, wait })
    }

    /// Sends one message: all at once if it fits the window, else as credit comes back.
    fn send(&self, message: &[u8]) -> io::Result<()> {
        let mut credit = WINDOW;
        for datagram in message.chunks(DATAGRAM) {
            if credit == 0 {
                self.take(&mut [0])?;
                credit = BATCH;
            }
            self.socket.send(datagram)?;
            credit -= 1;
        }
        Ok(())
    }

    fn receive(&self, message: &mut [u8]) -> io::Result<()> {
        let mut credits = credits(message.len());
        for (n, datagram) in message.chunks_mut(DATAGRAM).enumerate() {
            let expected = datagram.len();
            if self.take(datagram)? != expected {
                return Err(io::Error::other("a datagram of another length"));
            }
            if (n + 1) % BATCH == 0 && credits > 0 {
                self.socket.send(&[0])?;
                credits -= 1;
            }
        }
        Ok(())
    }

    /// Waits for a datagram, as the project's own links do: spinning for a while if that is wanted, then asleep.
    fn take(&self, datagram: &mut [u8]) -> io::Result<usize> {
        if self.wait == Wait::Block {
            return self.socket.recv(datagram);
        }
        let began = Instant::now();
        loop {
            match self.socket.recv(datagram) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                taken => return taken,
            }
            if began.elapsed() > SPIN {
                break;
            }
            hint::spin_loop();
        }
        self.socket.set_nonblocking(false)?;
        let taken = self.socket.recv(datagram);
        self.socket.set_nonblocking(true)?;
        taken
    }
}

/// How often a message's sender waits for credit.
const fn credits(len: usize) -> usize {
    len.div_ceil(DATAGRAM).saturating_sub(WINDOW).div_ceil(BATCH)
}

fn socket(timeout: Option<Duration>) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_send_buffer_size(BUFFER)?;
    socket.set_recv_buffer_size(BUFFER)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    let socket: UdpSocket = socket.into();
    socket.set_read_timeout(timeout)?;
    Ok(socket)
}

/// Bytes of a datagram: near the most that IPv4 has.
const DATAGRAM: usize = 61_440;

/// Datagrams that may lie in a socket buffer, and how many one credit is worth.
const WINDOW: usize = 48;
const BATCH: usize = 24;

/// Bytes of a socket buffer, as the project's own sockets have.
const BUFFER: usize = 4 * 1024 * 1024;

/// How long a spinning end looks before it sleeps; as the links' own.
const SPIN: Duration = Duration::from_millis(4);

/// After this a datagram is not late.
const LOST_AFTER: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_any_size_arrive() {
        for wait in [Wait::Block, Wait::Spin] {
            let (a, b) = (socket(Some(LOST_AFTER)).unwrap(), socket(Some(LOST_AFTER)).unwrap());
            let (to_a, to_b) = (a.local_addr().unwrap(), b.local_addr().unwrap());
            let (a, b) = (Wire::new(a, to_b, wait).unwrap(), Wire::new(b, to_a, wait).unwrap());
            for len in [1, DATAGRAM, DATAGRAM + 1, WINDOW * DATAGRAM, 105 * DATAGRAM + 5] {
                let message: Vec<u8> = (0..len).map(|n| (n % 253) as u8).collect();
                let mut got = vec![0; len];
                std::thread::scope(|scope| {
                    scope.spawn(|| a.send(&message).unwrap());
                    b.receive(&mut got).unwrap();
                });
                assert!(got == message, "{len} bytes");
            }
            // No credit is left over to be taken for the next message's.
            a.socket.set_nonblocking(true).unwrap();
            assert!(a.socket.recv(&mut [0]).is_err());
        }
    }
}
