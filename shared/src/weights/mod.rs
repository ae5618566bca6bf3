//! What a checkpoint contains, found by name without reading it, and how its bytes become numbers. In reading order:
//!
//! - [`header`]: one safetensors file's table of tensors, checked
//! - [`checkpoint`]: a directory of such files; reads byte ranges, nothing else
//! - [`names`]: checkpoint names, folded to one form
//! - [`inventory`]: where each part of the model lies; `resolve` finds the parts, `packed` knows the number formats
//!   they come in, [`report`] lists everything that does not fit
//! - [`mapped`]: bytes of weights used where they lie in a file; `memory` for those that do not
//! - [`load`]: matrices and stacks of experts as bytes
//! - [`nvfp4`], [`affine`], [`decode`]: bytes as numbers, bit-exact
//! - [`account`]: parameters and bytes by part

pub mod account;
pub mod affine;
pub mod checkpoint;
pub mod decode;
pub mod header;
pub mod inventory;
pub mod load;
pub mod mapped;
mod memory;
pub mod names;
pub mod nvfp4;
pub mod report;

#[cfg(test)]
mod account_tests;
#[cfg(test)]
mod checkpoint_tests;
#[cfg(test)]
mod fixture_tests;
#[cfg(test)]
pub(crate) mod forge;
#[cfg(test)]
mod load_tests;
mod packed;
mod resolve;
#[cfg(test)]
mod resolve_tests;

pub use account::Account;
pub use checkpoint::{Checkpoint, CheckpointError, TensorInfo};
pub use header::Dtype;
pub use inventory::Inventory;
pub use load::{RawMatrix, RawStack, read_matrix, stack_experts, stack_experts_with_progress};
pub use report::InventoryError;
