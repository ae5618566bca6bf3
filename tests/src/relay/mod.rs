//! A link between two machines, on one: a UDP relay that delays, loses, reorders and limits what passes, both ways.
//!
//! - [`link`]: what a link is like, and when a datagram that enters it leaves: arithmetic, no clock, no socket
//! - [`pipe`]: one direction: datagrams wait here until they are due
//! - [`Relay`], below: sockets around two of them
//!
//! Whoever would talk to a worker talks to [`Relay::address`] instead. A sender gets a socket of its own towards the
//! worker, so replies find their way, and any datagram that UDP carries passes. The relay's own work, two more hops
//! through the kernel each way, comes on top of the delay; `laguna-bench link` measures it.

pub mod link;
pub mod pipe;

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

pub use link::{Link, Preset};
use pipe::{Exit, Pipe, Traffic};

/// The relay in front of one worker. Ends when dropped; what is on its way then is lost.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    inner: Arc<Inner>,
    front: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Inner {
    worker: SocketAddr,
    front: Arc<UdpSocket>,
    /// Towards the worker.
    out: Pipe,
    /// From the worker.
    back: Pipe,
    ended: AtomicBool,
    /// Threads that listen to what the worker says to one sender.
    listeners: Mutex<Vec<JoinHandle<()>>>,
}

impl Relay {
    /// A relay on a free port of 127.0.0.1 in front of `worker`. Both directions are like `link`; the same seed loses
    /// and delays the same datagrams, counted as they arrive.
    ///
    /// # Errors
    /// If the link makes no sense, or a socket cannot be had.
    pub fn start(worker: SocketAddr, link: &Link, seed: u64) -> io::Result<Self> {
        link.check().map_err(|fault| io::Error::new(ErrorKind::InvalidInput, fault))?;
        let front = Arc::new(socket()?);
        let address = front.local_addr()?;
        let inner = Arc::new(Inner {
            worker,
            front,
            out: Pipe::new(link, seed.wrapping_mul(2)),
            back: Pipe::new(link, seed.wrapping_mul(2).wrapping_add(1)),
            ended: AtomicBool::new(false),
            listeners: Mutex::default(),
        });
        let own = inner.clone();
        Ok(Self { address, inner, front: Some(thread::spawn(move || own.listen_in_front())) })
    }

    /// Where to send what is for the worker.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on nothing passes, what is on its way included; nobody is told.
    pub fn cut(&self) {
        self.inner.out.cut(true);
        self.inner.back.cut(true);
    }

    /// Ends [`Self::cut`].
    pub fn mend(&self) {
        self.inner.out.cut(false);
        self.inner.back.cut(false);
    }

    /// What has become of the datagrams so far: those to the worker, those from it.
    pub fn traffic(&self) -> [Traffic; 2] {
        [self.inner.out.traffic(), self.inner.back.traffic()]
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.inner.ended.store(true, Ordering::Relaxed);
        let listeners = std::mem::take(&mut *self.inner.listeners());
        for thread in self.front.take().into_iter().chain(listeners) {
            // Its panic was reported where it happened.
            let _ = thread.join();
        }
    }
}

impl Inner {
    fn listen_in_front(self: Arc<Self>) {
        let mut known: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
        let mut buffer = vec![0; LARGEST];
        while let Some((bytes, from)) = self.receive(&self.front, &mut buffer) {
            let towards = match known.get(&from) {
                Some(socket) => socket.clone(),
                None if known.len() == MOST_SENDERS => continue,
                None => match self.introduce(from) {
                    Ok(socket) => known.entry(from).or_insert(socket).clone(),
                    // As lost as any other datagram.
                    Err(_) => continue,
                },
            };
            self.out.send(bytes, Exit { socket: towards, to: None });
        }
    }

    /// A socket to the worker for a new sender, and a thread that carries back what comes out of it.
    fn introduce(self: &Arc<Self>, sender: SocketAddr) -> io::Result<Arc<UdpSocket>> {
        let towards = Arc::new(socket()?);
        towards.connect(self.worker)?;
        let (own, from) = (self.clone(), towards.clone());
        let listener = thread::spawn(move || {
            let mut buffer = vec![0; LARGEST];
            while let Some((bytes, _)) = own.receive(&from, &mut buffer) {
                own.back.send(bytes, Exit { socket: own.front.clone(), to: Some(sender) });
            }
        });
        self.listeners().push(listener);
        Ok(towards)
    }

    /// The next datagram; `None` when the relay has ended.
    fn receive<'b>(&self, socket: &UdpSocket, buffer: &'b mut [u8]) -> Option<(&'b [u8], SocketAddr)> {
        while !self.ended.load(Ordering::Relaxed) {
            match socket.recv_from(buffer) {
                Ok((len, from)) => return Some((&buffer[..len], from)),
                // Nothing for a while; or nobody listens at the other end, which a link does not tell.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => thread::sleep(PAUSE),
            }
        }
        None
    }

    fn listeners(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn socket() -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    // The kernel's usual buffers hold three of the largest datagrams. It may give less than asked, or keep them.
    let _ =
        socket.set_recv_buffer_size(SOCKET_BUFFER).and_then(|()| socket.set_send_buffer_size(SOCKET_BUFFER));
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    let socket: UdpSocket = socket.into();
    socket.set_read_timeout(Some(LOOK_UP))?;
    Ok(socket)
}

/// Bytes of the largest UDP payload, and one more to notice what cannot be.
const LARGEST: usize = 65_508;

/// Senders that are served; a coordinator is one, and each of its probes for a dead worker.
const MOST_SENDERS: usize = 64;

/// Between two looks at whether the relay has ended.
const LOOK_UP: Duration = Duration::from_millis(50);

/// After an error of a socket.
const PAUSE: Duration = Duration::from_millis(1);

/// Bytes per direction and socket.
const SOCKET_BUFFER: usize = 4 << 20;

#[cfg(test)]
mod tests;
