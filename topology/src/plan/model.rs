//! The numbers a plan needs from a checkpoint. Whoever reads its headers fills them in.

use crate::ids::{ExpertRange, LayerId};
use crate::memory::Bytes;

/// How much memory the parts of a model take, as they will be held (not as they lie on disk, where that differs).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelBytes {
    /// Routed experts in every sparse layer, at least 1.
    pub num_experts: u16,
    /// Every sparse layer, ascending. Layers differ where some hold bf16 and some NVFP4.
    pub layers: Vec<LayerBytes>,
    /// Everything but the routed experts: embedding, attention, norms, routers, shared experts, dense layers, head.
    pub trunk: Bytes,
    /// KV cache of one token, over all full-attention layers.
    pub kv_per_token: Bytes,
    /// KV cache that does not grow with the context: the sliding-window layers.
    pub kv_fixed: Bytes,
}

/// One sparse layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerBytes {
    /// Which layer.
    pub layer: LayerId,
    /// One routed expert of it, scales included.
    pub expert: Bytes,
}

impl ModelBytes {
    /// One routed expert, summed over the sparse layers: what a shard's range grows by.
    pub fn expert(&self) -> Bytes {
        self.layers.iter().map(|layer| layer.expert).sum()
    }

    /// The experts of `range`, summed over the sparse layers.
    pub fn experts(&self, range: ExpertRange) -> Bytes {
        self.expert().saturating_mul(range.len() as u64)
    }

    /// The KV cache for `context` tokens.
    pub const fn kv(&self, context: u64) -> Bytes {
        self.kv_per_token.saturating_mul(context).saturating_add(self.kv_fixed)
    }
}
