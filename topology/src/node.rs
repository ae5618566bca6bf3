//! What a node is called in messages and in the names of key files.

use std::fmt;

use crate::ids::ShardId;

/// Name of a process in the cluster: `coordinator`, or `shard-N` for the worker that holds shard N.
///
/// A coordinator that holds a shard itself is still called `coordinator`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeName {
    /// The one process that holds the trunk.
    Coordinator,
    /// The worker that holds this shard.
    Worker(ShardId),
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Coordinator => f.pad("coordinator"),
            Self::Worker(ShardId(number)) => f.pad(&format!("shard-{number}")),
        }
    }
}
