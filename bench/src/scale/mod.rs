//! How speed changes along one axis at a time, all else being as in the first case.
//!
//! - [`measure`]: the axes, their values, and what each value does to decode and prefill
//! - [`flags`]: its part of the command line

pub mod flags;
pub mod measure;
