//! Measures the exchange, the experts and whole models, each beside a baseline of the same run, because absolute times
//! of two moments do not compare. What was measured, where, and what is missed stands in README.md.
//!
//! Rooms, in the order of what they measure:
//!
//! - [`exchange`]: the project's links beside raw UDP, TCP and TLS
//! - [`experts`]: banks beside the speed of memory and an f64 oracle
//! - [`products`]: the trunk's matrix products beside the speed of memory
//! - [`e2e`]: whole models, by where the experts are, and at the end of which link
//! - [`scale`]: the same along one axis at a time
//! - [`recorder`]: what the flight recorder costs
//! - [`load`]: from start to serving, beside reading the same bytes
//! - [`link`]: the simulated links that some of these use
//! - [`synth`]: checkpoints of any shape to measure with
//!
//! And what these stand on: [`child`] (the other process), [`stats`], [`machine`], [`report`], [`cli`], [`error`].
//! Finer grains are in `benches/`, for `cargo bench`; other programs beside this one in `peers/`.

#![forbid(unsafe_code)]

pub mod allocations;
pub mod child;
pub mod cli;
pub mod e2e;
pub mod error;
pub mod exchange;
pub mod experts;
pub mod link;
pub mod load;
pub mod machine;
pub mod products;
pub mod recorder;
pub mod report;
pub mod scale;
pub mod stats;
pub mod synth;

use std::path::{Path, PathBuf};

use error::BenchError;

/// The bundled small model, in the source tree this program was built from.
pub fn nano() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/nano")
}

/// A folder in the system's temporary one, removed when dropped.
///
/// # Errors
/// If there is no place for it.
pub fn scratch(purpose: &str) -> Result<tempfile::TempDir, BenchError> {
    let prefix = format!("laguna-bench-{purpose}-");
    tempfile::Builder::new().prefix(&prefix).tempdir().map_err(BenchError::io("temporary folder"))
}
