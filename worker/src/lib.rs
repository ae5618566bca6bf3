//! Holds one shard of the routed experts and answers for it over QUIC. In the order a start goes:
//!
//! - [`args`]: flags as plain data; [`logging`]: what is said on stderr
//! - [`run`]: topology and plan, key and socket, experts, then calls until told to stop
//! - [`model`]: a checkpoint opened from its headers
//! - [`memory`]: what this machine can hold
//! - [`bank`]: the shard's experts, filled, with [`progress`] shown
//!
//! A token passes through here: bytes reach [`laguna_shared::quic::server`], its session checks the call, the bank
//! computes it on the same thread, and the sums go back.

pub mod args;
pub mod bank;
pub mod logging;
pub mod memory;
pub mod model;
pub mod progress;
pub mod run;
