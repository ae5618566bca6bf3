//! `config.json` of a synthetic checkpoint.

use serde_json::{Value, json};

use super::shape::{Layout, Shape};

/// The whole file.
pub fn config(shape: &Shape, layout: Layout) -> Value {
    let layers = || 0..shape.layers;
    let layer_types: Vec<_> =
        layers().map(|n| if shape.is_full(n) { "full_attention" } else { "sliding_attention" }).collect();
    let mlp_types: Vec<_> =
        layers().map(|n| if n < shape.dense_layers { "dense" } else { "sparse" }).collect();
    let mut config = json!({
        "architectures": ["LagunaForCausalLM"],
        "model_type": "laguna",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.dense_width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads_full,
        "num_attention_heads_per_layer": layers().map(|n| shape.heads(n)).collect::<Vec<_>>(),
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": 262_144,
        "rms_norm_eps": 1e-6,
        "attention_bias": false,
        "gating": "per-head",
        "tie_word_embeddings": false,
        "sliding_window": shape.window,
        "layer_types": layer_types,
        "mlp_layer_types": mlp_types,
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.top_k,
        "moe_intermediate_size": shape.expert_width,
        "shared_expert_intermediate_size": shape.shared_width,
        "norm_topk_prob": true,
        "moe_routed_scaling_factor": 2.5,
        "moe_router_logit_softcapping": 0.0,
        "moe_apply_router_weight_on_input": false,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "yarn", "rope_theta": 500_000.0, "factor": 32.0,
                "original_max_position_embeddings": 8192, "beta_slow": 1.0, "beta_fast": 32.0,
                "attention_factor": 1.346_573_590_279_972_7, "partial_rotary_factor": 0.5
            },
            "sliding_attention": { "rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 1.0 }
        },
        "bos_token_id": 2,
        "eos_token_id": [2, 24],
        "pad_token_id": 9,
        "torch_dtype": "bfloat16"
    });
    match layout {
        Layout::Compressed => config["quantization_config"] = compressed(shape),
        Layout::Stacked => {
            let table = json!({ "group_size": 16, "bits": 4, "mode": "nvfp4" });
            config["quantization"] = table.clone();
            config["quantization_config"] = table;
        }
    }
    config
}

fn compressed(shape: &Shape) -> Value {
    let mut targets = vec![r"re:.*experts\.[0-9]+\.(gate_proj|up_proj|down_proj)$"];
    if shape.shared_packed {
        targets.push(r"re:.*shared_expert\.(gate_proj|up_proj|down_proj)$");
    }
    json!({
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "quantization_status": "compressed",
        "config_groups": { "group_0": {
            "format": "nvfp4-pack-quantized",
            "targets": targets,
            "weights": {
                "num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group", "symmetric": true,
                "scale_dtype": "torch.float8_e4m3fn", "dynamic": false
            },
            "input_activations": null
        } },
        "ignore": ["lm_head", r"re:.*self_attn\..*", r"re:.*\.mlp\.gate$"]
    })
}
