//! The programs from outside: this crate starts `laguna-coord` and `laguna-worker` as a user does, and looks at exit
//! codes, messages, outputs and processes. `tests/` has one topic a file; its README says what each proves.
//!
//! - [`programs`]: the two binaries, built once in the profile of the running test
//! - [`run`]: one process: arguments, deadline, captured output, signals; no test can hang on it
//! - [`cluster`]: a folder with a topology, keys and ports; workers started from it
//! - [`api`]: a coordinator that serves, and requests to it
//! - [`http`]: a serving coordinator, asked byte by byte
//! - [`models`]: bundled checkpoints, and copies with one thing wrong
//! - [`outputs`]: safetensors files compared bit by bit
//! - [`raw`]: a peer with the right key that sends any bytes
//! - [`relay`]: a link between two machines, on one: delay, loss, reordering, rate
//! - [`forge`]: a synthetic checkpoint, large enough for memory and reads to mean something
//!
//! A test that fails panics with the process's whole output: in this crate a panic is the report.
#![forbid(unsafe_code)]

pub mod api;
pub mod cluster;
pub mod forge;
pub mod http;
pub mod models;
pub mod outputs;
pub mod programs;
pub mod raw;
pub mod relay;
pub mod run;
