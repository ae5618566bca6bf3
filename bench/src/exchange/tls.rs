//! TLS 1.3 on TCP, blocking: what encryption costs without QUIC.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::crypto::ring::default_provider;
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};

use super::Exchange;
use super::payload::Sizes;
use super::tcp;
use crate::child::{Child, Launch, Role, say};
use crate::error::BenchError;

/// One connection to each child.
pub struct Tls {
    peers: Vec<(StreamOwned<ClientConnection, TcpStream>, Child)>,
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl Tls {
    /// Starts the children.
    ///
    /// # Errors
    /// If one does not start.
    pub fn start(sizes: Sizes, workers: usize, launch: &Launch) -> Result<Self, BenchError> {
        let peer = |_| {
            let mut child = Child::start(&Role::Tls(sizes), launch)?;
            let (address, certificate): (SocketAddr, Vec<u8>) = child.hear()?;
            let name = ServerName::try_from(NAME).map_err(BenchError::failed)?;
            let config = client_config(CertificateDer::from(certificate))?;
            let client = ClientConnection::new(Arc::new(config), name).map_err(BenchError::failed)?;
            Ok((StreamOwned::new(client, tcp::connect(address)?), child))
        };
        let peers = (0..workers).map(peer).collect::<Result<_, BenchError>>()?;
        Ok(Self { peers, request: vec![1; sizes.request], reply: vec![0; sizes.reply] })
    }
}

impl Exchange for Tls {
    fn call(&mut self) -> Result<(), BenchError> {
        for (stream, _) in &mut self.peers {
            stream.write_all(&self.request).and_then(|()| stream.flush()).map_err(BenchError::io("TLS"))?;
        }
        for (stream, _) in &mut self.peers {
            stream.read_exact(&mut self.reply).map_err(BenchError::io("TLS"))?;
        }
        Ok(())
    }
}

/// The child: answers the first connection until it closes.
///
/// # Errors
/// If the connection fails.
pub fn serve(sizes: Sizes) -> Result<(), BenchError> {
    let (config, certificate) = server_config()?;
    let listener = tcp::listen()?;
    let address = listener.local_addr().map_err(BenchError::io("TLS"))?;
    say(&(address, certificate.as_ref()))?;
    let connection = ServerConnection::new(Arc::new(config)).map_err(BenchError::failed)?;
    tcp::answer(StreamOwned::new(connection, tcp::accept(&listener)?), sizes, "TLS")
}

pub(super) fn server_config() -> Result<(ServerConfig, CertificateDer<'static>), BenchError> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).map_err(BenchError::failed)?;
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(BenchError::failed)?;
    let config = ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&TLS13])
        .and_then(|config| config.with_no_client_auth().with_single_cert(vec![certificate.clone()], key))
        .map_err(BenchError::failed)?;
    Ok((config, certificate))
}

pub(super) fn client_config(certificate: CertificateDer<'static>) -> Result<ClientConfig, BenchError> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate).map_err(BenchError::failed)?;
    Ok(ClientConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&TLS13])
        .map_err(BenchError::failed)?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

/// ring with the cipher that the links choose, so that all encrypt alike.
fn provider() -> CryptoProvider {
    CryptoProvider { cipher_suites: vec![TLS13_AES_128_GCM_SHA256], ..default_provider() }
}

/// Name in the certificate.
pub(super) const NAME: &str = "laguna-bench";
