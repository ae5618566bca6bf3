//! From the start of a process until it serves: time and memory, beside the time that reading the same bytes takes.
//!
//! - [`parts`]: which bytes of a checkpoint a node loads, and reading them, plainly
//! - [`measure`]: a worker and a trunk, from warm files and from cold ones
//! - [`flags`]: its part of the command line

pub mod flags;
pub mod measure;
pub mod parts;
