//! One UDP socket: datagrams in and out, in batches. Blocks only when asked to sleep. Knows nothing of QUIC.

use std::array;
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use bytes::BytesMut;
use quinn::EcnCodepoint;
use quinn_udp::{RecvMeta, UdpSocketState};

/// A datagram that has arrived.
pub(crate) struct Datagram {
    pub(crate) from: SocketAddr,
    /// This end's address, where the system says it.
    pub(crate) to: Option<IpAddr>,
    pub(crate) ecn: Option<EcnCodepoint>,
    pub(crate) bytes: BytesMut,
}

/// A socket with the memory its datagrams pass through.
pub(crate) struct Socket {
    io: UdpSocket,
    state: UdpSocketState,
    /// `BATCH` parts of `ROOM` bytes, for the kernel to write into.
    inbox: Box<[u8]>,
    /// What datagrams are handed on in. Its memory is used again once they are dropped.
    handed: BytesMut,
    /// How long a read waits, as the system was last told; `None`: not at all.
    patience: Option<Duration>,
}

impl Socket {
    pub(crate) fn new(io: UdpSocket) -> io::Result<Self> {
        let state = UdpSocketState::new((&io).into())?;
        let inbox = vec![0; BATCH * ROOM].into_boxed_slice();
        let handed = BytesMut::with_capacity(BATCH * ROOM);
        // Sends wait where reads do, but not for ever.
        io.set_write_timeout(Some(SEND_LIMIT))?;
        Ok(Self { io, state, inbox, handed, patience: None })
    }

    /// Appends what has arrived, at most a batch; returns whether there may be more.
    pub(crate) fn receive(&mut self, arrived: &mut Vec<Datagram>) -> bool {
        self.wait_in_reads(None).is_ok() && self.read(BATCH, arrived) == BATCH
    }

    /// Sleeps in the read itself until a datagram comes, and appends it; wakes before `left` has passed. Quicker than to
    /// sleep on the socket and then to read, by a system call and a precise timer at either end.
    ///
    /// `false` if it did not: reads keep time to 10 ms only.
    pub(crate) fn sleep(&mut self, left: Option<Duration>, arrived: &mut Vec<Datagram>) -> bool {
        let patience = PATIENCE.into_iter().find(|patience| left.is_none_or(|left| *patience <= left));
        if patience.is_none() || self.wait_in_reads(patience).is_err() {
            return false;
        }
        self.read(1, arrived);
        true
    }

    /// Tells the system how long reads wait, if it does not know.
    fn wait_in_reads(&mut self, patience: Option<Duration>) -> io::Result<()> {
        if patience == self.patience {
            return Ok(());
        }
        if self.patience.is_none() != patience.is_none() {
            self.io.set_nonblocking(patience.is_none())?;
            // Known now, whatever becomes of the time.
            self.patience = patience.map(|_| Duration::MAX);
        }
        if patience.is_some() {
            self.io.set_read_timeout(patience)?;
        }
        self.patience = patience;
        Ok(())
    }

    /// Reads up to `limit` parts, and waits for all of them if reads wait.
    fn read(&mut self, limit: usize, arrived: &mut Vec<Datagram>) -> usize {
        let Self { io, state, inbox, handed, .. } = self;
        let mut metas = [RecvMeta::default(); BATCH];
        let mut parts = inbox.chunks_exact_mut(ROOM);
        let mut parts = array::from_fn::<_, BATCH, _>(|_| IoSliceMut::new(parts.next().unwrap_or_default()));
        let count = match state.recv((&*io).into(), &mut parts[..limit], &mut metas) {
            Ok(count) => count,
            Err(error) => {
                // An ICMP error is anybody's word about some earlier datagram: QUIC's timers decide.
                if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) {
                    tracing::debug!(%error, "nothing received");
                }
                return 0;
            }
        };
        // All earlier datagrams are gone as a rule, and the same warm memory serves again.
        if !handed.try_reclaim(BATCH * ROOM) {
            *handed = BytesMut::with_capacity(BATCH * ROOM);
        }
        for (part, meta) in parts.iter().zip(&metas).take(count) {
            // With receive offload one part holds several datagrams of `stride` bytes.
            for datagram in part[..meta.len].chunks(meta.stride.max(1)) {
                handed.extend_from_slice(datagram);
                arrived.push(Datagram {
                    from: meta.addr,
                    to: meta.dst_ip,
                    ecn: meta.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8)),
                    bytes: handed.split(),
                });
            }
        }
        count
    }

    /// Sends what one transmit holds. `false` if the kernel has no room now; any other failure is a lost datagram.
    pub(crate) fn send(&self, transmit: &quinn::Transmit, contents: &[u8]) -> bool {
        let transmit = quinn_udp::Transmit {
            destination: transmit.destination,
            ecn: transmit.ecn.and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8)),
            contents: &contents[..transmit.size],
            segment_size: transmit.segment_size,
            src_ip: transmit.src_ip,
        };
        self.state.send((&self.io).into(), &transmit).is_ok()
    }

    /// Datagrams of `mtu` bytes that one system call may carry.
    pub(crate) fn batch(&self, mtu: u16) -> usize {
        (LARGEST / usize::from(mtu.max(1))).clamp(1, self.state.max_gso_segments().max(1))
    }

    /// Whether the network may cut datagrams up, so that their size shows nothing about the path.
    pub(crate) fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.io.as_fd()
    }
}

/// Reads of one system call: a decode step has one datagram a worker; a prefill chunk is read in a few calls.
const BATCH: usize = if quinn_udp::BATCH_SIZE < 8 { quinn_udp::BATCH_SIZE } else { 8 };

/// Bytes for one read: the largest datagram, and the largest train of datagrams that the kernel puts together.
const ROOM: usize = 64 * 1024;

/// How long a read may wait, longest first. Few, so that the system is seldom told: waking early is harmless.
const PATIENCE: [Duration; 5] = [
    Duration::from_secs(10),
    Duration::from_secs(1),
    Duration::from_millis(100),
    Duration::from_millis(20),
    Duration::from_millis(10),
];

/// How long a send waits for room in the kernel, where sends wait.
const SEND_LIMIT: Duration = Duration::from_millis(100);

/// Bytes in one send at most: UDP's own limit over IPv4, for a train of datagrams too. Above it the kernel refuses the
/// train, and what it held counts as lost.
const LARGEST: usize = 65_507;
