//! Behaviour of both ends. Sans-IO; time is an argument.
//!
//! Read in this order:
//!
//! - [`caller`]: the coordinator's end of one link: hello, calls in flight, deadlines
//! - [`server`]: the worker's end of one link: hello check, calls, drain
//! - `outbox`: what either end writes to, in memory that is used again
//! - [`fault`]: what can go wrong, by who is at fault
//! - [`links`]: the seam that the engine drives, whatever lies below it
//! - [`memory`]: both ends in one process: `--loopback`
//!
//! # How to drive an end
//!
//! There are four kinds of method. `handle_*` take what happened (bytes, the end of the transport, time). Mutators
//! change what is wanted (a call, a drain). After either, `poll_*` say what to do: bytes to send, events for the owner,
//! the next deadline. Getters look. Both ends run unchanged over memory and over QUIC, and under a test's own clock.

pub mod caller;
pub mod fault;
pub mod links;
pub mod memory;
mod outbox;
pub mod server;

#[cfg(test)]
pub(crate) mod pair;

pub use caller::{Caller, CallerEvent, CallerSettings};
pub use fault::{ConnectError, Fault, Gone, Misbehaviour, Missing, ShardError};
pub use links::{Links, Reply, ShardInfo, Switchboard};
pub use memory::{InMemoryLinks, InMemoryWorker};
pub use server::{Server, ServerEnd};
