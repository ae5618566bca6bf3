//! From a worker's address to a connection whose both ends have proved who they are, or to the reason why not.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use laguna_topology::address::ParseAddressError;
use laguna_topology::{Address, Pin};
use quinn::ClientConfig;

use super::drive::{Conn, ConnId, Drive};
use super::end;
use super::identity::{Identity, SERVER_NAME};
use super::path::{self, End};
use super::probe::{INTERVAL, Probe};
use super::tls::{self, Pinned};
use crate::session::{Fault, Missing};

/// What it takes to reach one worker.
#[derive(Clone, Debug)]
pub(crate) struct Dial {
    /// Host and port, name or number.
    pub(crate) address: Arc<str>,
    pub(crate) pin: Pin,
    pub(crate) mtu: Option<u16>,
    pub(crate) timeout: Duration,
}

impl Dial {
    /// Where the name leads: the first IPv4 address, else the first of all.
    pub(crate) fn resolve(&self) -> Result<SocketAddr, Fault> {
        let cannot = |reason: String| Fault::Local(format!("cannot resolve {}: {reason}", self.address));
        // The topology's own parser, for what the standard library has none: an IPv6 zone by name.
        let address: Address =
            self.address.parse().map_err(|error: ParseAddressError| cannot(error.to_string()))?;
        let found: Vec<_> = address.to_socket_addrs().map_err(|error| cannot(error.to_string()))?.collect();
        let best = found.iter().find(|address| address.is_ipv4()).or_else(|| found.first());
        best.copied().ok_or_else(|| cannot("no address".to_owned()))
    }

    /// Begins to connect.
    pub(crate) fn start(
        &self,
        drive: &mut Drive,
        remote: SocketAddr,
        identity: &Identity,
        now: Instant,
    ) -> Result<Dialling, Fault> {
        let local = |error: &dyn ToString| Fault::Local(error.to_string());
        let (crypto, pinned) = tls::client(identity, self.pin).map_err(|error| local(&error))?;
        let mut config = ClientConfig::new(Arc::new(crypto));
        let bound = path::datagram_bound(remote.ip(), self.mtu);
        config.transport_config(Arc::new(path::transport(bound, End::Coordinator)));
        let conn = drive.connect(config, remote, SERVER_NAME, now).map_err(|error| local(&error))?;
        Ok(Dialling {
            conn,
            pin: self.pin,
            pinned,
            // Without one the timeout has to do.
            probe: Probe::new(remote).ok(),
            next_probe: now,
            deadline: now + self.timeout,
            after: self.timeout,
        })
    }
}

/// A connection that is being made.
#[derive(Debug)]
pub(crate) struct Dialling {
    pub(crate) conn: ConnId,
    pin: Pin,
    pinned: Arc<Pinned>,
    /// Tells when the system says that nothing listens there.
    probe: Option<Probe>,
    next_probe: Instant,
    deadline: Instant,
    after: Duration,
}

impl Dialling {
    /// Whether the connection stands, its stream open, or why it never will; `None` while that is open.
    pub(crate) fn poll(&mut self, conn: &mut Conn, now: Instant) -> Option<Result<(), Fault>> {
        if let Some(error) = conn.lost() {
            return Some(Err(end::of_handshake(error.clone(), self.pin, &self.pinned)));
        }
        if conn.is_connected() && conn.open() {
            return Some(Ok(()));
        }
        if now >= self.deadline {
            return Some(Err(Fault::TimedOut { missing: Missing::Connection, after: self.after }));
        }
        if now >= self.next_probe {
            self.next_probe = now + INTERVAL;
            if let Some(Err(gone)) = self.probe.as_mut().map(Probe::ask) {
                return Some(Err(Fault::PeerGone(gone)));
            }
        }
        None
    }

    /// When to poll again at the latest.
    pub(crate) fn due(&self) -> Instant {
        self.deadline.min(self.next_probe)
    }
}

/// Address to bind for reaching `remote`: any of its family.
pub(crate) fn any(remote: IpAddr) -> SocketAddr {
    match remote {
        IpAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        IpAddr::V6(_) => ([0_u16; 8], 0).into(),
    }
}
