//! Every published form of `config.json`, and everything that is refused.

use serde_json::{Value, json};

use super::{
    AttentionFactor, ConfigError, ConfigOptions, Gating, GenerationConfig, MlpKind, MlxMode, MlxQuantization,
    ModelConfig, RopeConfig, RopeScaling, RouterScore,
};

/// Four layers, [full, sliding, sliding, full], in the nested form.
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
fn nested_rope() {
    let config = parsed(&[]);
    let (full, sliding) = ropes(&config);
    assert_eq!(
        *full,
        RopeConfig {
            theta: 5e5,
            rotary_dims: 64,
            scaling: yarn(32.0, 8192.0, 64.0),
            attention_factor: 1.3465735902799727
        }
    );
    assert_eq!(*sliding, plain(1e4, 128));
    assert_eq!(config.layers[3].rope, *full);
    let heads: Vec<_> = config.layers.iter().map(|layer| layer.num_attention_heads).collect();
    assert_eq!(heads, [4, 6, 6, 4]);
    let windows: Vec<_> = config.layers.iter().map(|layer| layer.sliding_window).collect();
    assert_eq!(windows, [None, Some(16), Some(16), None]);
    assert_eq!(config.sparse_layers().map(|layer| layer.0).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(config.eos_token_ids, [2, 24]);
    assert_eq!(config.bos_token_id, Some(2));
}

#[test]
fn scalars_beside_nested_entries_are_their_defaults() {
    let nested = |loose: u32, own: Option<u32>| {
        let mut full = json!({
            "rope_theta": 5e5, "rope_type": "yarn", "factor": 64.0, "beta_fast": 64.0, "partial_rotary_factor": 0.5
        });
        if let Some(own) = own {
            full["original_max_position_embeddings"] = json!(own);
        }
        let sliding = json!({ "rope_type": "default", "rope_theta": 10000.0 });
        json!({
            "original_max_position_embeddings": loose, "full_attention": full, "sliding_attention": sliding
        })
    };
    let loose = parsed(&[("rope_parameters", nested(4096, None))]);
    let (full, sliding) = ropes(&loose);
    assert_eq!(full.scaling, yarn(64.0, 4096.0, 64.0));
    assert!((full.attention_factor - 1.4158883083359672).abs() < 1e-12, "derived: 0.1 ln 64 + 1");
    assert_eq!(*sliding, plain(1e4, 128));

    let own = parsed(&[("rope_parameters", nested(4096, Some(1024)))]);
    assert_eq!(ropes(&own).0.scaling, yarn(64.0, 1024.0, 64.0));

    // XS.2: the top-level share is the full layers'; a sliding layer rotates its whole head.
    let top = parsed(&[("rope_parameters", nested(4096, None)), ("partial_rotary_factor", json!(0.5))]);
    assert_eq!(ropes(&top).1.rotary_dims, 128);
}

#[test]
fn flat_rope_with_and_without_a_sliding_set() {
    let flat = json!({
        "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "beta_fast": 64.0,
        "beta_slow": 1.0, "attention_factor": 1.0
    });
    let swa = json!({ "partial_rotary_factor": 1.0, "rope_theta": 10000.0, "rope_type": "linear" });
    let top = [("rope_theta", json!(500_000.0)), ("partial_rotary_factor", json!(0.5))];
    let [theta, partial] = &top;
    let expected =
        RopeConfig { theta: 5e5, rotary_dims: 64, scaling: yarn(32.0, 4096.0, 64.0), attention_factor: 1.0 };

    let pre_release = [("rope_parameters", flat.clone()), ("swa_rope_parameters", swa.clone())];
    let config = parsed(&[&pre_release[..], &top].concat());
    assert_eq!(ropes(&config), (&expected, &plain(1e4, 128)));

    let mut old = flat.clone();
    old["type"] = old.as_object_mut().unwrap().remove("rope_type").unwrap();
    let scaling = [("rope_parameters", ABSENT), ("rope_scaling", old), ("swa_rope_parameters", swa)];
    let config = parsed(&[&scaling[..], &top].concat());
    assert_eq!(ropes(&config), (&expected, &plain(1e4, 128)));

    let config = parsed(&[("rope_parameters", flat), theta.clone(), partial.clone()]);
    assert_eq!(ropes(&config), (&expected, &expected));
}

#[test]
fn a_layer_type_without_an_entry_uses_the_top_level_keys() {
    let only = |kind: &str| {
        let entry = base()["rope_parameters"][kind].clone();
        ("rope_parameters", json!({ kind: entry }))
    };
    assert_eq!(*ropes(&parsed(&[only("full_attention")])).1, plain(5e5, 128));
    let top = [("rope_theta", json!(30_000.0)), ("partial_rotary_factor", json!(0.5))];
    let config = parsed(&[&[only("sliding_attention")][..], &top].concat());
    assert_eq!(ropes(&config), (&plain(3e4, 64), &plain(1e4, 128)));
}

#[test]
fn absent_rope_has_the_reference_defaults() {
    for value in [ABSENT, Value::Null, json!({})] {
        let config = parsed(&[("rope_parameters", value)]);
        assert_eq!(ropes(&config), (&plain(5e5, 64), &plain(1e4, 128)));
    }
}

#[test]
fn linear_rope() {
    let config = parsed(&[("rope_parameters", json!({ "rope_type": "linear", "factor": 4.0 }))]);
    assert_eq!(ropes(&config).0.scaling, RopeScaling::Linear { factor: 4.0 });
}

#[test]
fn attention_factor_from_config_or_derived() {
    let factor = |stated: Value, extra: &[(&str, f64)], options| {
        let mut config = base();
        let full = &mut config["rope_parameters"]["full_attention"];
        full["attention_factor"] = stated;
        for (key, value) in extra {
            full[*key] = json!(value);
        }
        let options = ConfigOptions { attention_factor: options };
        let config = ModelConfig::from_json(&config.to_string(), &options).unwrap();
        config.layers[0].rope.attention_factor
    };
    let derived = 0.1 * 32_f64.ln() + 1.0;
    assert_eq!(factor(json!(1.9), &[], AttentionFactor::FromConfig), 1.9);
    assert_eq!(factor(json!(1.0), &[], AttentionFactor::FromConfig), 1.0);
    assert_eq!(factor(json!(1.9), &[], AttentionFactor::Derived), derived);
    assert_eq!(factor(Value::Null, &[], AttentionFactor::FromConfig), derived);
    assert_eq!(factor(json!(0), &[], AttentionFactor::FromConfig), derived);
    let mscales = [("mscale", 2.0), ("mscale_all_dim", 1.0)];
    let ratio = (0.2 * 32_f64.ln() + 1.0) / derived;
    assert_eq!(factor(Value::Null, &mscales, AttentionFactor::FromConfig), ratio);
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
fn every_fault_is_named_at_once() {
    let error = parse(&with(&[
        ("hidden_size", ABSENT),
        ("hidden_act", json!("gelu")),
        ("attention_bias", json!(true)),
        ("moe_apply_router_weight_on_input", json!(true)),
        ("num_experts_per_tok", json!(17)),
        ("num_attention_heads_per_layer", json!([4, 5, 6, 0])),
        ("layer_types", json!(["full_attention", "chunked_attention", "sliding_attention"])),
        ("mlp_layer_types", json!(["dense", "sparse", "moe", "sparse"])),
        ("rms_norm_eps", json!("tiny")),
        ("eos_token_id", json!([2, -1])),
        ("rope_parameters", json!({ "rope_type": "yarn", "factor": 0.5, "rope_theta": 1.0 })),
    ]))
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "config.json: 13 faults
  `hidden_act` is \"gelu\", expected \"silu\"
  `attention_bias` is true, expected false (true is not supported)
  `moe_apply_router_weight_on_input` is true, expected false (true is not supported)
  `hidden_size` is missing, expected an integer from 1 to 262144
  `rms_norm_eps` is \"tiny\", expected a number from 1e-30 to 1.0
  `eos_token_id` is [2,-1], expected a token id or a list of token ids
  `num_experts_per_tok` is 17, expected at most num_experts, 16
  `layer_types` is 3 entries, expected one per layer, num_hidden_layers = 4
  `num_attention_heads_per_layer.1` is 5, expected a multiple of num_key_value_heads, 2
  `num_attention_heads_per_layer.3` is 0, expected an integer from 1 to 4096
  `mlp_layer_types.2` is \"moe\", expected \"dense\" or \"sparse\"
  `rope_parameters.rope_theta` is 1.0, expected a number from 1.0001 to 1000000000000000.0
  `rope_parameters.factor` is 0.5, expected a number from 1.0 to 1000000.0"
    );
}

#[test]
fn other_models_are_refused_before_their_fields() {
    assert_eq!(
        refused(&[("model_type", json!("qwen3_moe")), ("hidden_size", ABSENT)]),
        ["`model_type` is \"qwen3_moe\", expected \"laguna\""]
    );
    assert_eq!(
        refused(&[("architectures", json!(["LlamaForCausalLM"]))]),
        ["`architectures` is [\"LlamaForCausalLM\"], expected [\"LagunaForCausalLM\"]"]
    );
    assert_eq!(
        refused(&[("model_type", ABSENT), ("architectures", ABSENT)]),
        ["`model_type` is missing, expected \"laguna\""]
    );
    assert_eq!(
        refused(&[("architectures", json!(["DFlashLagunaForCausalLM"]))]),
        [
            "`architectures` is [\"DFlashLagunaForCausalLM\"], expected a target model; this is a DFlash drafter, which \
         cannot run alone"
        ]
    );
    assert!(parse(&with(&[("model_type", ABSENT)])).is_ok(), "the architecture says enough");
}

#[test]
fn odd_and_empty_rotations_are_refused() {
    for partial in [0.0, 0.01, 0.4] {
        let rope = json!({ "rope_type": "default", "partial_rotary_factor": partial });
        assert_eq!(refused(&[("rope_parameters", rope)]).len(), 2, "{partial}: both layer types");
    }
    let unknown = json!({ "rope_type": "longrope" });
    assert!(
        refused(&[("rope_parameters", unknown)])[0]
            .starts_with("`rope_parameters.rope_type` is \"longrope\"")
    );
    assert!(refused(&[("rope_parameters", json!([1]))])[0].contains("expected an object"));
    let no_factor = json!({ "rope_type": "yarn" });
    assert!(refused(&[("rope_parameters", no_factor)])[0].starts_with("`rope_parameters.factor` is missing"));
}

#[test]
fn hostile_sizes_are_refused_without_being_allocated() {
    for (key, value) in [
        ("num_hidden_layers", json!(u64::MAX)),
        ("num_hidden_layers", json!(1e300)),
        ("num_experts", json!(65_536)),
        ("vocab_size", json!(-1)),
        ("hidden_size", json!(1_u64 << 40)),
        ("head_dim", json!(1.5)),
        ("num_key_value_heads", json!(0)),
        ("moe_intermediate_size", json!(0)),
        ("max_position_embeddings", json!(1e30)),
    ] {
        let issues = refused(&[(key, value)]);
        assert!(issues.iter().any(|issue| issue.contains(&format!("`{key}` is"))), "{issues:?}");
    }
    let many = [
        ("num_hidden_layers", json!(1000)),
        ("num_experts", json!(10_000)),
        ("layer_types", ABSENT),
        ("mlp_layer_types", ABSENT),
        ("num_attention_heads_per_layer", ABSENT),
    ];
    assert_eq!(refused(&many), ["`num_experts` is 10000, expected at most 262144 experts over 1000 layers"]);
}

#[test]
fn what_is_not_json_says_so() {
    let error = |text: &str| ModelConfig::from_json(text, &ConfigOptions::default()).unwrap_err().to_string();
    assert_eq!(error("[]"), "config.json: not a JSON object");
    assert!(error("{\"a\": ").starts_with("config.json: not JSON: EOF"), "{}", error("{"));
    let dir = tempfile::tempdir().unwrap();
    let missing = ModelConfig::from_dir(dir.path(), &ConfigOptions::default()).unwrap_err();
    assert!(matches!(missing, ConfigError::Io { .. }), "{missing}");
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
