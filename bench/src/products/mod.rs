//! Products of the trunk by themselves: how near each weight format comes to the speed of memory, with few rows.
//!
//! - [`weights`]: matrices of noise in each format
//! - [`measure`]: rows through them
//! - [`flags`]: the command line's

pub mod flags;
pub mod measure;
pub mod weights;
