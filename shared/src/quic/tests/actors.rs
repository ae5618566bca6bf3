//! The other ends of these tests: workers in threads, one that is scripted, and a bank that keeps one busy.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use bytes::BytesMut;
use laguna_topology::Pin;
use quinn::{ClientConfig, Connection, Endpoint, ServerConfig, TokioRuntime};
use tokio::runtime::{Builder, Runtime};

use crate::compute::{BankError, ExpertBank, ExpertBatch};
use crate::ids::ExpertRange;
use crate::quic::dial::any;
use crate::quic::identity::SERVER_NAME;
use crate::quic::{Identity, Peer, QuicServer, ServeSettings, Stopper, path, restart, tls};
use crate::session::pair::{ScaleBank, greeting};

/// A worker in a thread of its own.
pub(super) struct Worker {
    pub(super) peer: Peer,
    pub(super) stop: Stopper,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    pub(super) fn start(shard: u16, range: ExpertRange, coordinator: &Identity) -> Self {
        Self::with(shard, Box::new(ScaleBank(range)), coordinator.pin())
    }

    pub(super) fn with(shard: u16, bank: Box<dyn ExpertBank>, coordinator: Pin) -> Self {
        Self::again(shard, bank, coordinator, Identity::generate().unwrap(), "127.0.0.1:0")
    }

    pub(super) fn again(
        shard: u16,
        bank: Box<dyn ExpertBank>,
        coordinator: Pin,
        identity: Identity,
        listen: &str,
    ) -> Self {
        let spin = false;
        let listen = listen.parse().unwrap();
        let settings = ServeSettings { identity, listen, coordinators: vec![coordinator], mtu: None, spin };
        Self::serve(shard, bank, &settings)
    }

    pub(super) fn serve(shard: u16, bank: Box<dyn ExpertBank>, settings: &ServeSettings) -> Self {
        let (hello, welcome) = greeting(shard, bank.range());
        let pin = settings.identity.pin();
        let server = QuicServer::bind(settings).unwrap();
        let peer = Peer { address: server.local_addr().to_string(), pin, hello, mtu: None };
        let stop = server.stopper();
        let thread = spawn(move || server.run(welcome, bank, || {}));
        Self { peer, stop, thread: Some(thread) }
    }

    pub(super) fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end();
    }
}

/// A worker that says what a test tells it to, after the first bytes from the coordinator.
pub(super) struct Puppet {
    pub(super) peer: Peer,
    pub(super) identity: Identity,
    /// Asks the thread to vanish without a word.
    pub(super) vanish: Sender<()>,
}

impl Puppet {
    /// `lines[n]` is written when the n-th read returns something.
    pub(super) fn start(coordinator: &Identity, lines: Vec<BytesMut>) -> Self {
        let identity = Identity::generate().unwrap();
        let (hello, _) = greeting(0, ExpertRange::new(0, 8));
        let pin = identity.pin();
        let runtime = runtime();
        let crypto = tls::server(&identity, vec![coordinator.pin()]).unwrap();
        let endpoint = {
            let _inside = runtime.enter();
            let socket = path::socket(([127, 0, 0, 1], 0).into()).unwrap();
            let config = ServerConfig::with_crypto(Arc::new(crypto));
            let mut settings = path::endpoint();
            restart::outlive(&mut settings, &identity);
            Endpoint::new(settings, Some(config), socket, Arc::new(TokioRuntime)).unwrap()
        };
        let peer = Peer { address: endpoint.local_addr().unwrap().to_string(), pin, hello, mtu: None };
        let (vanish, vanished) = channel();
        spawn(move || Self::run(runtime, endpoint, lines, &vanished));
        Self { peer, identity, vanish }
    }

    fn run(runtime: Runtime, endpoint: Endpoint, lines: Vec<BytesMut>, vanished: &Receiver<()>) {
        let kept = runtime.block_on(async {
            let connection = endpoint.accept().await?.await.ok()?;
            let (mut send, mut recv) = connection.accept_bi().await.ok()?;
            for line in lines {
                recv.read_chunk(usize::MAX, true).await.ok()??;
                send.write_all(&line).await.ok()?;
            }
            // Keeps talking QUIC while the test looks.
            let _ = tokio::time::timeout(Duration::from_millis(200), connection.closed()).await;
            Some((connection, send, recv))
        });
        let _ = vanished.recv();
        // The runtime goes first, so that nothing can say goodbye for it.
        drop(runtime);
        drop((kept, endpoint));
    }
}

/// Connects as plain quinn does, its own driver and settings.
pub(super) async fn dial(identity: &Identity, peer: &Peer) -> Connection {
    let (crypto, _) = tls::client(identity, peer.pin).unwrap();
    let endpoint = Endpoint::client(any([127, 0, 0, 1].into())).unwrap();
    let config = ClientConfig::new(Arc::new(crypto));
    let address = peer.address.parse().unwrap();
    endpoint.connect_with(config, address, SERVER_NAME).unwrap().await.unwrap()
}

pub(super) fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

pub(super) fn welcome_line() -> BytesMut {
    let mut line = BytesMut::new();
    greeting(0, ExpertRange::new(0, 8)).1.encode(&mut line).unwrap();
    line
}

/// A [`ScaleBank`] that does something first.
pub(super) struct BusyBank<F>(pub(super) ScaleBank, pub(super) F);

impl<F: FnMut() + Send> ExpertBank for BusyBank<F> {
    fn range(&self) -> ExpertRange {
        self.0.range()
    }

    fn backend(&self) -> &str {
        self.0.backend()
    }

    fn resident_bytes(&self) -> u64 {
        self.0.resident_bytes()
    }

    fn run(&mut self, batch: &ExpertBatch<'_>, out: &mut Vec<f32>) -> Result<(), BankError> {
        (self.1)();
        self.0.run(batch, out)
    }
}
