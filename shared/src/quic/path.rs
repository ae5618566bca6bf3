//! Sockets and QUIC settings by path. Every number has its unit and reason; several defaults of quinn are traps here.
//!
//! Public for measurements, so that what is compared differs in the driver alone.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use quinn::{AckFrequencyConfig, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
use socket2::{Domain, Protocol, Socket, Type};

use super::window::LinkWindowFactory;

/// Which end sets a connection up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It connects.
    Coordinator,
    /// It listens.
    Worker,
}

/// Largest UDP payload worth trying towards `remote`, in bytes. Discovery starts at 1200 and finds what really passes.
///
/// `given` is what the topology says, if it says anything.
pub fn datagram_bound(remote: IpAddr, given: Option<u16>) -> u16 {
    match given {
        Some(given) => given.clamp(SMALLEST, LARGEST),
        // An IPv4 peer of a socket for both families has a mapped address.
        None if remote.to_canonical().is_loopback() => LARGEST,
        // macOS has no segmentation offload, so more than 1500 is worth probing for: a Thunderbolt bridge carries 9000.
        None if cfg!(target_os = "macos") => 8952,
        None => 1452,
    }
}

/// Settings of one connection whose datagrams may grow to `bound` bytes.
pub fn transport(bound: u16, end: End) -> TransportConfig {
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(bound);

    // Acknowledge seldom: at 1500 bytes that halves the packets of a decode step. Large datagrams come in tens, not
    // thousands, and the other end measures its pace by acknowledgements.
    let mut acks = AckFrequencyConfig::default();
    acks.ack_eliciting_threshold(VarInt::from_u32(if bound > JUMBO { 8 } else { 32 }));
    acks.max_ack_delay(Some(Duration::from_millis(25)));

    let mut config = TransportConfig::default();
    config
        .min_mtu(SMALLEST) // From 16384 on quinn-proto panics: Initials are padded to it.
        .mtu_discovery_config(Some(discovery))
        .ack_frequency_config(Some(acks))
        .congestion_controller_factory(Arc::new(LinkWindowFactory))
        .stream_receive_window(VarInt::from_u32(16 * 1024 * 1024))
        .receive_window(VarInt::from_u32(32 * 1024 * 1024))
        .send_window(32 * 1024 * 1024)
        .max_concurrent_bidi_streams(VarInt::from_u32(u32::from(end == End::Worker)))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None)
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(IDLE_TIMEOUT_MS))));
    if end == End::Coordinator {
        // Half a second, so that a worker which was started again is asked, and can say so, within a second. Only from
        // this end: it is driven by the engine thread, which may pause, and unanswered pings of the worker would teach
        // the worker a round trip as long as the pause.
        config.keep_alive_interval(Some(Duration::from_millis(500)));
    }
    config
}

/// Settings of a socket whose peers may send datagrams of any size this system has.
pub fn endpoint() -> EndpointConfig {
    let mut config = EndpointConfig::default();
    // Defaults to 1472 and is announced to the peer, whose larger datagrams it would forbid. In range, so never an error.
    if let Err(error) = config.max_udp_payload_size(LARGEST) {
        tracing::error!(%error, "datagram size not accepted");
    }
    config
}

/// A UDP socket with room for a prefill chunk in each direction.
pub fn socket(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    // macOS refuses datagrams above 9216 bytes until the send buffer is raised.
    let sent = socket.set_send_buffer_size(SOCKET_BUFFER).and_then(|()| socket.send_buffer_size());
    let received = socket.set_recv_buffer_size(SOCKET_BUFFER).and_then(|()| socket.recv_buffer_size());
    for (direction, size) in [("send", sent), ("receive", received)] {
        match size {
            Ok(got) if got >= SOCKET_BUFFER => {}
            Ok(got) => {
                tracing::info!(direction, got, wanted = SOCKET_BUFFER, "the kernel gave a smaller buffer")
            }
            Err(error) => tracing::info!(direction, %error, "the kernel kept its own buffer size"),
        }
    }
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// A socket to listen at. Where this host has no IPv6, "every interface" means every IPv4 interface.
pub(crate) fn listener(address: SocketAddr) -> io::Result<UdpSocket> {
    match socket(address) {
        Err(error) if address.is_ipv6() && address.ip().is_unspecified() && has_no_ipv6(&error) => {
            socket((Ipv4Addr::UNSPECIFIED, address.port()).into())
        }
        other => other,
    }
}

fn has_no_ipv6(error: &io::Error) -> bool {
    // Creating the socket fails with EAFNOSUPPORT, which has no kind of its own; binding with EADDRNOTAVAIL.
    error.kind() == io::ErrorKind::AddrNotAvailable || Socket::new(Domain::IPV6, Type::DGRAM, None).is_err()
}

/// Bytes of UDP payload that loopback carries: the IPv4 maximum on Linux, one lo0 packet (MTU 16384) on macOS.
const LARGEST: u16 = if cfg!(target_os = "macos") { 16_356 } else { 65_507 };

/// Bytes every QUIC path carries; where discovery starts.
const SMALLEST: u16 = 1200;

/// Largest datagram on a real link.
const JUMBO: u16 = 9000;

/// Bytes per direction.
const SOCKET_BUFFER: usize = 4 * 1024 * 1024;

/// Milliseconds of silence after which QUIC gives up. Long, because computing and idling are silent; see the room's map.
const IDLE_TIMEOUT_MS: u32 = 10 * 60 * 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_follow_the_path() {
        let far: IpAddr = [10, 0, 5, 2].into();
        for loopback in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(datagram_bound(loopback.parse().unwrap(), None), LARGEST, "{loopback}");
        }
        assert_eq!(datagram_bound([127, 0, 0, 1].into(), Some(1452)), 1452);
        assert_eq!(datagram_bound(far, Some(8952)), 8952);
        assert_eq!(datagram_bound(far, Some(0)), SMALLEST);
        assert_eq!(datagram_bound(far, None), if cfg!(target_os = "macos") { 8952 } else { 1452 });
    }
}
