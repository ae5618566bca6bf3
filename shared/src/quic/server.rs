//! The worker's end: accepts coordinators and computes for them on the thread that reads the socket.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use laguna_topology::Pin;
use quinn::{Connection, Endpoint, Incoming, ReadError, RecvStream, SendStream, ServerConfig, TokioRuntime};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep_until, timeout};

use super::identity::{Identity, IdentityError};
use super::path::{self, End};
use super::{end, restart, tls};
use crate::compute::ExpertBank;
use crate::session::{Server, ServerEnd};
use crate::wire::{CloseCode, Welcome};

/// Where a worker listens, and for whom.
#[derive(Clone, Debug)]
pub struct ServeSettings {
    /// Who this worker is.
    pub identity: Identity,
    /// Address and UDP port to listen at; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Certificates of the coordinators that are admitted.
    pub coordinators: Vec<Pin>,
    /// Bytes of UDP payload to send at most, `1200..=65507`; `None` chooses by path. Probing finds what really passes.
    pub mtu: Option<u16>,
}

/// Why a worker cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address is taken, not this host's, or not allowed.
    #[error("cannot listen at {0}: {1}")]
    Listen(SocketAddr, io::Error),
    /// The keys cannot be used.
    #[error("cannot use this worker's key: {0}")]
    Tls(String),
    /// The keys cannot be made.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The runtime cannot start.
    #[error("cannot start: {0}")]
    Runtime(io::Error),
}

/// A worker that listens and does not answer yet.
pub struct QuicServer {
    runtime: Runtime,
    listener: Listener,
}

impl QuicServer {
    /// Takes the address.
    pub fn bind(settings: &ServeSettings) -> Result<Self, ServeError> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(ServeError::Runtime)?;
        let listener = Listener::bind(&runtime, settings)?;
        Ok(Self { runtime, listener })
    }

    /// Where it listens, the port resolved.
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Serves until `shutdown` ends; then finishes the running call, tells every coordinator, and returns.
    ///
    /// `bank` is used on the calling thread only. `shutdown` is polled there too, between calls. Must not be called
    /// from inside a tokio runtime.
    pub fn run(self, welcome: Welcome, bank: Box<dyn ExpertBank>, shutdown: impl Future<Output = ()>) {
        let Self { runtime, listener } = self;
        let endpoint = listener.endpoint.clone();
        let (drain, draining) = watch::channel(false);
        runtime.block_on(async {
            let accepting = tokio::spawn(listener.accept(Arc::new(welcome), bank, draining));
            shutdown.await;
            // Nobody listens only if accepting has ended already.
            let _ = drain.send(true);
            let _ = timeout(DRAIN_LIMIT, accepting).await;
            endpoint.close(end::code(CloseCode::Draining), b"draining");
            let _ = timeout(FAREWELL, endpoint.wait_idle()).await;
        });
    }
}

/// A socket with this worker's key, on somebody's runtime.
pub(crate) struct Listener {
    endpoint: Endpoint,
    address: SocketAddr,
    config: ServerConfig,
    mtu: Option<u16>,
    /// Whether coordinators are this process itself, whose coming and going is no news.
    quiet: bool,
}

impl Listener {
    pub(crate) fn bind(runtime: &Runtime, settings: &ServeSettings) -> Result<Self, ServeError> {
        let ServeSettings { identity, listen, coordinators, mtu } = settings;
        let crypto = tls::server(identity, coordinators.clone());
        let config =
            ServerConfig::with_crypto(Arc::new(crypto.map_err(|error| ServeError::Tls(error.to_string()))?));
        let cannot = |error| ServeError::Listen(*listen, error);
        let _inside = runtime.enter();
        let socket = path::listener(*listen).map_err(cannot)?;
        let mut settings = path::endpoint();
        restart::outlive(&mut settings, identity);
        let endpoint = Endpoint::new(settings, Some(config.clone()), socket, Arc::new(TokioRuntime));
        let endpoint = endpoint.map_err(cannot)?;
        let address = endpoint.local_addr().map_err(cannot)?;
        Ok(Self { endpoint, address, config, mtu: *mtu, quiet: false })
    }

    /// For coordinators in this process: that they come and go is told at debug.
    pub(crate) fn quiet(self) -> Self {
        Self { quiet: true, ..self }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts coordinators until drained, then waits until every session has said goodbye.
    pub(crate) async fn accept(
        self,
        offer: Arc<Welcome>,
        bank: Box<dyn ExpertBank>,
        mut draining: watch::Receiver<bool>,
    ) {
        // Connections take turns with the bank. The lock is never held across a wait, so never contended either.
        let bank = Arc::new(Mutex::new(bank));
        let admitted = Arc::new(Admitted::default());
        let mut sessions = JoinSet::new();
        loop {
            let incoming = tokio::select! {
                incoming = self.endpoint.accept() => incoming,
                () = drained(&mut draining) => break,
            };
            let Some(incoming) = incoming else { break };
            while sessions.try_join_next().is_some() {}
            let session = Session {
                offer: offer.clone(),
                bank: bank.clone(),
                draining: draining.clone(),
                admitted: admitted.clone(),
                quiet: self.quiet,
            };
            // The datagram size depends on where the coordinator is, so the settings are made for each.
            let mut config = self.config.clone();
            let bound = path::datagram_bound(incoming.remote_address().ip(), self.mtu);
            config.transport_config(Arc::new(path::transport(bound, End::Worker)));
            sessions.spawn(session.run(incoming, config));
        }
        while sessions.join_next().await.is_some() {}
    }
}

/// A drain that is never asked for.
pub(crate) fn never() -> watch::Receiver<bool> {
    watch::channel(false).1
}

/// One coordinator's visit.
struct Session {
    offer: Arc<Welcome>,
    bank: Arc<Mutex<Box<dyn ExpertBank>>>,
    draining: watch::Receiver<bool>,
    admitted: Arc<Admitted>,
    quiet: bool,
}

impl Session {
    async fn run(mut self, incoming: Incoming, config: ServerConfig) {
        let remote = incoming.remote_address();
        let connection = match timeout(HANDSHAKE_LIMIT, handshake(incoming, config)).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(reason)) => return tracing::warn!(%remote, reason, "a connection was not accepted"),
            Err(_) => return tracing::warn!(%remote, "a connection was given up during its handshake"),
        };
        let used = self.admitted.enter(&connection);
        let stream = tokio::select! {
            stream = timeout(HANDSHAKE_LIMIT, connection.accept_bi()) => stream,
            () = drained(&mut self.draining) => return connection.close(end::code(CloseCode::Draining), b"draining"),
        };
        let Ok(Ok((send, recv))) = stream else {
            tracing::warn!(%remote, "a coordinator connected and asked for nothing");
            return connection.close(end::code(CloseCode::TimedOut), b"no stream");
        };
        if self.quiet {
            tracing::debug!(%remote, "coordinator connected");
        } else {
            tracing::info!(%remote, "coordinator connected");
        }
        let mut server = Server::new(self.offer.clone(), Instant::now());
        self.converse(&mut server, send, recv, &used).await;
        let close = server.end().map_or(CloseCode::Done, ServerEnd::close_code);
        connection.close(end::code(close), close.to_string().as_bytes());
        match server.end() {
            Some(end @ (ServerEnd::Gone(_) | ServerEnd::Draining)) if self.quiet => {
                tracing::debug!(%remote, calls = server.answered(), %end, "coordinator gone");
            }
            Some(end @ (ServerEnd::Gone(_) | ServerEnd::Draining)) => {
                tracing::info!(%remote, calls = server.answered(), %end, "coordinator gone");
            }
            Some(end) => tracing::warn!(%remote, %end, "coordinator turned away"),
            None => {}
        }
    }

    /// Drives the session until it is over and its last bytes have arrived.
    async fn converse(
        &mut self,
        server: &mut Server,
        mut send: SendStream,
        mut recv: RecvStream,
        used: &LastUse,
    ) {
        loop {
            while let Some(bytes) = server.poll_transmit() {
                if let Err(error) = send.write_chunk(bytes).await {
                    return server.handle_closed(error.to_string());
                }
                if server.has_call() {
                    // Lets this reply leave, and a signal be seen, before the next call is computed.
                    yield_now().await;
                }
            }
            if server.end().is_some() {
                break;
            }
            if server.has_call() && !*self.draining.borrow() {
                self.compute(server);
                used.touch();
                continue;
            }
            let deadline = server.poll_timeout();
            tokio::select! {
                biased;
                chunk = recv.read_chunk(usize::MAX, true) => match chunk {
                    Ok(Some(chunk)) => server.handle_bytes(&chunk.bytes, Instant::now()),
                    Ok(None) => server.handle_closed("stream ended".to_owned()),
                    Err(ReadError::ConnectionLost(error)) => server.handle_closed(error.to_string()),
                    Err(error) => server.handle_closed(error.to_string()),
                },
                () = drained(&mut self.draining) => server.drain(),
                () = due(deadline) => server.handle_timeout(Instant::now()),
            }
        }
        // A close discards what was not delivered yet, and the last frame says why.
        if send.finish().is_ok() {
            let _ = timeout(FAREWELL, send.stopped()).await;
        }
    }

    fn compute(&self, server: &mut Server) {
        let mut bank = self.bank.lock().unwrap_or_else(PoisonError::into_inner);
        server.run_next(&mut **bank, Instant::now);
    }
}

async fn handshake(incoming: Incoming, config: ServerConfig) -> Result<Connection, String> {
    let connecting = incoming.accept_with(Arc::new(config)).map_err(|error| error.to_string())?;
    connecting.await.map_err(|error| error.to_string())
}

async fn drained(draining: &mut watch::Receiver<bool>) {
    if draining.wait_for(|drain| *drain).await.is_err() {
        std::future::pending().await
    }
}

async fn due(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

/// The connections of authenticated coordinators, so that a new one can take the place of one that has died unnoticed.
#[derive(Default)]
struct Admitted(Mutex<Vec<(Connection, LastUse)>>);

impl Admitted {
    fn enter(&self, connection: &Connection) -> LastUse {
        let mut admitted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        admitted.retain(|(connection, _)| connection.close_reason().is_none());
        if admitted.len() >= MAX_COORDINATORS
            && let Some(idle) = (0..admitted.len()).min_by_key(|at| admitted[*at].1.read())
        {
            let (idle, _) = admitted.swap_remove(idle);
            tracing::warn!(remote = %idle.remote_address(), "the connection idle longest makes room for a new one");
            idle.close(end::code(CloseCode::Crowded), b"too many coordinators");
        }
        let used = LastUse::default();
        used.touch();
        admitted.push((connection.clone(), used.clone()));
        used
    }
}

/// When a connection was last used, counted in uses of any connection.
#[derive(Clone, Default)]
struct LastUse(Arc<AtomicU64>);

impl LastUse {
    fn touch(&self) {
        static USES: AtomicU64 = AtomicU64::new(1);
        self.0.store(USES.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }

    fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Connections of admitted coordinators at a time.
const MAX_COORDINATORS: usize = 8;

/// For a stranger to prove who it is.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// For the last bytes of a session to arrive.
const FAREWELL: Duration = Duration::from_millis(500);

/// For every session to end after a drain: the running call has returned by then, so only replies are on their way.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);
