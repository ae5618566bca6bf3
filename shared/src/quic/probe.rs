//! Whether a silent worker's host still has a process there.
//!
//! A worker that computes says nothing; a dead one says nothing either. But a stray byte sent to its port is dropped by
//! a live QUIC endpoint and answered by ICMP where the process or the host is gone. Linux and macOS report that answer
//! on a *connected* UDP socket, at its next use. Where a firewall eats it, the call's deadline remains.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use crate::session::Gone;

/// Asks one address.
#[derive(Debug)]
pub(crate) struct Probe {
    socket: UdpSocket,
    remote: SocketAddr,
}

impl Probe {
    pub(crate) fn new(remote: SocketAddr) -> io::Result<Self> {
        let local: SocketAddr = match remote {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(local)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, remote })
    }

    /// Reports the answer to an earlier byte, if one says that the worker is gone, and sends another.
    pub(crate) fn ask(&mut self) -> Result<(), Gone> {
        // Connecting is what makes the kernel report errors here; it fails by itself where there is no route, and may
        // succeed later, so it is done each time.
        let asked = self.socket.take_error().and_then(|earlier| match earlier {
            Some(error) => Err(error),
            None => self.socket.connect(self.remote).and_then(|()| self.socket.send(&[0]).map(drop)),
        });
        match asked {
            Ok(()) => Ok(()),
            Err(error) => gone(&error).map_or(Ok(()), Err),
        }
    }
}

/// What an error says about the other end; nothing where it says something about this one.
fn gone(error: &io::Error) -> Option<Gone> {
    match error.kind() {
        ErrorKind::ConnectionRefused => Some(Gone::NothingListens),
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::NetworkDown => {
            Some(Gone::Unreachable(error.to_string()))
        }
        _ => None,
    }
}

/// Age at which a call's worker is first asked for.
pub(crate) const PATIENCE: Duration = Duration::from_millis(250);

/// Between bytes. The answer to one is seen at the next: certainty within 500 ms of a death.
pub(crate) const INTERVAL: Duration = Duration::from_millis(125);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_port_is_recognised_and_a_bound_one_is_left_alone() {
        let bound = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = bound.local_addr().unwrap();
        let ask = |probe: &mut Probe| {
            std::thread::sleep(Duration::from_millis(5));
            probe.ask()
        };
        let mut probe = Probe::new(address).unwrap();
        for _ in 0..3 {
            assert_eq!(ask(&mut probe), Ok(()));
        }
        drop(bound);
        let answers: Vec<_> = (0..3).map(|_| ask(&mut probe)).collect();
        assert!(answers.contains(&Err(Gone::NothingListens)), "{answers:?}");
    }
}
