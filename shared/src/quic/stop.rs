//! How a worker is told to stop, from another thread or by a signal, whether it computes, spins or sleeps in a read.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Tells one worker to stop.
#[derive(Clone, Debug)]
pub struct Stopper {
    is_wanted: Arc<AtomicBool>,
    waker: Arc<UdpSocket>,
}

impl Stopper {
    /// For the worker that listens at `address`.
    pub(super) fn new(address: SocketAddr) -> io::Result<Self> {
        let waker = Arc::new(connected(address)?);
        waker.set_nonblocking(true)?;
        Ok(Self { is_wanted: Arc::default(), waker })
    }

    /// Asks the worker to finish its running call, tell every coordinator, and return.
    pub fn stop(&self) {
        self.is_wanted.store(true, Ordering::Release);
        // If this datagram is lost the worker wakes by itself before long.
        let _ = self.waker.send(&[0]);
    }

    /// What is set to true before the worker is woken. For signal handlers, which may do no more than that.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.is_wanted.clone()
    }

    /// A byte sent here wakes the worker if it sleeps: it is no QUIC, and means nothing. For signal handlers, after the
    /// flag.
    pub fn waker(&self) -> io::Result<UdpSocket> {
        self.waker.try_clone()
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Acquire)
    }
}

/// A socket whose datagrams go to whoever listens at `address` on this machine.
fn connected(address: SocketAddr) -> io::Result<UdpSocket> {
    let port = address.port();
    let v4 = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let to = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => vec![v4],
        // Where IPv6 is switched off, such a listener still hears IPv4.
        IpAddr::V6(ip) if ip.is_unspecified() => vec![(Ipv6Addr::LOCALHOST, port).into(), v4],
        _ => vec![address],
    };
    let connect = |to: &SocketAddr| {
        let any: IpAddr =
            if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(to)?;
        Ok(socket)
    };
    let mut connected = to.iter().map(connect);
    let first = connected.next().unwrap_or_else(|| Err(io::ErrorKind::AddrNotAvailable.into()));
    first.or_else(|error| connected.next().unwrap_or(Err(error)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_listener_anywhere_is_woken() {
        for listen in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"] {
            // A machine may have no IPv6.
            let Ok(listener) = UdpSocket::bind(listen) else { continue };
            listener.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let stopper = Stopper::new(listener.local_addr().unwrap()).unwrap();
            assert!(!stopper.is_wanted());
            stopper.stop();
            assert!(stopper.is_wanted() && stopper.flag().load(Ordering::Acquire));
            assert_eq!(listener.recv(&mut [9; 8]).unwrap(), 1, "{listen}");
        }
    }
}
