//! What both ends must agree on. Read in this order:
//!
//! - [`ids`]: layers, experts, shards
//! - [`config`]: `config.json` in, [`config::ModelConfig`] out
//! - [`weights`]: a checkpoint's tensors, found by name, without reading them
//! - [`compute`]: [`compute::ExpertBank`]: rows in, weighted sums out; the plain-Rust oracle and MLX
//! - [`fingerprint`]: which model, which weights: must be equal on both ends
//! - [`wire`]: bytes. Sans-IO, no clock
//! - [`session`]: behaviour of both ends. Sans-IO, time is an argument
//! - [`quic`]: the only room that names quinn and rustls

pub mod compute;
pub mod config;
pub mod fingerprint;
pub mod quic;
pub mod session;
pub mod weights;
pub mod wire;

pub use laguna_topology::ids;
