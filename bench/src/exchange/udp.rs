//! Raw UDP, blocking: the least that a round trip between two processes costs. No acknowledgements but those without
//! which a large message would overrun the socket buffer; no recovery either: a lost datagram is an error.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use super::Exchange;
use super::payload::Sizes;
use crate::child::{Child, Launch, Role, say};
use crate::error::BenchError;

/// One socket to each child.
pub struct Udp {
    peers: Vec<(UdpSocket, Child)>,
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl Udp {
    /// Starts the children.
    ///
    /// # Errors
    /// If one does not start.
    pub fn start(sizes: Sizes, workers: usize, launch: &Launch) -> Result<Self, BenchError> {
        let peer = |_| {
            let mut child = Child::start(&Role::Udp(sizes), launch)?;
            let address: SocketAddr = child.hear()?;
            let socket = socket(Some(LOST_AFTER)).and_then(|socket| {
                socket.connect(address)?;
                Ok(socket)
            });
            Ok((socket.map_err(BenchError::io("UDP socket"))?, child))
        };
        let peers = (0..workers).map(peer).collect::<Result<_, BenchError>>()?;
        Ok(Self { peers, request: vec![1; sizes.request], reply: vec![0; sizes.reply] })
    }
}

impl Exchange for Udp {
    fn call(&mut self) -> Result<(), BenchError> {
        let lost = || BenchError::io("raw UDP (a datagram may be lost)");
        for (socket, _) in &self.peers {
            send(socket, &self.request).map_err(lost())?;
        }
        for (socket, _) in &self.peers {
            receive(socket, &mut self.reply).map_err(lost())?;
        }
        Ok(())
    }
}

/// The child: answers whoever speaks first, for ever.
///
/// # Errors
/// If the socket fails.
pub fn serve(sizes: Sizes) -> Result<(), BenchError> {
    let socket = socket(None).map_err(BenchError::io("UDP socket"))?;
    say(&socket.local_addr().map_err(BenchError::io("UDP socket"))?)?;
    answer(&socket, sizes).map_err(BenchError::io("raw UDP"))
}

/// Ends with an error only.
fn answer(socket: &UdpSocket, sizes: Sizes) -> std::io::Result<()> {
    let (mut request, reply) = (vec![0; sizes.request], vec![2; sizes.reply]);
    let (_, parent) = socket.peek_from(&mut [0])?;
    socket.connect(parent)?;
    loop {
        receive(socket, &mut request)?;
        send(socket, &reply)?;
    }
}

/// Sends one message: all at once if it fits the window, else as credit comes back.
fn send(socket: &UdpSocket, message: &[u8]) -> std::io::Result<()> {
    let mut credit = WINDOW;
    for datagram in message.chunks(DATAGRAM) {
        if credit == 0 {
            socket.recv(&mut [0])?;
            credit = BATCH;
        }
        socket.send(datagram)?;
        credit -= 1;
    }
    Ok(())
}

fn receive(socket: &UdpSocket, message: &mut [u8]) -> std::io::Result<()> {
    let mut credits = credits(message.len());
    for (n, datagram) in message.chunks_mut(DATAGRAM).enumerate() {
        let expected = datagram.len();
        if socket.recv(datagram)? != expected {
            return Err(std::io::Error::other("a datagram of another length"));
        }
        if (n + 1) % BATCH == 0 && credits > 0 {
            socket.send(&[0])?;
            credits -= 1;
        }
    }
    Ok(())
}

/// How often a message's sender waits for credit.
const fn credits(len: usize) -> usize {
    len.div_ceil(DATAGRAM).saturating_sub(WINDOW).div_ceil(BATCH)
}

fn socket(timeout: Option<Duration>) -> std::io::Result<UdpSocket> {
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

/// After this a datagram is not late.
const LOST_AFTER: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_any_size_arrive() {
        let (a, b) = (socket(Some(LOST_AFTER)).unwrap(), socket(Some(LOST_AFTER)).unwrap());
        a.connect(b.local_addr().unwrap()).unwrap();
        b.connect(a.local_addr().unwrap()).unwrap();
        for len in [1, DATAGRAM, DATAGRAM + 1, WINDOW * DATAGRAM, 105 * DATAGRAM + 5] {
            let message: Vec<u8> = (0..len).map(|n| (n % 253) as u8).collect();
            let mut got = vec![0; len];
            std::thread::scope(|scope| {
                scope.spawn(|| send(&a, &message).unwrap());
                receive(&b, &mut got).unwrap();
            });
            assert!(got == message, "{len} bytes");
        }
        // No credit is left over to be taken for the next message's.
        a.set_nonblocking(true).unwrap();
        assert!(a.recv(&mut [0]).is_err());
    }
}
