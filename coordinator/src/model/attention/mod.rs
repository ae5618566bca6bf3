//! Grouped-query attention with QK-RMSNorm, partial rotary, a sliding window on some layers, optional sinks, and a
//! softplus gate on the output.
//!
//! - `host`: on the CPU, here and now
//! - `array`: by MLX, as part of a graph

mod array;
mod host;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use laguna_shared::compute::cpu::{self, KeyValues, Pool};
use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};

use super::Segment;
use super::cache::LayerCache;
use super::cache::array::ArrayCache;
use super::cache::host::HostCache;
use super::linear::{Linear, TrunkMath};
use super::micro_batch::Piece;
use super::norm::RmsNorm;
use super::pointwise;
use super::rope::Rope;

/// One layer's attention.
#[derive(Debug)]
pub struct Attention {
    pub(super) q: Linear,
    pub(super) k: Linear,
    pub(super) v: Linear,
    pub(super) o: Linear,
    /// `g_proj`, to a factor for each head or each channel; `None` without gating.
    pub(super) gate: Option<Linear>,
    pub(super) q_norm: RmsNorm,
    pub(super) k_norm: RmsNorm,
    pub(super) rope: Rope,
    /// One logit per head that takes part in the softmax and has no value, activation type.
    pub(super) sinks: Option<Array>,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
}

impl Attention {
    /// `x` `[rows, hidden]`, normed, of these pieces of segments → `[rows, hidden]`.
    pub(super) fn forward(
        &self,
        layer: usize,
        x: &Array,
        pieces: &[Piece],
        segments: &mut [Segment<'_>],
    ) -> Result<Array, Exception> {
        let (q, k, v, gate) = self.project(x)?;
        let out = match self.threads() {
            Some(pool) => self.attend_on_cpu(&pool, layer, [&q, &k, &v], pieces, segments)?,
            None => self.attend_in_mlx(layer, [&q, &k, &v], pieces, segments)?,
        };
        self.o.forward(&self.gated(gate.as_ref(), out)?)
    }

    /// A layer's cache without tokens, of the kind that `forward` wants. Sliding layers have a window.
    pub(super) fn new_cache(&self, window: Option<usize>) -> LayerCache {
        match self.threads() {
            Some(_) => LayerCache::Host(HostCache::new(window, self.kv_heads, self.head_dim)),
            None => LayerCache::Array(ArrayCache::new(window)),
        }
    }

    /// Most tokens that the cache of a sliding layer has room for between passes.
    pub(super) fn ring_tokens(&self, window: usize) -> usize {
        if self.threads().is_some() { KeyValues::room_for(window.saturating_sub(1)) } else { window }
    }

    /// Those that compute attention, if MLX does not.
    fn threads(&self) -> Option<Arc<Pool>> {
        match self.q.math() {
            TrunkMath::Cpu(pool)
                if self.q.activation() == Dtype::Float32 && cpu::Attention::fits(self.head_dim) =>
            {
                Some(pool)
            }
            _ => None,
        }
    }

    /// Everything that is multiplied with `x`: q, k, v, and the gate if there is one.
    fn project(&self, x: &Array) -> Result<(Array, Array, Array, Option<Array>), Exception> {
        let Self { q, k, v, gate, .. } = self;
        Ok(match gate {
            Some(gate) => {
                let [q, k, v, gate] = Linear::forward_all([q, k, v, gate], x)?;
                (q, k, v, Some(gate))
            }
            None => {
                let [q, k, v] = Linear::forward_all([q, k, v], x)?;
                (q, k, v, None)
            }
        })
    }

    /// `out · softplus(gate)`, one factor a head or one a channel. `gate` is `g_proj x`.
    pub(super) fn gated(&self, gate: Option<&Array>, out: Array) -> Result<Array, Exception> {
        gate.map_or(Ok(out.clone()), |gate| pointwise::gate_heads(&self.q.math(), &out, gate))
    }
}
