//! Sessions over QUIC. The only room that names quinn and rustls.
//!
//! Read in this order:
//!
//! - [`identity`]: one self-signed certificate a node, and the pin by which the other end knows it
//! - `tls`: TLS 1.3, both ends authenticated, both pinned; nothing skips verification
//! - [`path`]: sockets, datagram sizes, windows and timers, with units and reasons
//! - `window`: how much may be in flight on a link of one's own
//! - `drive`: one UDP socket and its connections, driven by whoever calls: no runtime, no other thread
//! - [`spin`](mod@spin): whether an end that waits spins, or sleeps
//! - `end`: how the end of a connection reads as a fault
//! - `dial`: from an address to an authenticated connection
//! - `probe`: whether a silent worker's host still has a process there
//! - `restart`: how a worker that was started again says so
//! - `wire`: bytes between a coordinator's session and its connection
//! - [`links`]: the coordinator's end: [`links::QuicLinks`], driven by the engine thread alone
//! - `visit`: one coordinator's visit to a worker, from first datagram to close
//! - `host`: all visits, one bank, computing on the thread that reads the socket
//! - [`server`]: the worker's end: [`server::QuicServer`], a host with a thread
//! - [`stop`]: how a worker is told to stop
//!
//! One connection a coordinator and worker; on it one bidirectional stream for its whole life, framed as
//! [`crate::wire`] says. A stream per call measured the same and would need a frame of its own for the greeting.
//!
//! # Silence is not death
//!
//! A worker computes on its socket's thread, and so does a coordinator: either may be silent for as long as a call
//! takes, or for as long as nobody asks anything. So death is found by other means, surest first: a close with a code;
//! an ICMP answer to a `probe`, or a stateless reset by the worker's next life (`restart`), each within a second;
//! the deadline of a call (30 s by default); and only as the last net QUIC's idle timeout, ten minutes long for that
//! reason.

pub(crate) mod dial;
pub(crate) mod drive;
pub(crate) mod end;
pub(crate) mod host;
pub mod identity;
pub mod links;
pub mod path;
pub(crate) mod probe;
pub(crate) mod restart;
pub mod server;
pub mod spin;
pub mod stop;
pub(crate) mod tls;
pub(crate) mod visit;
pub(crate) mod window;
pub(crate) mod wire;

#[cfg(test)]
mod tests;

pub use identity::{Identity, IdentityError};
pub use links::{Peer, QuicLinks, QuicSettings};
pub use server::{QuicServer, ServeError, ServeSettings};
pub use spin::{Machine, Others, Power, spins};
pub use stop::Stopper;
