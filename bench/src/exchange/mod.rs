//! The exchange of a sparse layer, beside raw UDP, TCP and TLS of the same sizes in the same run.
//!
//! - [`payload`]: what goes out and comes back
//! - [`echo`]: the bank behind the exchange, which computes next to nothing
//! - [`udp`], [`tcp`], [`tls`]: baselines between two processes; UDP blocking and spinning
//! - [`quinn`]: QUIC as quinn drives it, blocking
//! - [`quic`]: the project's own links to its own server in another process
//! - [`memory`]: the same session in one process: what the protocol costs without a transport
//! - [`measure`]: cases, and variants taken in turn

pub mod echo;
pub mod measure;
pub mod memory;
pub mod payload;
pub mod quic;
pub mod quinn;
pub mod tcp;
pub mod tls;
pub mod udp;

use serde::{Deserialize, Serialize};

use crate::error::BenchError;

/// What an end does while nothing has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// It sleeps.
    Block,
    /// It looks again and again, for 4 ms at most, then sleeps.
    Spin,
}

/// One way to ask every worker once and to have every answer.
pub trait Exchange {
    /// Sends a request to each worker, then waits for all replies.
    ///
    /// # Errors
    /// If one does not answer.
    fn call(&mut self) -> Result<(), BenchError>;
}
