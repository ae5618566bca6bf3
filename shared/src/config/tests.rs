//! Every published form of `config.json`, and everything that is refused.

use serde_json::{Value, json};

use super::{
    AttentionFactor, ConfigError, ConfigOptions, Gating, GenerationConfig, MlpKind, MlxMode, MlxQuantization,
    ModelConfig, RopeConfig, RopeScaling, RouterScore,
};

/// Four layers, [full, sliding, sliding, full], in the nested form.
mod faults;
mod rope;

fn base() -> Value {
    json!({
        "architectures": ["LagunaForCausalLM"], "model_type": "laguna", "vocab_size": 512, "hidden_size": 64,
        "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_attention_heads_per_layer": [4, 6, 6, 4], "num_key_value_heads": 2, "head_dim": 128,
        "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "hidden_act": "silu", "attention_bias": false,
        "gating": "per-head", "tie_word_embeddings": false, "sliding_window": 16,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "swa_attention_sink_enabled": false,
        "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 64, "norm_topk_prob": true, "moe_routed_scaling_factor": 2.5,
        "moe_apply_router_weight_on_input": false, "moe_router_logit_softcapping": 0.0,
        "moe_router_score_func": "sigmoid", "rope_parameters": {
            "full_attention": {
                "rope_theta": 500000.0, "rope_type": "yarn", "factor": 32.0, "beta_slow": 1.0, "beta_fast": 64.0,
                "original_max_position_embeddings": 8192, "attention_factor": 1.3465735902799727,
                "partial_rotary_factor": 0.5
            },
            "sliding_attention": { "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0 }
        },
        "bos_token_id": 2, "eos_token_id": [2, 24], "pad_token_id": 9, "torch_dtype": "bfloat16"
    })
}

/// [`base`] with keys replaced, or removed where the value is [`ABSENT`].
fn with(changes: &[(&str, Value)]) -> Value {
    let mut config = base();
    let map = config.as_object_mut().unwrap();
    for (key, value) in changes {
        if *value == ABSENT {
            map.remove(*key);
        } else {
            map.insert((*key).to_owned(), value.clone());
        }
    }
    config
}

const ABSENT: Value = Value::String(String::new());

fn parse(config: &Value) -> Result<ModelConfig, ConfigError> {
    ModelConfig::from_json(&config.to_string(), &ConfigOptions::default())
}

fn parsed(changes: &[(&str, Value)]) -> ModelConfig {
    parse(&with(changes)).unwrap()
}

fn refused(changes: &[(&str, Value)]) -> Vec<String> {
    let error = parse(&with(changes)).unwrap_err();
    error.issues().iter().map(ToString::to_string).collect()
}

/// Full and sliding rope of a config.
fn ropes(config: &ModelConfig) -> (&RopeConfig, &RopeConfig) {
    (&config.layers[0].rope, &config.layers[1].rope)
}

fn yarn(factor: f64, original: f64, beta_fast: f64) -> RopeScaling {
    RopeScaling::Yarn { factor, original_max_position_embeddings: original, beta_fast, beta_slow: 1.0 }
}

fn plain(theta: f64, rotary_dims: usize) -> RopeConfig {
    RopeConfig { theta, rotary_dims, scaling: RopeScaling::Default, attention_factor: 1.0 }
}

#[test]
fn layer_type_aliases() {
    let config = parsed(&[("layer_types", json!(["global_attention", "sliding_attention", "full", "swa"]))]);
    let sliding: Vec<_> = config.layers.iter().map(|layer| layer.sliding_window.is_some()).collect();
    assert_eq!(sliding, [false, true, false, true]);
}

#[test]
fn gating_forms() {
    let gating = |changes: &[(&str, Value)]| parsed(changes).gating;
    for value in [json!(true), json!("per-head"), json!("per_head"), ABSENT] {
        assert_eq!(gating(&[("gating", value)]), Gating::PerHead);
    }
    for value in ["per-element", "per_element"] {
        assert_eq!(gating(&[("gating", json!(value))]), Gating::PerElement);
    }
    for value in [json!(false), Value::Null] {
        assert_eq!(gating(&[("gating", value)]), Gating::None);
    }
    let types = ("gating_types", json!(["per_head", "per_head", "per_head", "per_head"]));
    assert_eq!(gating(std::slice::from_ref(&types)), Gating::PerHead);
    let elements = ("gating_types", json!(["per_element", "per_element", "per_element", "per_element"]));
    assert_eq!(gating(&[("gating", json!(true)), elements.clone()]), Gating::PerElement);
    assert_eq!(refused(&[elements]), ["`gating` is \"per-head\", expected what gating_types says"]);
    let mixed = ("gating_types", json!(["per_head", "per_element", "per_head", "per_head"]));
    assert_eq!(refused(&[mixed]).len(), 1);
    assert_eq!(
        refused(&[("gating", json!("per-row"))]),
        ["`gating` is \"per-row\", expected true, false, \"per-head\" or \"per-element\""]
    );
}

#[test]
fn dense_and_sparse_layers() {
    let kinds = |changes: &[(&str, Value)]| -> String {
        let changes = [&[("mlp_layer_types", ABSENT)], changes].concat();
        let letter = |kind| if kind == MlpKind::Dense { 'd' } else { 's' };
        parsed(&changes).layers.iter().map(|layer| letter(layer.mlp)).collect()
    };
    assert_eq!(kinds(&[]), "dsss");
    assert_eq!(kinds(&[("mlp_only_layers", json!([0, 2]))]), "dsds");
    assert_eq!(kinds(&[("mlp_only_layers", json!([]))]), "ssss");
    assert_eq!(kinds(&[("mlp_only_layers", json!([])), ("decoder_sparse_step", json!(2))]), "dsds");
    assert_eq!(kinds(&[("decoder_sparse_step", json!(1))]), "dsss");
    assert_eq!(kinds(&[("num_experts", json!(0)), ("num_experts_per_tok", json!(0))]), "dddd");
}

#[test]
fn a_window_of_nothing_is_no_window() {
    for value in [json!(0), Value::Null] {
        assert_eq!(parsed(&[("sliding_window", value)]).layers[1].sliding_window, None);
    }
    assert_eq!(parsed(&[("sliding_window", ABSENT)]).layers[1].sliding_window, Some(512));
}

#[test]
fn router_forms() {
    let score = |changes: &[(&str, Value)]| parsed(changes).router.score;
    let named = |name: &str| score(&[("moe_router_score_func", json!(name))]);
    assert_eq!(named("sigmoid"), RouterScore::Sigmoid);
    assert_eq!(named("sqrtsoftplus"), RouterScore::SqrtSoftplus);
    assert_eq!(named("softmax"), RouterScore::Softmax);
    assert_eq!(score(&[("moe_router_use_sigmoid", json!(false))]), RouterScore::Softmax);
    let older = [("moe_router_score_func", ABSENT), ("moe_router_use_sigmoid", json!(true))];
    assert_eq!(score(&older), RouterScore::Sigmoid);
    assert_eq!(parsed(&[]).router.logit_softcap, None);
    assert_eq!(parsed(&[("moe_router_logit_softcapping", json!(1.5))]).router.logit_softcap, Some(1.5));
    assert!(!parsed(&[("norm_topk_prob", json!(false))]).router.norm_topk_prob);
}

#[test]
fn absent_keys_have_the_reference_defaults() {
    let config = json!({
        "model_type": "laguna", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 3,
        "num_attention_heads": 16
    });
    let config = parse(&config).unwrap();
    assert_eq!((config.head_dim, config.num_key_value_heads), (128, 8));
    assert_eq!((config.num_experts, config.num_experts_per_tok), (256, 8));
    assert_eq!((config.moe_intermediate_size, config.shared_expert_intermediate_size), (512, 512));
    assert_eq!((config.intermediate_size, config.max_position_embeddings), (8192, 131_072));
    assert_eq!((config.rms_norm_eps, config.routed_scaling_factor), (1e-6, 1.0));
    assert_eq!(config.gating, Gating::PerHead);
    assert_eq!(config.router.score, RouterScore::Sigmoid);
    assert!(config.router.norm_topk_prob && !config.tie_word_embeddings && !config.attention_sinks);
    assert!(config.layers.iter().all(|layer| layer.sliding_window.is_none()));
    assert_eq!(config.sparse_layers().count(), 2);
    assert_eq!((config.eos_token_ids.len(), config.bos_token_id), (0, None));
}

#[test]
fn one_end_token_or_several() {
    assert_eq!(parsed(&[("eos_token_id", json!(2))]).eos_token_ids, [2]);
    assert_eq!(parsed(&[("eos_token_id", json!([24, 2, 24]))]).eos_token_ids, [24, 2]);
}

#[test]
fn a_wrapped_text_config_is_found() {
    let mut text = with(&[("architectures", ABSENT)]);
    text.as_object_mut().unwrap().remove("eos_token_id");
    let wrapper = json!({
        "architectures": ["LagunaForConditionalGeneration"], "model_type": "laguna_vl", "text_config": text,
        "eos_token_id": [2, 24]
    });
    assert_eq!(parse(&wrapper).unwrap(), parsed(&[]));
    let mut broken = wrapper;
    broken["text_config"]["hidden_size"] = json!(0);
    let error = parse(&broken).unwrap_err().to_string();
    assert!(error.contains("`text_config.hidden_size` is 0, expected an integer from 1 to"), "{error}");
}

#[test]
fn mlx_quantization_tables() {
    let table = json!({
        "group_size": 16, "bits": 4, "mode": "nvfp4",
        "model.layers.1.mlp.gate.proj": { "group_size": 64, "bits": 8 },
        "language_model.model.layers.2.mlp.gate": { "group_size": 128, "bits": 5, "mode": "affine" },
        "lm_head": false, "model.embed_tokens": false, "model.norm": true
    });
    let quantization = parsed(&[("quantization", table)]).quantization;
    let nvfp4 = MlxQuantization { mode: MlxMode::Nvfp4, bits: 4, group_size: 16 };
    assert_eq!(quantization.default, Some(nvfp4));
    let affine = |bits, group_size| Some(MlxQuantization { mode: MlxMode::Affine, bits, group_size });
    let at = |path: &str| quantization.overrides.get(path).copied();
    assert_eq!(at("model.layers.1.mlp.gate.proj"), Some(affine(8, 64)));
    assert_eq!(at("model.layers.2.mlp.gate"), Some(affine(5, 128)));
    assert_eq!(at("model.embed_tokens"), Some(None));

    let only_config = parsed(&[("quantization_config", json!({ "group_size": 32, "bits": 3 }))]);
    assert_eq!(only_config.quantization.default, affine(3, 32));
    let other = json!({ "quant_method": "compressed-tensors", "bits": 4 });
    assert_eq!(parsed(&[("quantization_config", other)]).quantization.default, None);
    let unknown = json!({ "group_size": 32, "bits": 7, "mode": "mxfp4" });
    assert_eq!(
        refused(&[("quantization", unknown)]),
        ["`quantization.mode` is \"mxfp4\", expected \"affine\" or \"nvfp4\""]
    );
    assert_eq!(
        refused(&[("quantization", json!({ "group_size": 64, "bits": 7 }))]),
        ["`quantization.bits` is 7, expected one of 2, 3, 4, 5, 6, 8"]
    );
}

#[test]
fn generation_config() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(GenerationConfig::from_dir(dir.path()).unwrap(), GenerationConfig::default());
    let write = |value: Value| std::fs::write(dir.path().join("generation_config.json"), value.to_string());
    write(json!({
        "bos_token_id": 2, "eos_token_id": [2, 24], "pad_token_id": 9, "do_sample": true, "temperature": 0.7,
        "top_k": 20, "top_p": 0.95, "min_p": 0.0, "repetition_penalty": 1.1, "max_new_tokens": 32768,
        "default_chat_template_kwargs": { "enable_thinking": true }
    }))
    .unwrap();
    let read = GenerationConfig::from_dir(dir.path()).unwrap();
    assert_eq!(
        read,
        GenerationConfig {
            eos_token_ids: vec![2, 24],
            bos_token_id: Some(2),
            pad_token_id: Some(9),
            do_sample: Some(true),
            temperature: Some(0.7),
            top_p: Some(0.95),
            top_k: Some(20),
            min_p: Some(0.0),
            repetition_penalty: Some(1.1),
            max_new_tokens: Some(32_768),
        }
    );
    write(json!({ "temperature": -1, "top_p": 2 })).unwrap();
    let error = GenerationConfig::from_dir(dir.path()).unwrap_err();
    assert_eq!(error.issues().len(), 2, "{error}");
}

#[test]
fn no_value_makes_it_panic() {
    let odd = [
        Value::Null,
        json!(true),
        json!(0),
        json!(-1),
        json!(1e300),
        json!(0.5),
        json!(u64::MAX),
        json!("x"),
        json!([]),
        json!([[]]),
        json!({}),
        json!({ "full_attention": 3 }),
        json!({ "rope_type": "yarn" }),
        ABSENT,
    ];
    let keys: Vec<String> = base().as_object().unwrap().keys().cloned().collect();
    let more = [
        "rope_scaling",
        "swa_rope_parameters",
        "gating_types",
        "quantization",
        "mlp_only_layers",
        "decoder_sparse_step",
        "text_config",
        "moe_router_use_sigmoid",
        "rope_theta",
        "partial_rotary_factor",
    ];
    for key in keys.iter().map(String::as_str).chain(more) {
        for value in &odd {
            let _ = parse(&with(&[(key, value.clone())]));
            let _ = parse(&with(&[
                (key, value.clone()),
                ("rope_parameters", ABSENT),
                ("mlp_layer_types", ABSENT),
            ]));
        }
    }
    for key in [
        "rope_theta",
        "rope_type",
        "factor",
        "beta_slow",
        "beta_fast",
        "attention_factor",
        "original_max_position_embeddings",
        "partial_rotary_factor",
        "mscale",
    ] {
        for value in &odd {
            let mut config = base();
            config["rope_parameters"]["full_attention"][key] = value.clone();
            if let Ok(config) = parse(&config) {
                assert!(
                    ropes(&config).0.inverse_frequencies().iter().all(|f| f.is_finite()),
                    "{key} {value}"
                );
            }
        }
    }
}
