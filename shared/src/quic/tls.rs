//! TLS 1.3 with both ends authenticated by pin. Every handshake signature is checked; there is no mode without.

use std::sync::{Arc, Mutex, PoisonError};

use laguna_topology::Pin;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::identity::{Identity, pin_of};

/// Crypto of a coordinator that expects the worker with this pin, and what it then saw.
pub(crate) fn client(identity: &Identity, expected: Pin) -> Result<(QuicClientConfig, Arc<Pinned>), Error> {
    let provider = Arc::new(provider());
    let pinned = Arc::new(Pinned::new(vec![expected], provider.clone()));
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous() // rustls's word for any verifier of one's own; ours checks pin and signature.
        .with_custom_certificate_verifier(pinned.clone())
        .with_client_auth_cert(vec![identity.certificate.clone()], identity.key.clone_key())?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    let config = QuicClientConfig::try_from(config).map_err(|error| Error::General(error.to_string()))?;
    Ok((config, pinned))
}

/// Crypto of a worker that admits the coordinators with these pins.
pub(crate) fn server(identity: &Identity, admitted: Vec<Pin>) -> Result<QuicServerConfig, Error> {
    let provider = Arc::new(provider());
    let pinned = Arc::new(Pinned::new(admitted, provider.clone()));
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(pinned)
        .with_single_cert(vec![identity.certificate.clone()], identity.key.clone_key())?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    QuicServerConfig::try_from(config).map_err(|error| Error::General(error.to_string()))
}

/// Admits exactly the certificates whose pins it holds.
#[derive(Debug)]
pub(crate) struct Pinned {
    admitted: Vec<Pin>,
    provider: Arc<CryptoProvider>,
    refused: Mutex<Option<Pin>>,
}

impl Pinned {
    fn new(admitted: Vec<Pin>, provider: Arc<CryptoProvider>) -> Self {
        Self { admitted, provider, refused: Mutex::new(None) }
    }

    /// The last pin that was not admitted, for the error message.
    pub(crate) fn refused(&self) -> Option<Pin> {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        let pin = pin_of(certificate);
        if self.admitted.contains(&pin) {
            return Ok(());
        }
        tracing::warn!(%pin, "a node with an unknown key was refused");
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(pin);
        Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    fn signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(certificate).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls13RequiredForQuic.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for Pinned {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(certificate).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls13RequiredForQuic.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// ring, AES first: ChaCha20 costs 17 µs more a call and halves bulk speed on every machine with AES instructions.
fn provider() -> CryptoProvider {
    let mut provider = ring::default_provider();
    provider.cipher_suites = vec![
        ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
        ring::cipher_suite::TLS13_AES_256_GCM_SHA384,
        ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    provider
}

/// Protocol name in the handshake. Changes with the wire version.
pub(crate) const ALPN: &[u8] = b"laguna-ep/1";
