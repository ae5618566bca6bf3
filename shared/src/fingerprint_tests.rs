//! What the digests see and what they do not.

use serde_json::{Value, json};

use super::{ModelFingerprint, WeightDigest};
use crate::{
    config::{AttentionFactor, ConfigOptions, ModelConfig},
    ids::ExpertRange,
    weights::forge::{EXPERTS, Forge, MLP},
};

fn config(change: impl Fn(&mut Value)) -> ModelConfig {
    let mut forge = Forge::bf16();
    change(&mut forge.config);
    ModelConfig::from_json(&forge.config.to_string(), &ConfigOptions::default()).unwrap()
}

fn digest(forge: &Forge, start: u16, end: u16) -> WeightDigest {
    let (checkpoint, inventory) = forge.write().resolve().unwrap();
    WeightDigest::of(&checkpoint, &inventory, ExpertRange::new(start, end)).unwrap()
}

#[test]
fn spelling_does_not_matter_and_numbers_do() {
    let original = ModelFingerprint::of(&config(|_| ()));
    let same: [fn(&mut Value); 4] = [
        |c| c["gating"] = json!(true),
        |c| c["mlp_only_layers"] = json!([0]),
        |c| c["layer_types"] = json!(["global_attention", "full_attention", "swa"]),
        |c| c["eos_token_id"] = json!([2, 24]),
    ];
    for change in same {
        assert_eq!(ModelFingerprint::of(&config(change)), original);
    }
    let other: [fn(&mut Value); 7] = [
        |c| c["moe_routed_scaling_factor"] = json!(2.5),
        |c| c["rms_norm_eps"] = json!(1e-5),
        |c| c["sliding_window"] = json!(9),
        |c| c["norm_topk_prob"] = json!(false),
        |c| c["moe_router_score_func"] = json!("sqrtsoftplus"),
        |c| c["rope_theta"] = json!(1e6),
        |c| c["num_experts_per_tok"] = json!(3),
    ];
    let mut seen = vec![original];
    for change in other {
        let changed = ModelFingerprint::of(&config(change));
        assert!(!seen.contains(&changed));
        seen.push(changed);
    }
    assert_eq!(original.to_string().len(), 64);
}

#[test]
fn an_overruled_attention_factor_is_the_coordinators_business() {
    let rope = json!({
        "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "attention_factor": 1.0
    });
    let mut forge = Forge::bf16();
    forge.config("rope_parameters", rope);
    let read = |attention_factor| {
        let options = ConfigOptions { attention_factor };
        ModelConfig::from_json(&forge.config.to_string(), &options).unwrap()
    };
    let (stated, derived) = (read(AttentionFactor::FromConfig), read(AttentionFactor::Derived));
    assert_ne!(stated, derived);
    assert_eq!(ModelFingerprint::of(&stated), ModelFingerprint::of(&derived));
}

#[test]
fn layout_does_not_matter() {
    for forge in [Forge::bf16(), Forge::compressed()] {
        let expected = digest(&forge, 1, 3);
        let mut stacked = forge.clone();
        stacked.stack(&format!("{MLP}.switch_mlp"));
        assert_eq!(digest(&stacked, 1, 3), expected);
        let mut prefixed = forge.clone();
        for name in forge.tensors.keys() {
            prefixed.rename(name, &format!("language_model.{name}"));
        }
        assert_eq!(digest(&prefixed, 1, 3), expected);
    }
    let mut fused = Forge::bf16();
    let expected = digest(&fused, 0, EXPERTS as u16);
    fused.stack(&format!("{MLP}.switch_mlp"));
    fused.fuse(&format!("{MLP}.switch_mlp"));
    assert_eq!(digest(&fused, 0, EXPERTS as u16), expected);
}

#[test]
fn other_weights_differ() {
    let original = Forge::compressed();
    let mut seen = vec![digest(&original, 1, 3), digest(&original, 0, 3), digest(&original, 1, 4)];
    let at = |e: usize, rest: &str| format!("{MLP}.experts.{e}.{rest}");
    let changes: [&dyn Fn(&mut Forge); 4] = [
        // Every code bit flipped: another training run.
        &|forge| {
            let tensor = forge.tensors.get_mut(&at(1, "up_proj.weight_packed")).unwrap();
            tensor.2.iter_mut().for_each(|byte| *byte = !*byte);
        },
        // Gate and up exchanged.
        &|forge| {
            for part in ["weight_packed", "weight_scale", "weight_global_scale"] {
                forge.rename(&at(1, &format!("gate_proj.{part}")), "aside");
                forge.rename(&at(1, &format!("up_proj.{part}")), &at(1, &format!("gate_proj.{part}")));
                forge.rename("aside", &at(1, &format!("up_proj.{part}")));
            }
        },
        // Two experts exchanged.
        &|forge| {
            for part in ["weight_packed", "weight_scale", "weight_global_scale"] {
                forge.rename(&at(1, &format!("down_proj.{part}")), "aside");
                forge.rename(&at(2, &format!("down_proj.{part}")), &at(1, &format!("down_proj.{part}")));
                forge.rename("aside", &at(2, &format!("down_proj.{part}")));
            }
        },
        // One global scale off by one bit.
        &|forge| forge.tensors.get_mut(&at(2, "gate_proj.weight_global_scale")).unwrap().2[0] ^= 1,
    ];
    for change in changes {
        let mut forge = original.clone();
        change(&mut forge);
        let changed = digest(&forge, 1, 3);
        assert!(!seen.contains(&changed));
        seen.push(changed);
    }
    let mut elsewhere = original.clone();
    elsewhere.tensors.get_mut(&at(0, "up_proj.weight_packed")).unwrap().2.fill(0);
    assert_eq!(digest(&elsewhere, 1, 3), seen[0], "expert 0 is another shard's");
}
