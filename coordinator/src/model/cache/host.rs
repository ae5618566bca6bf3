//! Keys and values in host memory, f32, for attention that is computed on the CPU: nothing of MLX's.

use laguna_shared::compute::cpu::attention::Visible;
use laguna_shared::compute::cpu::{Heads, Isa, KeyValues};

/// One layer's.
#[derive(Clone, Debug)]
pub(in crate::model) struct HostCache {
    /// Of a sliding layer: how many tokens a query sees, its own included.
    pub(super) window: Option<usize>,
    pub(super) cached: KeyValues,
}

impl HostCache {
    pub(in crate::model) const fn new(window: Option<usize>, kv_heads: usize, head_dim: usize) -> Self {
        Self { window, cached: KeyValues::new(kv_heads, head_dim) }
    }

    /// Adds new rotated keys and values, `[kv_heads, tokens, head_dim]`, the first of which has position `at`, and returns
    /// what their queries see. A pass may come in parts, each at the end of the one before.
    pub(in crate::model) fn extend(
        &mut self,
        at: usize,
        keys: Heads<'_>,
        values: Heads<'_>,
    ) -> (&KeyValues, Visible) {
        self.cached.extend(Isa::best(), at, keys, values);
        (&self.cached, self.window.map_or(Visible::Causal, Visible::Window))
    }

    /// Keeps what the next token sees, at position `len`. Not before the layer has run the last part of a pass: parts see
    /// more. A pass that fails later cannot be run again on this cache.
    pub(in crate::model) fn advance(&mut self, len: usize) {
        if let Some(window) = self.window {
            self.cached.forget_before((len + 1).saturating_sub(window));
        }
    }
}
