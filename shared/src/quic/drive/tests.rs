//! Two drives and the network between them on one thread: what it loses, turns round or cuts short arrives all the same.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn::{ClientConfig, ConnectionError, ServerConfig, VarInt};

use super::*;
use crate::quic::identity::{Identity, SERVER_NAME};
use crate::quic::path::{self, End};
use crate::quic::tls;

/// What happens to the `n`-th datagram of a direction: how often it is delivered, and whether before the one before it.
type Fate = fn(n: usize, len: usize) -> (usize, bool);

/// Between the two: a port for each, and a fate for each datagram.
struct Network {
    /// Towards client, towards server.
    sides: [UdpSocket; 2],
    /// Where each end is; the client's is learned.
    ends: [Option<SocketAddr>; 2],
    held: [Option<Vec<u8>>; 2],
    count: [usize; 2],
    fate: Fate,
    /// Datagrams that met another fate than plain delivery.
    mangled: usize,
    longest: usize,
}

impl Network {
    fn new(server: SocketAddr, fate: Fate) -> Self {
        // With room for a message: what overflows here would be one more loss.
        let side = || path::socket(([127, 0, 0, 1], 0).into()).unwrap();
        Self {
            sides: [side(), side()],
            ends: [None, Some(server)],
            held: [None, None],
            count: [0; 2],
            fate,
            mangled: 0,
            longest: 0,
        }
    }

    fn carry(&mut self) {
        let mut buffer = vec![0; 65_536];
        for from in 0..2 {
            while let Ok((len, sender)) = self.sides[from].recv_from(&mut buffer) {
                self.ends[from] = Some(sender);
                let to = 1 - from;
                self.count[from] += 1;
                let (copies, overtakes) = (self.fate)(self.count[from], len);
                self.mangled += usize::from(copies != 1 || overtakes);
                let datagram = &buffer[..len];
                if overtakes {
                    self.held[from] = Some(datagram.to_vec());
                    continue;
                }
                for _ in 0..copies {
                    self.longest = self.longest.max(len);
                    self.deliver(to, datagram);
                }
                if let Some(held) = self.held[from].take() {
                    self.deliver(to, &held);
                }
            }
        }
    }

    fn deliver(&self, to: usize, datagram: &[u8]) {
        if let Some(end) = self.ends[to] {
            // A full buffer is one more way to lose it.
            let _ = self.sides[to].send_to(datagram, end);
        }
    }
}

/// Both ends of one connection.
struct Pair {
    client: Drive,
    server: Drive,
    network: Network,
    here: ConnId,
    there: Option<ConnId>,
    accepting: ServerConfig,
}

impl Pair {
    fn new(fate: Fate) -> Self {
        let identities = [Identity::generate().unwrap(), Identity::generate().unwrap()];
        let loopback = || path::socket(([127, 0, 0, 1], 0).into()).unwrap();
        let crypto = tls::server(&identities[1], vec![identities[0].pin()]).unwrap();
        let mut accepting = ServerConfig::with_crypto(Arc::new(crypto));
        let bound = path::datagram_bound([127, 0, 0, 1].into(), None);
        accepting.transport_config(Arc::new(path::transport(bound, End::Worker)));
        let server = Drive::new(loopback(), path::endpoint(), Some(accepting.clone())).unwrap();
        let network = Network::new(server.address(), fate);

        let mut client = Drive::new(loopback(), path::endpoint(), None).unwrap();
        let (crypto, _) = tls::client(&identities[0], identities[1].pin()).unwrap();
        let mut config = ClientConfig::new(Arc::new(crypto));
        config.transport_config(Arc::new(path::transport(bound, End::Coordinator)));
        let remote = network.sides[0].local_addr().unwrap();
        let here = client.connect(config, remote, SERVER_NAME, Instant::now()).unwrap();
        Self { client, server, network, here, there: None, accepting }
    }

    /// Turns everything until `is_over`.
    #[track_caller]
    fn until(&mut self, mut is_over: impl FnMut(&mut Self) -> bool) {
        let began = Instant::now();
        while !is_over(self) {
            assert!(began.elapsed() < PATIENCE, "nothing more happens");
            for drive in [&mut self.client, &mut self.server] {
                let now = Instant::now();
                drive.advance(true, now);
                drive.flush(now);
            }
            if let Some(incoming) = self.server.poll_incoming() {
                let accepted = self.server.accept(incoming, self.accepting.clone(), Instant::now());
                self.there = Some(accepted.unwrap());
            }
            self.network.carry();
        }
    }

    fn here(&mut self) -> &mut Conn {
        self.client.conn(self.here).unwrap()
    }

    fn there(&mut self) -> &mut Conn {
        self.server.conn(self.there.unwrap()).unwrap()
    }

    /// Connected, the stream open and known to both.
    fn open(fate: Fate) -> Self {
        let mut pair = Self::new(fate);
        pair.until(|pair| pair.here().is_connected());
        assert!(pair.here().open());
        pair.here().queue(Bytes::from_static(b"hello"));
        pair.here().write().unwrap();
        pair.until(|pair| pair.there.is_some() && pair.there().is_connected() && pair.there().accept());
        assert_eq!(pair.read_there(5), b"hello");
        pair
    }

    fn read_there(&mut self, len: usize) -> Vec<u8> {
        self.read(len, Self::there)
    }

    fn read(&mut self, len: usize, end: fn(&mut Self) -> &mut Conn) -> Vec<u8> {
        let mut got = Vec::new();
        self.until(|pair| {
            pair.here().write().unwrap();
            pair.there().write().unwrap();
            while let Read::Bytes(bytes) = end(pair).read().unwrap() {
                got.extend_from_slice(&bytes);
            }
            got.len() >= len
        });
        got
    }

    /// A message each way, as long as a prefill chunk of one layer.
    fn exchange(&mut self) {
        let message: Vec<u8> = (0..LONG).map(|n| (n % 251) as u8).collect();
        self.here().queue(message.clone().into());
        assert!(self.read_there(LONG) == message);
        self.there().queue(message.clone().into());
        assert!(self.read(LONG, Self::here) == message);
    }
}

#[test]
fn a_plain_path_grows_to_the_largest_datagrams() {
    let mut pair = Pair::open(|_, _| (1, false));
    for _ in 0..20 {
        pair.exchange();
    }
    let largest = path::datagram_bound([127, 0, 0, 1].into(), None);
    assert_eq!(pair.here().inner.current_mtu(), largest);
    assert_eq!(pair.network.longest, usize::from(largest));
}

#[test]
fn lost_datagrams_are_sent_again() {
    let mut pair = Pair::open(|n, _| (usize::from(n % 7 != 0), false));
    for _ in 0..3 {
        pair.exchange();
    }
    assert!(pair.network.mangled > 0);
    assert!(pair.here().inner.stats().path.lost_packets > 0);
}

#[test]
fn datagrams_may_overtake_each_other_and_come_twice() {
    let mut pair = Pair::open(|n, _| (1 + usize::from(n % 5 == 0), n % 3 == 0));
    for _ in 0..3 {
        pair.exchange();
    }
    assert!(pair.network.mangled > 0);
}

#[test]
fn a_path_of_1200_bytes_is_enough() {
    let mut pair = Pair::open(|_, len| (usize::from(len <= 1200), false));
    pair.exchange();
    assert!(pair.network.mangled > 0, "nothing larger was tried");
    assert_eq!((pair.network.longest, pair.here().inner.current_mtu()), (1200, 1200));
}

#[test]
fn a_close_is_told_with_its_code_and_connections_go_when_both_are_done() {
    let mut pair = Pair::open(|_, _| (1, false));
    pair.here().close(Instant::now(), VarInt::from_u32(3), Bytes::from_static(b"because"));
    pair.client.release(pair.here);
    pair.until(|pair| pair.there().lost().is_some());
    let Some(ConnectionError::ApplicationClosed(close)) = pair.there().lost().cloned() else { panic!() };
    assert_eq!((close.error_code, &close.reason[..]), (VarInt::from_u32(3), &b"because"[..]));
    // Nothing is read or written any more, and nothing panics.
    assert!(matches!(pair.there().read(), Ok(Read::Pending) | Err(StreamError::Closed)));
    pair.until(|pair| pair.client.is_idle() && pair.server.is_idle());
    assert!(pair.client.conn(pair.here).is_none(), "released and drained");
    let there = pair.there.unwrap();
    assert!(pair.server.conn(there).is_some(), "its owner has not let go of it");
    pair.server.release(there);
    pair.server.flush(Instant::now());
    assert!(pair.server.conn(there).is_none());
    assert_eq!((pair.client.due(), pair.server.due()), (None, None));
}

#[test]
fn a_finished_stream_is_delivered_before_it_is_called_so() {
    let mut pair = Pair::open(|n, _| (usize::from(n % 2 != 0), false));
    pair.there().queue(vec![7; 100_000].into());
    assert!(pair.there().write().unwrap());
    assert!(pair.there().finish() && !pair.there().finish());
    let mut got = 0;
    let mut has_ended = false;
    pair.until(|pair| {
        while !has_ended {
            match pair.here().read().unwrap() {
                Read::Bytes(bytes) => got += bytes.len(),
                Read::Pending => break,
                Read::End => has_ended = true,
            }
        }
        pair.there().is_delivered()
    });
    assert_eq!((got, has_ended), (100_000, true));
    assert_eq!(pair.here().read().unwrap_err(), StreamError::Closed);
}

#[test]
fn strangers_are_refused_or_ignored() {
    let mut pair = Pair::new(|_, _| (1, false));
    let now = Instant::now();
    pair.client.flush(now);
    let mut incoming = None;
    while incoming.is_none() {
        pair.network.carry();
        pair.server.advance(true, now);
        incoming = pair.server.poll_incoming();
    }
    pair.server.refuse(incoming.unwrap());
    pair.until(|pair| pair.here().lost().is_some());
    assert!(matches!(pair.here().lost(), Some(ConnectionError::ConnectionClosed(_))));

    let mut pair = Pair::new(|_, _| (1, false));
    pair.client.flush(now);
    pair.network.carry();
    pair.server.advance(true, now);
    let ignored = pair.server.poll_incoming().map(|incoming| pair.server.ignore(incoming));
    // It asks again, and is let in.
    pair.until(|pair| pair.here().is_connected());
    assert!(ignored.is_some());
}

/// Bytes.
const LONG: usize = 3 * 1024 * 1024;

/// For what takes a second where every other datagram is lost.
const PATIENCE: Duration = Duration::from_secs(60);
