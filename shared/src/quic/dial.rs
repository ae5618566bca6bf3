//! From a worker's address to a connection whose both ends have proved who they are, or to the reason why not.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use laguna_topology::address::ParseAddressError;
use laguna_topology::{Address, Pin};
use quinn::{ClientConfig, Connection, Endpoint, RecvStream, SendStream};
use tokio::time::{sleep, timeout_at};

use super::identity::{Identity, SERVER_NAME};
use super::path::{self, End};
use super::probe::{INTERVAL, Probe};
use super::{end, tls};
use crate::session::{Fault, Missing};

/// A connection with its one stream, or why there is none.
pub(crate) type Dialled = Result<(Connection, SendStream, RecvStream), Fault>;

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

    /// Connects, authenticates and opens the stream, within the timeout.
    pub(crate) async fn run(
        self,
        endpoint: Endpoint,
        remote: SocketAddr,
        identity: Arc<Identity>,
    ) -> Dialled {
        let deadline = Instant::now() + self.timeout;
        let missing = || Fault::TimedOut { missing: Missing::Connection, after: self.timeout };
        let local = |error: &dyn ToString| Fault::Local(error.to_string());

        let (crypto, pinned) = tls::client(&identity, self.pin).map_err(|error| local(&error))?;
        let mut config = ClientConfig::new(Arc::new(crypto));
        let bound = path::datagram_bound(remote.ip(), self.mtu);
        config.transport_config(Arc::new(path::transport(bound, End::Coordinator)));
        let connecting = endpoint.connect_with(config, remote, SERVER_NAME).map_err(|error| local(&error))?;

        let connection = tokio::select! {
            connected = timeout_at(deadline.into(), connecting) => {
                let connected = connected.map_err(|_| missing())?;
                connected.map_err(|error| end::of_handshake(error, self.pin, &pinned))?
            }
            gone = absent(remote) => return Err(gone),
        };
        let stream = timeout_at(deadline.into(), connection.open_bi()).await.map_err(|_| missing())?;
        let (send, recv) = stream.map_err(|error| end::of_handshake(error, self.pin, &pinned))?;
        Ok((connection, send, recv))
    }
}

/// Address to bind for reaching `remote`: any of its family.
pub(crate) fn any(remote: IpAddr) -> SocketAddr {
    match remote {
        IpAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        IpAddr::V6(_) => ([0_u16; 8], 0).into(),
    }
}

/// Ends when the system says that nothing listens at `remote`.
async fn absent(remote: SocketAddr) -> Fault {
    let Ok(mut probe) = Probe::new(remote) else {
        return std::future::pending().await;
    };
    loop {
        if let Err(gone) = probe.ask() {
            return Fault::PeerGone(gone);
        }
        sleep(INTERVAL).await;
    }
}
