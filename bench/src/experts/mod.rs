//! Routed experts by themselves: how near each bank comes to the speed of memory, and to the exact result.
//!
//! - [`bandwidth`]: what this machine's memory gives to plain reads
//! - [`oracle`]: the experts in f64
//! - [`variant`]: the banks, and slower ways to run them
//! - [`measure`]: rows through banks

pub mod bandwidth;
pub mod measure;
pub mod oracle;
pub mod variant;
