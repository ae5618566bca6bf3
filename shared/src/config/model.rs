//! [`ModelConfig`] and its parts: plain data, fully resolved. Must not know JSON.

use std::collections::BTreeMap;

use crate::ids::LayerId;

use super::rope::RopeConfig;

/// A Laguna's shape and numeric rules. All fields are resolved; nothing is optional because a key was absent.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Rows of the embedding and of the head.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Channels per attention head.
    pub head_dim: usize,
    /// Key/value heads, the same in every layer.
    pub num_key_value_heads: usize,
    /// Longest context the checkpoint is made for, in tokens.
    pub max_position_embeddings: usize,
    /// Epsilon of every RMSNorm.
    pub rms_norm_eps: f32,
    /// Whether the head is the embedding matrix (a `lm_head.weight` is then ignored).
    pub tie_word_embeddings: bool,
    /// Granularity of the softplus gate on attention output.
    pub gating: Gating,
    /// Whether sliding layers have a learned sink logit per head.
    pub attention_sinks: bool,
    /// Width of a dense layer's MLP.
    pub intermediate_size: usize,
    /// Routed experts per sparse layer.
    pub num_experts: usize,
    /// Experts chosen per token.
    pub num_experts_per_tok: usize,
    /// Width of a routed expert.
    pub moe_intermediate_size: usize,
    /// Width of the shared expert; 0 means there is none.
    pub shared_expert_intermediate_size: usize,
    /// How the router turns logits into scores.
    pub router: RouterConfig,
    /// Factor on the routed sum (the shared expert is not scaled).
    pub routed_scaling_factor: f32,
    /// One entry per decoder layer, in order.
    pub layers: Vec<LayerConfig>,
    /// Tokens that end a turn, from `config.json` (generation_config.json may add to them).
    pub eos_token_ids: Vec<u32>,
    /// Token that opens every sequence, if any.
    pub bos_token_id: Option<u32>,
    /// MLX `quantization` table (mode, bits, group, per-path overrides); empty for other layouts.
    pub quantization: Quantization,
}

impl ModelConfig {
    /// Indices of the sparse layers, ascending.
    pub fn sparse_layers(&self) -> impl Iterator<Item = LayerId> + '_ {
        (0..).zip(&self.layers).filter(|(_, l)| l.mlp == MlpKind::Sparse).map(|(n, _)| LayerId(n))
    }
}

/// Granularity of the attention gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// One scalar a head: `g_proj` has `heads` rows.
    PerHead,
    /// One scalar a channel: `g_proj` has `heads * head_dim` rows.
    PerElement,
    /// No gate, no `g_proj`.
    None,
}

/// What differs from layer to layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerConfig {
    /// Query heads.
    pub num_attention_heads: usize,
    /// Keys that a query sees, itself included; `None` on full layers.
    pub sliding_window: Option<usize>,
    /// Rotary embedding of this layer.
    pub rope: RopeConfig,
    /// Dense MLP or experts.
    pub mlp: MlpKind,
}

/// What follows attention in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlpKind {
    /// One SwiGLU MLP.
    Dense,
    /// Router, routed experts, shared expert.
    Sparse,
}

/// Router rules.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouterConfig {
    /// Score of a logit.
    pub score: RouterScore,
    /// `tanh(logit / cap) * cap` before the score; `None` where the config says 0.
    pub logit_softcap: Option<f32>,
    /// Whether the chosen scores are divided by their sum.
    pub norm_topk_prob: bool,
}

/// Score functions of a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterScore {
    /// `1 / (1 + exp(-z))`.
    Sigmoid,
    /// `sqrt(ln(1 + exp(z)))`.
    SqrtSoftplus,
    /// Softmax over the experts.
    Softmax,
}

/// MLX quantisation table of `config.json`: the default, and what per-path entries override.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quantization {
    /// Applies where no path entry does. `None`: the checkpoint is not an MLX-quantised one.
    pub default: Option<MlxQuantization>,
    /// Path of a module (without `language_model.`) → its entry; `None` where the entry is `false`.
    pub overrides: BTreeMap<String, Option<MlxQuantization>>,
}

/// One entry of an MLX quantisation table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MlxQuantization {
    /// Number format.
    pub mode: MlxMode,
    /// Bits per weight.
    pub bits: u32,
    /// Weights that share a scale.
    pub group_size: usize,
}

/// MLX number formats that Laguna checkpoints use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlxMode {
    /// Integer codes with scale and bias per group.
    Affine,
    /// E2M1 codes with an E4M3 scale per 16.
    Nvfp4,
}
