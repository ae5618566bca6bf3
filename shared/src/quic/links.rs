//! The coordinator's end of every link, over QUIC, on the thread that calls it.
//!
//! The runtime runs only inside these methods. There is no reactor thread and no channel: each sleep and wake-up between
//! threads costs 5 µs and more, and a token makes 47 round trips.

use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use laguna_topology::Pin;
use quinn::{Endpoint, TokioRuntime};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::timeout_at;

use super::dial::{Dial, Dialled, any};
use super::identity::Identity;
use super::path;
use super::server::{Listener, ServeError, ServeSettings, never};
use super::wire::Wire;
use crate::compute::ExpertBatch;
use crate::session::{
    CallerSettings, ConnectError, Fault, InMemoryWorker, Links, Reply, ShardError, ShardInfo, Switchboard,
};
use crate::wire::{CallId, CloseCode, Hello};

/// One worker to connect to.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Host and port: `10.0.5.2:4433` or `mac-2.local:4433`.
    pub address: String,
    /// Certificate that the worker must show.
    pub pin: Pin,
    /// What it must be.
    pub hello: Hello,
    /// Bytes of UDP payload to send at most, `1200..=65507`; `None` chooses by path. Probing finds what really passes.
    pub mtu: Option<u16>,
}

/// How long a coordinator waits, for what.
#[derive(Clone, Copy, Debug)]
pub struct QuicSettings {
    /// For the handshake with a worker. Defaults to 5 seconds.
    pub connect_timeout: Duration,
    /// For welcome and replies.
    pub caller: CallerSettings,
}

impl Default for QuicSettings {
    fn default() -> Self {
        Self { connect_timeout: Duration::from_secs(5), caller: CallerSettings::default() }
    }
}

/// Links over QUIC. Must be made, used and dropped outside any tokio runtime, on one thread at a time.
pub struct QuicLinks {
    runtime: Runtime,
    identity: Arc<Identity>,
    dials: Vec<Dial>,
    endpoints: Endpoints,
    board: Switchboard,
    wires: Vec<Option<Wire>>,
}

impl QuicLinks {
    /// Connects to every worker, all at once, and greets them.
    ///
    /// # Errors
    /// Every worker that could not be reached, authenticated or used.
    pub fn connect(
        identity: Identity,
        peers: Vec<Peer>,
        settings: QuicSettings,
    ) -> Result<Self, ConnectError> {
        match runtime() {
            Ok(runtime) => Self::greet_all(runtime, identity, peers, settings),
            Err(error) => {
                let expected = peers.into_iter().map(|peer| (peer.address.into(), peer.hello)).collect();
                Err(everywhere(expected, &error))
            }
        }
    }

    /// Real QUIC over 127.0.0.1 to workers that run on this very thread, with keys made in memory: `--loopback-quic`.
    ///
    /// A bank runs only inside the methods of these links, so everything stays on one thread, as MLX wants it.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn loopback(workers: Vec<InMemoryWorker>, settings: QuicSettings) -> Result<Self, ConnectError> {
        let expected = workers.iter().map(|worker| (LOOPBACK.into(), worker.hello.clone())).collect();
        match start_workers(workers) {
            Ok((runtime, identity, peers)) => Self::greet_all(runtime, identity, peers, settings),
            Err(error) => Err(everywhere(expected, &error)),
        }
    }

    fn greet_all(
        runtime: Runtime,
        identity: Identity,
        peers: Vec<Peer>,
        settings: QuicSettings,
    ) -> Result<Self, ConnectError> {
        let (dials, shards): (Vec<_>, Vec<_>) = peers
            .into_iter()
            .map(|Peer { address, pin, hello, mtu }| {
                let address: Arc<str> = address.into();
                let timeout = settings.connect_timeout;
                (Dial { address: address.clone(), pin, mtu, timeout }, (address, hello))
            })
            .unzip();
        let mut links = Self {
            runtime,
            identity: Arc::new(identity),
            endpoints: Endpoints::default(),
            board: Switchboard::new(shards, settings.caller, Instant::now()),
            wires: dials.iter().map(|_| None).collect(),
            dials,
        };
        // All dial at once, and only when the slowest has an answer do the sessions' deadlines begin.
        let dialling: Vec<_> = (0..links.dials.len()).map(|link| links.dial(link)).collect();
        let dialled: Vec<_> = dialling.into_iter().map(|dialling| links.join(dialling)).collect();
        dialled.into_iter().enumerate().for_each(|(link, dialled)| links.start(link, dialled));
        let greetings: Vec<_> = (0..links.dials.len()).map(|link| links.greet(link)).collect();
        let errors: Vec<_> = greetings.into_iter().filter_map(Result::err).collect();
        if errors.is_empty() { Ok(links) } else { Err(ConnectError(errors)) }
    }

    /// Begins to connect.
    fn dial(&mut self, link: usize) -> Result<JoinHandle<Dialled>, Fault> {
        let dial = self.dials[link].clone();
        let remote = dial.resolve()?;
        let endpoint = self.endpoints.towards(&self.runtime, remote.ip());
        let endpoint =
            endpoint.map_err(|error| Fault::Local(format!("cannot open a UDP socket: {error}")))?;
        Ok(self.runtime.spawn(dial.run(endpoint, remote, self.identity.clone())))
    }

    /// Waits for a connection.
    fn join(&self, dialling: Result<JoinHandle<Dialled>, Fault>) -> Dialled {
        self.runtime.block_on(dialling?).unwrap_or_else(|error| Err(Fault::Local(error.to_string())))
    }

    /// Starts a session on a connection, or notes why there is none.
    fn start(&mut self, link: usize, dialled: Dialled) {
        self.board.restart(link, Instant::now());
        match dialled {
            Ok((connection, send, recv)) => self.wires[link] = Some(Wire::new(connection, send, recv)),
            Err(fault) => self.board.caller(link).handle_closed(fault),
        }
    }

    /// Waits for a fresh link's greeting.
    fn greet(&mut self, link: usize) -> Result<(), ShardError> {
        loop {
            if let Some(greeting) = self.board.poll_greeting(link) {
                return greeting.inspect_err(|error| self.hang_up(error));
            }
            self.wait(Some(link));
        }
    }

    /// Blocks until a session has something to say (this one, or any), or time has come for something.
    ///
    /// What the others have to say meanwhile is kept; it must not end the wait, or the runtime would never run.
    fn wait(&mut self, link: Option<usize>) {
        let Self { runtime, board, wires, .. } = self;
        let mut due = board.poll_timeout();
        for (link, wire) in wires.iter().enumerate() {
            let probe = wire.as_ref().and_then(|wire| wire.probe_due(board.caller(link)));
            due = [due, probe].into_iter().flatten().min();
        }
        let moved = poll_fn(|cx| {
            let mut moved = Poll::Pending;
            for (at, wire) in wires.iter_mut().enumerate() {
                let caller = board.caller(at);
                if let Some(wire) = wire {
                    wire.poll(caller, cx);
                }
                if caller.has_event() && link.is_none_or(|link| link == at) {
                    moved = Poll::Ready(());
                }
            }
            moved
        });
        let on_time = runtime.block_on(async {
            match due {
                Some(due) => timeout_at(due.into(), moved).await.is_ok(),
                None => {
                    moved.await;
                    true
                }
            }
        });
        if !on_time {
            let now = Instant::now();
            self.board.handle_timeout(now);
            for (link, wire) in self.wires.iter_mut().enumerate() {
                if let Some(wire) = wire {
                    wire.ask(self.board.caller(link), now);
                }
            }
        }
    }

    /// Moves bytes on every link without blocking, and lets them leave this process.
    fn pump(&mut self) {
        let Self { runtime, board, wires, .. } = self;
        runtime.block_on(async {
            // Twice: what arrives in the first turn may make room for what waits.
            for _ in 0..2 {
                poll_fn(|cx| {
                    for (link, wire) in wires.iter_mut().enumerate() {
                        if let Some(wire) = wire {
                            wire.poll(board.caller(link), cx);
                        }
                    }
                    Poll::Ready(())
                })
                .await;
                yield_now().await;
            }
        });
    }

    /// Ends the connection of a link that is down.
    fn hang_up(&mut self, error: &ShardError) {
        if error.fault.leaves_link_up() {
            return;
        }
        if let Some(wire) = self.wires[error.link].take() {
            wire.close(error.fault.close_code());
            self.runtime.block_on(yield_now());
        }
    }
}

impl Links for QuicLinks {
    fn shards(&self) -> &[ShardInfo] {
        self.board.shards()
    }

    fn send(&mut self, link: usize, batch: &ExpertBatch<'_>) -> Result<CallId, ShardError> {
        let call = self.board.call(link, batch, Instant::now())?;
        let (caller, wire) = (self.board.caller(link), &mut self.wires[link]);
        if let Some(wire) = wire {
            self.runtime.block_on(async {
                poll_fn(|cx| {
                    if let Err(fault) = wire.write(caller, cx) {
                        caller.handle_closed(fault);
                    }
                    Poll::Ready(())
                })
                .await;
                // The connection's own task puts the bytes into datagrams; this lets it run before the engine computes.
                yield_now().await;
            });
        }
        Ok(call)
    }

    fn recv(&mut self) -> Result<Option<Reply>, ShardError> {
        loop {
            match self.board.poll() {
                Some(Ok(reply)) => return Ok(Some(reply)),
                Some(Err(error)) => {
                    self.hang_up(&error);
                    return Err(error);
                }
                None if self.board.is_waiting() => self.wait(None),
                None => return Ok(None),
            }
        }
    }

    fn recycle(&mut self, reply: Reply) {
        self.board.recycle(reply);
    }

    fn progress(&mut self) {
        self.pump();
        // With calls in flight `recv` tells; without any, nobody else would take note of a worker that has gone.
        while !self.board.is_waiting()
            && let Some(event) = self.board.poll()
        {
            if let Err(error) = event {
                tracing::warn!("{error}");
                self.hang_up(&error);
            }
        }
    }

    fn abandon(&mut self) {
        self.board.abandon();
    }

    fn reconnect(&mut self, link: usize) -> Result<(), ShardError> {
        if let Some(wire) = self.wires[link].take() {
            wire.close(CloseCode::Done);
        }
        let dialling = self.dial(link);
        let dialled = self.join(dialling);
        self.start(link, dialled);
        self.greet(link)
    }
}

impl Drop for QuicLinks {
    fn drop(&mut self) {
        for wire in self.wires.iter().flatten() {
            wire.close(CloseCode::Done);
        }
        // Enough for each connection's task, then the endpoint's, to put the close on the wire.
        self.runtime.block_on(async {
            for _ in 0..3 {
                yield_now().await;
            }
        });
    }
}

/// One socket for each address family in use: a wake-up finds every worker's replies at once.
#[derive(Default)]
struct Endpoints {
    v4: Option<Endpoint>,
    v6: Option<Endpoint>,
}

impl Endpoints {
    fn towards(&mut self, runtime: &Runtime, remote: IpAddr) -> io::Result<Endpoint> {
        let slot = if remote.is_ipv4() { &mut self.v4 } else { &mut self.v6 };
        if let Some(endpoint) = slot {
            return Ok(endpoint.clone());
        }
        let _inside = runtime.enter();
        let socket = path::socket(any(remote))?;
        let endpoint = Endpoint::new(path::endpoint(), None, socket, Arc::new(TokioRuntime))?;
        Ok(slot.insert(endpoint).clone())
    }
}

/// One worker a task, each on a port of its own, all with keys made just now.
fn start_workers(workers: Vec<InMemoryWorker>) -> Result<(Runtime, Identity, Vec<Peer>), ServeError> {
    let runtime = runtime().map_err(ServeError::Runtime)?;
    let identity = Identity::generate()?;
    let start = |InMemoryWorker { hello, welcome, bank }| {
        let keys = Identity::generate()?;
        let pin = keys.pin();
        let listen = ([127, 0, 0, 1], 0).into();
        let settings =
            ServeSettings { identity: keys, listen, coordinators: vec![identity.pin()], mtu: None };
        let listener = Listener::bind(&runtime, &settings)?.quiet();
        let address = listener.address().to_string();
        runtime.spawn(listener.accept(Arc::new(welcome), bank, never()));
        Ok(Peer { address, pin, hello, mtu: None })
    };
    let peers = workers.into_iter().map(start).collect::<Result<_, ServeError>>()?;
    Ok((runtime, identity, peers))
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_io().enable_time().build()
}

/// One local reason why no shard can be reached.
fn everywhere(expected: Vec<(Arc<str>, Hello)>, reason: &dyn ToString) -> ConnectError {
    let board = Switchboard::new(expected, CallerSettings::default(), Instant::now());
    let fault = Fault::Local(reason.to_string());
    ConnectError((0..board.len()).map(|link| board.error(link, fault.clone(), Vec::new())).collect())
}

/// Address shown where a loopback worker could not be started.
const LOOPBACK: &str = "127.0.0.1";
