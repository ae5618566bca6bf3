//! `config.json` → [`ModelConfig`]. Owns the order of reading and the checks that join several fields.

use std::{fs::File, io::Read as _, path::Path};

use serde_json::{Map, Value};

use super::{
    error::ConfigError,
    fields::{Fields, Issues},
    layers,
    model::{Gating, ModelConfig, RouterConfig, RouterScore},
    quantization,
};

/// What a caller may overrule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfigOptions {
    /// Which attention factor scales cos and sin of YaRN layers.
    pub attention_factor: AttentionFactor,
}

/// Source of YaRN's attention factor. Runtimes disagree where a config states 1.0: transformers honours it, vLLM and
/// mlx-lm derive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttentionFactor {
    /// `attention_factor` where the config has it, derived elsewhere.
    #[default]
    FromConfig,
    /// Always `0.1 · ln(factor) + 1` (or the ratio of `mscale` and `mscale_all_dim`).
    Derived,
}

impl ModelConfig {
    /// Reads `config.json` of a model directory.
    pub fn from_dir(dir: &Path, options: &ConfigOptions) -> Result<Self, ConfigError> {
        let path = dir.join("config.json");
        Self::resolve(&path, &read_object(&path)?, options)
    }

    /// Parses the text of a `config.json`.
    pub fn from_json(text: &str, options: &ConfigOptions) -> Result<Self, ConfigError> {
        let path = Path::new("config.json");
        Self::resolve(path, &parse_object(path, text)?, options)
    }

    fn resolve(path: &Path, root: &Map<String, Value>, options: &ConfigOptions) -> Result<Self, ConfigError> {
        let mut issues = Issues::default();
        // A multimodal wrapper keeps the language model's fields in `text_config`.
        let top = match root.get("text_config").and_then(Value::as_object) {
            Some(text) => Fields::new("text_config", text).or("", root),
            None => Fields::new("", root),
        };
        check_identity(&top, root, &mut issues);
        // Fields of another architecture would only bury the reason.
        let config = issues.0.is_empty().then(|| Self::read(&top, options, &mut issues));
        match config {
            Some(config) if issues.0.is_empty() => Ok(config),
            _ => Err(ConfigError::Invalid { path: path.to_owned(), issues: issues.0 }),
        }
    }

    fn read(top: &Fields<'_>, options: &ConfigOptions, issues: &mut Issues) -> Self {
        refuse_unsupported(top, issues);
        let num_hidden_layers = issues.count(top, "num_hidden_layers", 1..=MAX_LAYERS, None);
        let num_experts = issues.count(top, "num_experts", 0..=MAX_EXPERTS, Some(256));
        if num_hidden_layers * num_experts > MAX_EXPERTS_IN_ALL {
            issues.at(
                "num_experts",
                Some(num_experts.to_string()),
                format!("at most {MAX_EXPERTS_IN_ALL} experts over {num_hidden_layers} layers"),
            );
        }
        let has_experts = usize::from(num_experts > 0);
        let mut config = Self {
            vocab_size: issues.count(top, "vocab_size", 1..=MAX_VOCABULARY, None),
            hidden_size: issues.count(top, "hidden_size", 1..=MAX_WIDTH, None),
            head_dim: issues.count(top, "head_dim", 2..=MAX_HEAD_DIM, Some(128)),
            num_key_value_heads: issues.count(top, "num_key_value_heads", 1..=MAX_HEADS, Some(8)),
            max_position_embeddings: issues.count(
                top,
                "max_position_embeddings",
                1..=MAX_POSITIONS,
                Some(131_072),
            ),
            rms_norm_eps: issues.number(top, "rms_norm_eps", 1e-30..=1.0, 1e-6) as f32,
            tie_word_embeddings: issues.flag(top, "tie_word_embeddings", false),
            gating: gating(top, issues, num_hidden_layers),
            attention_sinks: issues.flag(top, "swa_attention_sink_enabled", false),
            intermediate_size: issues.count(top, "intermediate_size", 1..=MAX_WIDTH, Some(8192)),
            num_experts,
            num_experts_per_tok: issues.count(
                top,
                "num_experts_per_tok",
                has_experts..=MAX_EXPERTS,
                Some(8 * has_experts),
            ),
            moe_intermediate_size: issues.count(
                top,
                "moe_intermediate_size",
                has_experts..=MAX_WIDTH,
                Some(512),
            ),
            shared_expert_intermediate_size: issues.count(
                top,
                "shared_expert_intermediate_size",
                0..=MAX_WIDTH,
                Some(512),
            ),
            router: router(top, issues),
            routed_scaling_factor: issues.number(top, "moe_routed_scaling_factor", 1e-30..=1e6, 1.0) as f32,
            layers: Vec::new(),
            eos_token_ids: token_ids(top, "eos_token_id", issues),
            bos_token_id: token_ids(top, "bos_token_id", issues).first().copied(),
            quantization: quantization::read(top, issues),
        };
        if config.num_experts_per_tok > num_experts {
            issues.at(
                &top.path("num_experts_per_tok"),
                Some(config.num_experts_per_tok.to_string()),
                format!("at most num_experts, {num_experts}"),
            );
        }
        config.layers = layers::read(top, &config, num_hidden_layers, options, issues);
        config
    }
}

/// The object in a JSON file of bounded size.
pub(super) fn read_object(path: &Path) -> Result<Map<String, Value>, ConfigError> {
    let io = |source| ConfigError::Io { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    File::open(path).map_err(io)?.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > MAX_FILE {
        let message = format!("larger than {MAX_FILE} bytes");
        return Err(ConfigError::Unreadable { path: path.to_owned(), message });
    }
    let text = String::from_utf8(bytes)
        .map_err(|e| ConfigError::Unreadable { path: path.to_owned(), message: e.to_string() })?;
    parse_object(path, &text)
}

fn parse_object(path: &Path, text: &str) -> Result<Map<String, Value>, ConfigError> {
    let unreadable = |message: String| ConfigError::Unreadable { path: path.to_owned(), message };
    match serde_json::from_str(text.trim_start_matches('\u{feff}')) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(unreadable("not a JSON object".into())),
        Err(e) => Err(unreadable(format!("not JSON: {e}"))),
    }
}

/// One token id or a list of them. Absent and `null` give none.
pub(super) fn token_ids(fields: &Fields<'_>, key: &str, issues: &mut Issues) -> Vec<u32> {
    let Some(found) = fields.get(key) else { return Vec::new() };
    let items = match found.value {
        Value::Array(items) => items.iter().collect(),
        one => vec![one],
    };
    let ids: Option<Vec<u32>> =
        items.into_iter().map(|v| super::fields::integer(v).and_then(|n| u32::try_from(n).ok())).collect();
    let Some(mut ids) = ids else {
        issues.wrong(&found, "a token id or a list of token ids");
        return Vec::new();
    };
    let mut seen = std::collections::HashSet::new();
    ids.retain(|id| seen.insert(*id));
    ids
}

fn check_identity(top: &Fields<'_>, root: &Map<String, Value>, issues: &mut Issues) {
    const DRAFTER: &str = "a target model; this is a DFlash drafter, which cannot run alone";
    // Drafters carry model_type "laguna" too: only the architecture tells.
    let root = Fields::new("", root);
    let listed = [top.get("architectures"), root.get("architectures")];
    for found in listed.iter().flatten() {
        if found.value.to_string().contains("DFlash") {
            return issues.wrong(found, DRAFTER);
        }
    }
    if let Some(found) = top.get("dflash_config") {
        return issues.wrong(&found, DRAFTER);
    }
    let [architectures, outer] = listed;
    let names_laguna = architectures.as_ref().is_some_and(|found| {
        found.value.as_array().is_some_and(|names| names.iter().any(|n| n == ARCHITECTURE))
    });
    // The wrapper's own architecture is its business.
    let wrapped = outer.as_ref().map(|f| &f.path) == architectures.as_ref().map(|f| &f.path)
        && top.path("") != root.path("");
    match top.get("model_type") {
        Some(found) if found.value != MODEL_TYPE => issues.wrong(&found, format!("\"{MODEL_TYPE}\"")),
        None if !names_laguna => issues.missing("model_type", format!("\"{MODEL_TYPE}\"")),
        _ => {}
    }
    if let Some(found) = architectures.filter(|_| !names_laguna && !wrapped) {
        issues.wrong(&found, format!("[\"{ARCHITECTURE}\"]"));
    }
}

fn refuse_unsupported(top: &Fields<'_>, issues: &mut Issues) {
    if let Some(found) = top.get("hidden_act").filter(|found| found.value != "silu") {
        issues.wrong(&found, "\"silu\"");
    }
    for key in ["attention_bias", "qkv_bias", "mlp_bias", "moe_apply_router_weight_on_input"] {
        if issues.flag(top, key, false) {
            issues.at(&top.path(key), Some("true".into()), "false (true is not supported)");
        }
    }
}

fn gating(top: &Fields<'_>, issues: &mut Issues, layers: usize) -> Gating {
    const EXPECTED: &str = "true, false, \"per-head\" or \"per-element\"";
    let per_layer = gating_types(top, issues, layers);
    let Some(found) = top.raw("gating") else { return per_layer.unwrap_or(Gating::PerHead) };
    let stated = match found.value {
        // `true` names no granularity: the list, where there is one, does.
        Value::Bool(true) => return per_layer.unwrap_or(Gating::PerHead),
        Value::Null => return per_layer.unwrap_or(Gating::None),
        Value::Bool(false) => Gating::None,
        Value::String(name) => match granularity(name) {
            Some(gating) => gating,
            None => {
                issues.wrong(&found, EXPECTED);
                return Gating::PerHead;
            }
        },
        _ => {
            issues.wrong(&found, EXPECTED);
            return Gating::PerHead;
        }
    };
    if per_layer.is_some_and(|listed| listed != stated) {
        issues.wrong(&found, "what gating_types says");
    }
    stated
}

fn gating_types(top: &Fields<'_>, issues: &mut Issues, layers: usize) -> Option<Gating> {
    let (path, items) = issues.array(top, "gating_types")?;
    if items.len() != layers {
        issues.at(&path, Some(format!("{} entries", items.len())), format!("num_hidden_layers, {layers}"));
        return None;
    }
    let named: Vec<_> = items.iter().map(|v| v.as_str().and_then(granularity)).collect();
    match named.first().copied().flatten() {
        Some(first) if named.iter().all(|g| *g == Some(first)) => Some(first),
        _ => {
            let found = super::fields::shorten(&Value::Array(items.to_vec()));
            issues.at(&path, Some(found), "\"per_head\" or \"per_element\", the same in every layer");
            None
        }
    }
}

fn granularity(name: &str) -> Option<Gating> {
    match name.replace('_', "-").as_str() {
        "per-head" => Some(Gating::PerHead),
        "per-element" => Some(Gating::PerElement),
        "none" => Some(Gating::None),
        _ => None,
    }
}

fn router(top: &Fields<'_>, issues: &mut Issues) -> RouterConfig {
    let named = top.get("moe_router_score_func").map_or(RouterScore::Sigmoid, |found| {
        match found.value.as_str().map(|s| s.replace(['_', '-'], "")).as_deref() {
            Some("sigmoid") => RouterScore::Sigmoid,
            Some("sqrtsoftplus") => RouterScore::SqrtSoftplus,
            Some("softmax") => RouterScore::Softmax,
            _ => {
                issues.wrong(&found, "\"sigmoid\", \"sqrtsoftplus\" or \"softmax\"");
                RouterScore::Sigmoid
            }
        }
    });
    // The older key wins where it denies the sigmoid.
    let sigmoid = issues.flag(top, "moe_router_use_sigmoid", true);
    let cap = issues.number(top, "moe_router_logit_softcapping", 0.0..=1e6, 0.0) as f32;
    RouterConfig {
        score: if sigmoid { named } else { RouterScore::Softmax },
        logit_softcap: (cap > 0.0).then_some(cap),
        norm_topk_prob: issues.flag(top, "norm_topk_prob", true),
    }
}

const MODEL_TYPE: &str = "laguna";
const ARCHITECTURE: &str = "LagunaForCausalLM";

/// Bytes of a configuration file. Published ones are below 100 KB, even with an entry per tensor.
const MAX_FILE: u64 = 16 << 20;

// Bounds that no Laguna comes near and that keep a hostile file from asking for absurd memory.
/// Layer ids are u16 on the wire.
const MAX_LAYERS: usize = 1024;
/// Expert ids are u16 on the wire.
const MAX_EXPERTS: usize = 16_384;
/// Experts of all layers together; each costs about half a kilobyte of bookkeeping.
const MAX_EXPERTS_IN_ALL: usize = 1 << 18;
const MAX_WIDTH: usize = 1 << 18;
const MAX_VOCABULARY: usize = 1 << 22;
const MAX_HEAD_DIM: usize = 4096;
/// Heads in one layer.
pub(super) const MAX_HEADS: usize = 4096;
const MAX_POSITIONS: usize = 1 << 30;
