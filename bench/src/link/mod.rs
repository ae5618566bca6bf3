//! The simulated link itself: how far what it does is from what it says.
//!
//! - [`measure`]: round trips, throughput and loss of every preset, beside 127.0.0.1 without a relay
//! - [`flags`]: its part of the command line

pub mod flags;
pub mod measure;
