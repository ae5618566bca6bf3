//! QUIC as quinn drives it, on a tokio runtime at each end: the project's settings without its driver, its session and its
//! frames. One long stream, blocking.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use laguna_shared::quic::path::{self, End};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    ClientConfig, Connection, Endpoint, RecvStream, SendStream, ServerConfig, TokioRuntime, TransportConfig,
};
use rustls_pki_types::CertificateDer;
use tokio::runtime::{Builder, Runtime};

use super::payload::Sizes;
use super::{Exchange, tls};
use crate::child::{Child, Launch, Role, say};
use crate::error::BenchError;

/// One connection to each child, all on one runtime that runs while a call does.
pub struct Quinn {
    runtime: Runtime,
    peers: Vec<Peer>,
    request: Vec<u8>,
    reply: Vec<u8>,
}

struct Peer {
    send: SendStream,
    recv: RecvStream,
    _connection: Connection,
    _child: Child,
}

impl Quinn {
    /// Starts the children.
    ///
    /// # Errors
    /// If one does not start.
    pub fn start(sizes: Sizes, workers: usize, launch: &Launch) -> Result<Self, BenchError> {
        let runtime = runtime()?;
        let endpoint = endpoint(&runtime, None)?;
        let peer = |_| {
            let mut child = Child::start(&Role::Quinn(sizes), launch)?;
            let (address, certificate): (SocketAddr, Vec<u8>) = child.hear()?;
            let crypto = tls::client_config(CertificateDer::from(certificate))?;
            let crypto = QuicClientConfig::try_from(crypto).map_err(BenchError::failed)?;
            let mut config = ClientConfig::new(Arc::new(crypto));
            config.transport_config(Arc::new(transport(End::Coordinator)));
            runtime.block_on(async {
                let connecting = endpoint.connect_with(config, address, tls::NAME);
                let connection = connecting.map_err(BenchError::failed)?.await.map_err(BenchError::failed)?;
                let (send, recv) = connection.open_bi().await.map_err(BenchError::failed)?;
                Ok(Peer { send, recv, _connection: connection, _child: child })
            })
        };
        let peers = (0..workers).map(peer).collect::<Result<_, BenchError>>()?;
        Ok(Self { runtime, peers, request: vec![1; sizes.request], reply: vec![0; sizes.reply] })
    }
}

impl Exchange for Quinn {
    fn call(&mut self) -> Result<(), BenchError> {
        let Self { runtime, peers, request, reply } = self;
        runtime.block_on(async {
            for peer in peers.iter_mut() {
                peer.send.write_all(request).await.map_err(BenchError::failed)?;
            }
            for peer in peers {
                peer.recv.read_exact(reply).await.map_err(BenchError::failed)?;
            }
            Ok(())
        })
    }
}

/// The child: answers the first connection until it closes.
///
/// # Errors
/// If it cannot listen.
pub fn serve(sizes: Sizes) -> Result<(), BenchError> {
    let runtime = runtime()?;
    let (crypto, certificate) = tls::server_config()?;
    let crypto = QuicServerConfig::try_from(crypto).map_err(BenchError::failed)?;
    let mut config = ServerConfig::with_crypto(Arc::new(crypto));
    config.transport_config(Arc::new(transport(End::Worker)));
    let endpoint = endpoint(&runtime, Some(config))?;
    let address = endpoint.local_addr().map_err(BenchError::io("quinn"))?;
    say(&(address, certificate.as_ref()))?;
    runtime.block_on(async {
        let incoming = endpoint.accept().await.ok_or_else(|| BenchError::Failed("nobody came".to_owned()))?;
        let connection = incoming.await.map_err(BenchError::failed)?;
        let (mut send, mut recv) = connection.accept_bi().await.map_err(BenchError::failed)?;
        let (mut request, reply) = (vec![0; sizes.request], vec![2; sizes.reply]);
        while recv.read_exact(&mut request).await.is_ok() {
            send.write_all(&reply).await.map_err(BenchError::failed)?;
        }
        Ok(())
    })
}

fn transport(end: End) -> TransportConfig {
    let mut transport = path::transport(path::datagram_bound(Ipv4Addr::LOCALHOST.into(), None), end);
    // quinn sends ten datagrams at a time, which no system call carries at this size; it takes that for loss.
    transport.enable_segmentation_offload(false);
    transport
}

fn endpoint(runtime: &Runtime, server: Option<ServerConfig>) -> Result<Endpoint, BenchError> {
    let _inside = runtime.enter();
    let socket = path::socket((Ipv4Addr::LOCALHOST, 0).into()).map_err(BenchError::io("quinn"))?;
    Endpoint::new(path::endpoint(), server, socket, Arc::new(TokioRuntime)).map_err(BenchError::io("quinn"))
}

fn runtime() -> Result<Runtime, BenchError> {
    Builder::new_current_thread().enable_all().build().map_err(BenchError::io("tokio"))
}
