//! Names of things that both ends count: layers, experts, shards. Plain numbers with a meaning.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Index of a decoder layer in the checkpoint, `0..num_hidden_layers` (dense layers count too).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LayerId(pub u16);

/// Index of a routed expert within its layer, `0..num_experts`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ExpertId(pub u16);

/// Number of a shard as the topology file names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ShardId(pub u16);

/// A contiguous range of routed experts, `start..end`, the same in every sparse layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ExpertRange {
    /// First expert held.
    pub start: u16,
    /// One past the last expert held.
    pub end: u16,
}

impl ExpertRange {
    /// The range `start..end`. An `end` below `start` makes an empty range.
    pub const fn new(start: u16, end: u16) -> Self {
        Self { start, end }
    }

    /// Number of experts in the range.
    pub const fn len(self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }

    /// Whether the range holds no expert.
    pub const fn is_empty(self) -> bool {
        self.end <= self.start
    }

    /// Whether `expert` lies in the range.
    pub const fn contains(self, expert: ExpertId) -> bool {
        self.start <= expert.0 && expert.0 < self.end
    }

    /// Position of `expert` within the range, if it lies in it.
    pub const fn local(self, expert: ExpertId) -> Option<usize> {
        if self.contains(expert) { Some((expert.0 - self.start) as usize) } else { None }
    }

    /// Every expert of the range, ascending.
    pub fn experts(self) -> impl Iterator<Item = ExpertId> {
        (self.start..self.end).map(ExpertId)
    }
}

impl fmt::Display for LayerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "layer {}", self.0)
    }
}

impl fmt::Display for ExpertId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expert {}", self.0)
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shard {}", self.0)
    }
}

impl fmt::Display for ExpertRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}
