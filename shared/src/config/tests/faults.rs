//! What is refused, and how it is said.

use super::*;

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
