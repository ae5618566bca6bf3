//! Checkpoint names, folded to one form, and the aliases under which each part has been published. Must not know
//! shapes or formats.

/// The name without the prefix that multimodal wrappers and some converters put on. Idempotent.
pub fn canonical(name: &str) -> &str {
    let mut name = name;
    while let Some(rest) = name.strip_prefix(PREFIX) {
        name = rest;
    }
    name
}

/// Tensors that a loader drops: calibration of activations and of KV caches, tables that are derived.
pub(super) fn is_ignored(name: &str) -> bool {
    const LAST: [&str; 6] =
        ["input_global_scale", "input_scale", "k_scale", "v_scale", "q_scale", "inv_freq"];
    name.rsplit('.').next().is_some_and(|last| LAST.contains(&last))
}

/// Whether `name` belongs to the head.
pub(super) fn is_head(name: &str) -> bool {
    name.strip_prefix(HEAD).is_some_and(|rest| rest.starts_with('.'))
}

/// Prefix of a decoder layer's names.
pub(super) fn layer(n: usize) -> String {
    format!("model.layers.{n}")
}

/// Router stems under an MLP, published first.
pub(super) fn routers(mlp: &str) -> [String; 2] {
    [format!("{mlp}.gate"), format!("{mlp}.gate.proj")]
}

/// Places of the router's selection bias.
pub(super) fn correction_biases(mlp: &str) -> [String; 4] {
    ["experts.", "gate.", "switch_mlp.", ""].map(|at| format!("{mlp}.{at}e_score_correction_bias"))
}

/// Shared expert stems.
pub(super) fn shared_experts(mlp: &str) -> [String; 2] {
    [format!("{mlp}.shared_expert"), format!("{mlp}.shared_experts")]
}

/// Stems under which all experts of a layer lie stacked.
pub(super) fn expert_stacks(mlp: &str) -> [String; 2] {
    [format!("{mlp}.switch_mlp"), format!("{mlp}.experts")]
}

/// Stem of one expert stored on its own.
pub(super) fn expert(mlp: &str, n: usize) -> String {
    format!("{mlp}.experts.{n}")
}

/// Attention sinks of a layer.
pub(super) fn sinks(layer: &str) -> [String; 4] {
    ["sink", "sinks", "sink.weight", "sinks.weight"].map(|name| format!("{layer}.self_attn.{name}"))
}

/// Paths under which a quantisation table may describe `stem`, most specific first. A fused module inherits
/// gate_proj's entry; the router's linear is called both `gate` and `gate.proj`.
pub(super) fn quantization_paths(stem: &str) -> Vec<String> {
    let mut paths = vec![stem.to_owned()];
    if let Some(parent) = stem.strip_suffix("gate_up_proj") {
        paths.push(format!("{parent}gate_proj"));
    }
    if stem.ends_with(".mlp.gate") {
        paths.push(format!("{stem}.proj"));
    }
    if let Some(parent) = stem.strip_suffix(".gate.proj") {
        paths.push(format!("{parent}.gate"));
    }
    paths
}

pub(super) const EMBEDDING: &str = "model.embed_tokens";
pub(super) const FINAL_NORM: &str = "model.norm.weight";
pub(super) const HEAD: &str = "lm_head";
const PREFIX: &str = "language_model.";
