//! From a topology and a checkpoint's numbers to who holds what, before anything is loaded.
//!
//! Pure integer arithmetic: the same file and model give the same plan on every node.
//!
//! - `model`: the numbers a checkpoint brings ([`ModelBytes`])
//! - `layout`: the finished [`Plan`]: ranges, owners, holders, bytes
//! - `fill`: [`plan()`], which keeps the ranges the file fixes and places the others
//! - `split`: how many experts each shard gets
//! - `error`: why there is no plan, with every number

mod error;
mod fill;
mod layout;
mod model;
mod split;

pub use error::{PlanError, Shortage};
pub use fill::plan;
pub use layout::{Plan, ShardPlan};
pub use model::{LayerBytes, ModelBytes};
