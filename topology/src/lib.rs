//! Who owns which experts.

pub mod ids;

pub use ids::{ExpertId, ExpertRange, LayerId, ShardId};
