//! How the end of a connection reads as a fault.

use laguna_topology::Pin;
use quinn::{ConnectionError, VarInt};

use super::drive::StreamError;
use super::tls::{ALPN, Pinned};
use crate::session::{Fault, Gone, Misbehaviour};
use crate::wire::{CloseCode, Mismatch, Subject};

/// The code of a close, for quinn.
pub(crate) fn code(close: CloseCode) -> VarInt {
    VarInt::from_u64(close.number()).unwrap_or(VarInt::MAX)
}

/// Why a connection attempt failed. `pinned` knows which key was shown.
pub(crate) fn of_handshake(error: ConnectionError, expected: Pin, pinned: &Pinned) -> Fault {
    match pinned.refused() {
        Some(shown) => Fault::Unauthenticated(format!(
            "worker shows the key {shown}, the coordinator expects {expected}"
        )),
        None => of_connection(error),
    }
}

/// Why a connection is over.
pub(crate) fn of_connection(error: ConnectionError) -> Fault {
    match error {
        ConnectionError::ApplicationClosed(close) => {
            Fault::PeerGone(Gone::Closed(CloseCode::from_number(close.error_code.into_inner())))
        }
        ConnectionError::ConnectionClosed(close) => match alert(close.error_code.into()) {
            Some(NO_APPLICATION_PROTOCOL) => other_protocol(),
            Some(_) => {
                let reason = String::from_utf8_lossy(&close.reason);
                Fault::Unauthenticated(format!("worker does not admit this coordinator's key ({reason})"))
            }
            None => Fault::PeerGone(Gone::Lost(close.to_string())),
        },
        ConnectionError::TransportError(error) => match alert(error.code.into()) {
            Some(NO_APPLICATION_PROTOCOL) => other_protocol(),
            Some(_) => Fault::Unauthenticated(error.reason),
            None => Fault::PeerGone(Gone::Lost(error.to_string())),
        },
        ConnectionError::TimedOut => Fault::PeerGone(Gone::Silent),
        ConnectionError::Reset => Fault::PeerGone(Gone::Lost("worker was started anew".to_owned())),
        other @ (ConnectionError::VersionMismatch
        | ConnectionError::LocallyClosed
        | ConnectionError::CidsExhausted) => Fault::PeerGone(Gone::Lost(other.to_string())),
    }
}

/// Why the stream gives or takes nothing any more, on a connection that is up.
pub(crate) fn of_stream(_: StreamError) -> Fault {
    Fault::PeerMisbehaved(Misbehaviour::StreamEnded)
}

/// The TLS alert in a QUIC error code, if it is one: 0x100 + alert.
fn alert(code: u64) -> Option<u8> {
    code.checked_sub(0x100).and_then(|alert| u8::try_from(alert).ok())
}

/// TLS could not agree on a protocol name, which changes with the wire version.
fn other_protocol() -> Fault {
    let coordinator = String::from_utf8_lossy(ALPN).into_owned();
    let worker = "another protocol".to_owned();
    Fault::Incompatible(Box::new(Mismatch { subject: Subject::ProtocolVersion, coordinator, worker }))
}

/// The TLS alert of that name.
const NO_APPLICATION_PROTOCOL: u8 = 120;
