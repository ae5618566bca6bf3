//! The flight recorder: what it costs while it is off, and while it is on.
//!
//! - [`measure`]: its calls by themselves, and whole runs with and without it

pub mod measure;
