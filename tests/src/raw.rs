//! Peers that have the right key and say the wrong thing: QUIC by hand, any bytes on the stream.
//!
//! TLS is checked here too: each side trusts exactly the other's certificate, out of its key file.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::BytesMut;
use laguna_shared::wire::{FrameBuffer, FrameDecoder, FrameKind, Hello, Welcome};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Connection, ConnectionError, Endpoint, RecvStream, ServerConfig};
use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, ring};
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// What a worker answered to a raw coordinator.
#[derive(Debug)]
pub struct Answer {
    /// Frames, in order.
    pub frames: Vec<(FrameKind, Vec<u8>)>,
    /// How the connection ended; `None` if the worker kept it.
    pub end: Option<ConnectionError>,
}

impl Answer {
    /// The code with which the worker closed; the test fails if it did not.
    #[track_caller]
    pub fn close_code(&self) -> u64 {
        match &self.end {
            Some(ConnectionError::ApplicationClosed(close)) => close.error_code.into_inner(),
            other => panic!("the worker did not close: {other:?}"),
        }
    }
}

/// Connects to a worker as the coordinator whose key is `own`, sends `bytes`, and listens until the worker closes or
/// has sent `enough` frames.
///
/// # Panics
/// If there is no connection.
pub fn say_to_worker(address: &str, own: &Path, worker: &Path, bytes: &[u8], enough: usize) -> Answer {
    let address: SocketAddr = address.parse().expect("an address");
    let mut crypto = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3 is there")
        .with_root_certificates(trust(worker))
        .with_client_auth_cert(vec![certificate(own)], key(own))
        .expect("the key fits the certificate");
    crypto.alpn_protocols = vec![ALPN.to_vec()];
    let crypto = QuicClientConfig::try_from(crypto).expect("TLS for QUIC");
    runtime().block_on(async {
        let endpoint = Endpoint::client(([127, 0, 0, 1], 0).into()).expect("a UDP socket");
        let connecting = endpoint.connect_with(ClientConfig::new(Arc::new(crypto)), address, "laguna");
        let connecting = timeout(PATIENCE, connecting.expect("the settings are sound"));
        let connection = connecting.await.expect("in time").expect("a connection");
        let (mut send, mut recv) = connection.open_bi().await.expect("a stream");
        send.write_all(bytes).await.expect("the stream takes it");
        let frames = frames(&mut recv, enough).await;
        let end = timeout(if frames.len() < enough { PATIENCE } else { Duration::ZERO }, connection.closed());
        let end = end.await.ok();
        connection.close(0_u32.into(), b"done");
        endpoint.wait_idle().await;
        Answer { frames, end }
    })
}

/// Frames until the stream ends or there are `enough`.
async fn frames(recv: &mut RecvStream, enough: usize) -> Vec<(FrameKind, Vec<u8>)> {
    let (mut decoder, mut frame, mut frames) = (FrameDecoder::default(), FrameBuffer::default(), Vec::new());
    while frames.len() < enough {
        let chunk = timeout(PATIENCE, recv.read_chunk(usize::MAX, true)).await.expect("in time");
        let Ok(Some(chunk)) = chunk else { break };
        let mut rest = &chunk.bytes[..];
        while !rest.is_empty() {
            rest = &rest[decoder.handle_bytes(rest).expect("the worker sends frames")..];
            if let Some(kind) = decoder.poll_frame(&mut frame) {
                frames.push((kind, frame.as_bytes().to_vec()));
            }
        }
    }
    frames
}

/// A worker with the right key that says what a test tells it to, to one coordinator.
#[derive(Debug)]
pub struct Puppet {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A puppet's lines, given the coordinator's hello: the first follows the hello, each other one the next thing heard.
pub type Script = Box<dyn FnOnce(&Hello) -> Vec<Vec<u8>> + Send>;

impl Puppet {
    /// Listens at `address` with the key `own`.
    ///
    /// # Panics
    /// If the address is taken.
    pub fn start(address: &str, own: &Path, coordinator: &Path, script: Script) -> Self {
        let address: SocketAddr = address.parse().expect("an address");
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(trust(coordinator)), provider());
        let mut crypto = rustls::ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3 is there")
            .with_client_cert_verifier(verifier.build().expect("a verifier"))
            .with_single_cert(vec![certificate(own)], key(own))
            .expect("the key fits the certificate");
        crypto.alpn_protocols = vec![ALPN.to_vec()];
        let crypto = QuicServerConfig::try_from(crypto).expect("TLS for QUIC");
        let runtime = runtime();
        let endpoint = {
            let _inside = runtime.enter();
            Endpoint::server(ServerConfig::with_crypto(Arc::new(crypto)), address).expect("the port is free")
        };
        let (stop, stopped) = oneshot::channel();
        let thread = thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = perform(&endpoint, script) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.stop.take().map(|stop| stop.send(()));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Plays the script, then keeps the connection until the coordinator ends it.
async fn perform(endpoint: &Endpoint, script: Script) -> Option<Connection> {
    let connection = endpoint.accept().await?.await.ok()?;
    let (mut send, mut recv) = connection.accept_bi().await.ok()?;
    let (_, hello) = frames(&mut recv, 1).await.pop()?;
    let hello = Hello::decode(&hello).expect("the coordinator says hello");
    for (n, line) in script(&hello).into_iter().enumerate() {
        if n > 0 {
            recv.read_chunk(usize::MAX, true).await.ok()??;
        }
        send.write_all(&line).await.ok()?;
    }
    connection.closed().await;
    Some(connection)
}

/// The welcome that this hello expects, as a frame, after `edit`.
pub fn welcome(hello: &Hello, edit: impl FnOnce(&mut Welcome)) -> Vec<u8> {
    let mut welcome = Welcome {
        build: hello.build.clone(),
        fingerprint: hello.fingerprint,
        shard: hello.shard,
        range: hello.range,
        weights: hello.weights,
        sparse_layers: hello.sparse_layers.clone(),
        hidden: hello.hidden,
        activations: vec![hello.activation],
        backend: "puppet".to_owned(),
        free_memory_bytes: 0,
        resident_bytes: 0,
    };
    edit(&mut welcome);
    let mut out = BytesMut::new();
    welcome.encode(&mut out).expect("a welcome fits its frame");
    out.to_vec()
}

/// A hello as a frame.
pub fn hello(hello: &Hello) -> Vec<u8> {
    let mut out = BytesMut::new();
    hello.encode(&mut out).expect("a hello fits its frame");
    out.to_vec()
}

/// The same greeting in another version of the protocol: the number is the payload's first word.
pub fn in_version(mut greeting: Vec<u8>, version: u32) -> Vec<u8> {
    greeting[FRAME_HEADER..FRAME_HEADER + 4].copy_from_slice(&version.to_le_bytes());
    greeting
}

/// The header of a frame that claims `length` bytes: length, kind, three zeros.
pub fn frame_header(kind: FrameKind, length: u32) -> Vec<u8> {
    let mut header = length.to_le_bytes().to_vec();
    header.extend([kind as u8, 0, 0, 0]);
    header
}

fn trust(file: &Path) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(certificate(file)).expect("a certificate can be trusted");
    roots
}

fn certificate(file: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn key(file: &Path) -> PrivateKeyDer<'static> {
    PrivateKeyDer::from_pem_file(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime starts")
}

const ALPN: &[u8] = b"laguna-ep/1";

/// Bytes of a frame's header.
const FRAME_HEADER: usize = 8;

const PATIENCE: Duration = Duration::from_secs(20);
