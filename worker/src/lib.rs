//! Holds one shard of the routed experts and answers for it over QUIC.
//!
//! - [`model`]: a checkpoint opened from its headers
//! - [`memory`]: what this machine can hold
//! - [`bank`]: the shard's experts, filled, with [`progress`] shown

pub mod bank;
pub mod memory;
pub mod model;
pub mod progress;
