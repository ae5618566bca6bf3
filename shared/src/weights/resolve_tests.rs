//! Every layout resolves to the same bytes; everything that does not fit is listed.

use serde_json::json;

use super::{
    Dtype, Inventory,
    decode::decode_matrix,
    forge::{EXPERTS, Forge, HIDDEN, MLP, PROJECTIONS, WIDTH},
    inventory::{FloatType, GlobalScaleRule, MatrixFormat, MatrixSource, MlpSource, SparseSource},
    read_matrix,
};

fn sparse(inventory: &Inventory) -> &SparseSource {
    match &inventory.layers[1].mlp {
        MlpSource::Sparse(sparse) => sparse,
        MlpSource::Dense(_) => panic!("layer 1 is sparse"),
    }
}

fn matrices(sparse: &SparseSource) -> Vec<&MatrixSource> {
    sparse.experts.iter().flat_map(|expert| [&expert.gate, &expert.up, &expert.down]).collect()
}

/// Bytes and multiplier of each expert matrix of layer 1.
fn expert_bytes(forge: &Forge) -> Vec<(Vec<u8>, Vec<u8>, f32)> {
    let (checkpoint, inventory) = forge.write().resolve().unwrap_or_else(|e| panic!("{e}"));
    let experts = sparse(&inventory);
    assert_eq!(experts.experts.len(), EXPERTS);
    matrices(experts)
        .into_iter()
        .map(|source| read_matrix(&checkpoint, source).unwrap())
        .map(|raw| (raw.weight, raw.scales, raw.multiplier))
        .collect()
}

fn error(forge: &Forge) -> String {
    let written = forge.write();
    let error = written.resolve().unwrap_err().to_string();
    error.replace(&written.path().display().to_string(), "DIR")
}

#[test]
fn experts_one_by_one_stacked_or_fused_are_the_same_bytes() {
    for original in [Forge::bf16(), Forge::compressed()] {
        let expected = expert_bytes(&original);
        for stem in ["switch_mlp", "experts"] {
            let mut forge = original.clone();
            forge.stack(&format!("{MLP}.{stem}"));
            assert_eq!(expert_bytes(&forge), expected, "stacked under {stem}");
            if original.tensors.contains_key(&format!("{MLP}.experts.0.up_proj.weight")) {
                forge.fuse(&format!("{MLP}.{stem}"));
                assert_eq!(expert_bytes(&forge), expected, "fused under {stem}");
            }
        }
    }
}

#[test]
fn fused_modules_of_any_kind_are_split_gate_first() {
    let expected = expert_bytes(&Forge::bf16());
    let mut forge = Forge::bf16();
    for stem in ["model.layers.0.mlp", "model.layers.1.mlp.shared_expert"] {
        forge.fuse(stem);
    }
    for e in 0..EXPERTS {
        forge.fuse(&format!("{MLP}.experts.{e}"));
    }
    assert_eq!(expert_bytes(&forge), expected);

    // transformers' own stacked parameters carry no `.weight`.
    let mut forge = Forge::bf16();
    forge.stack(&format!("{MLP}.experts"));
    forge.fuse(&format!("{MLP}.experts"));
    for name in ["gate_up_proj", "down_proj"] {
        forge.rename(&format!("{MLP}.experts.{name}.weight"), &format!("{MLP}.experts.{name}"));
    }
    assert_eq!(expert_bytes(&forge), expected);
}

#[test]
fn prefixed_names_are_the_same_names() {
    let mut forge = Forge::bf16();
    let expected = expert_bytes(&forge);
    for name in forge.tensors.keys().cloned().collect::<Vec<_>>() {
        forge.rename(&name, &format!("language_model.{name}"));
    }
    assert_eq!(expert_bytes(&forge), expected);
    let written = forge.write();
    let (_, inventory) = written.resolve().unwrap();
    assert_eq!(
        inventory.embed.name, "language_model.model.embed_tokens.weight",
        "messages name what is stored"
    );
}

#[test]
fn layers_may_mix_formats() {
    let mut forge = Forge::compressed();
    for e in 0..EXPERTS {
        for (name, rows, cols) in PROJECTIONS {
            let stem = format!("{MLP}.experts.{e}.{name}");
            for part in ["weight_packed", "weight_scale", "weight_global_scale", "input_global_scale"] {
                forge.remove(&format!("{stem}.{part}"));
            }
            forge.floats(&format!("{stem}.weight"), &[rows, cols]);
        }
    }
    let (_, inventory) = forge.write().resolve().unwrap();
    assert!(matrices(sparse(&inventory)).iter().all(|m| m.format == MatrixFormat::Plain(FloatType::Bf16)));
    let MlpSource::Sparse(packed) = &inventory.layers[2].mlp else { panic!("layer 2 is sparse") };
    for matrix in matrices(packed) {
        assert_eq!(matrix.format, MatrixFormat::Nvfp4);
        assert_eq!(matrix.global_scale.unwrap().rule, GlobalScaleRule::Divide);
    }
}

#[test]
fn router_bias_and_shared_expert_names() {
    let bias = format!("{MLP}.experts.e_score_correction_bias");
    for place in ["gate.", "switch_mlp.", ""] {
        let mut forge = Forge::bf16();
        forge.rename(&bias, &format!("{MLP}.{place}e_score_correction_bias"));
        forge.rename(&format!("{MLP}.gate.weight"), &format!("{MLP}.gate.proj.weight"));
        for (name, ..) in PROJECTIONS {
            let at = |stem: &str| format!("{MLP}.{stem}.{name}.weight");
            forge.rename(&at("shared_expert"), &at("shared_experts"));
        }
        let (_, inventory) = forge.write().resolve().unwrap();
        let sparse = sparse(&inventory);
        assert_eq!(sparse.router.name, format!("{MLP}.gate.proj.weight"));
        assert!(sparse.correction_bias.as_ref().unwrap().name.ends_with("e_score_correction_bias"));
        assert!(sparse.shared_expert.is_some());
    }

    let mut forge = Forge::bf16();
    forge.floats(&bias, &[EXPERTS]);
    let (_, inventory) = forge.write().resolve().unwrap();
    assert_eq!(sparse(&inventory).correction_bias.as_ref().unwrap().float, FloatType::Bf16);
}

#[test]
fn quantised_routers_under_both_names() {
    for (stem, path) in [("gate", "gate.proj"), ("gate.proj", "gate"), ("gate", "gate")] {
        let mut forge = Forge::bf16();
        forge.remove(&format!("{MLP}.gate.weight"));
        forge.quantize(&format!("{MLP}.{stem}"), &[EXPERTS], HIDDEN, 8, 64);
        let entry =
            json!({ "bits": 4, "group_size": 64, format!("{MLP}.{path}"): { "bits": 8, "group_size": 64 } });
        forge.config("quantization", entry);
        let (_, inventory) = forge.write().resolve().unwrap_or_else(|e| panic!("{e}"));
        let format = sparse(&inventory).router.format;
        assert_eq!(format, MatrixFormat::Affine { bits: 8, group_size: 64, scale_type: FloatType::Bf16 });
    }
}

#[test]
fn affine_geometry_is_solved_without_a_table() {
    for bits in [2, 3, 4, 5, 6, 8] {
        for group in [32, 64] {
            let mut forge = Forge::bf16();
            forge.stack(&format!("{MLP}.switch_mlp"));
            for (name, rows, cols) in PROJECTIONS {
                let group = group.min(cols);
                forge.quantize(&format!("{MLP}.switch_mlp.{name}"), &[EXPERTS, rows], cols, bits, group);
            }
            forge.fuse(&format!("{MLP}.switch_mlp"));
            let (checkpoint, inventory) = forge.write().resolve().unwrap_or_else(|e| panic!("{e}"));
            let gate = &sparse(&inventory).experts[1].gate;
            let format =
                MatrixFormat::Affine { bits: bits as u32, group_size: group, scale_type: FloatType::Bf16 };
            assert_eq!(gate.format, format);
            assert_eq!((gate.rows, gate.cols), (WIDTH, HIDDEN));
            let raw = read_matrix(&checkpoint, gate).unwrap();
            assert_eq!(raw.weight.len(), WIDTH * HIDDEN * bits / 8);
            assert_eq!(decode_matrix(&raw).len(), WIDTH * HIDDEN);
        }
    }
}

#[test]
fn a_fused_module_inherits_the_gates_entry() {
    let mut forge = Forge::bf16();
    forge.stack(&format!("{MLP}.switch_mlp"));
    for (name, rows, cols) in PROJECTIONS {
        forge.quantize(&format!("{MLP}.switch_mlp.{name}"), &[EXPERTS, rows], cols, 5, 32);
    }
    forge.fuse(&format!("{MLP}.switch_mlp"));
    let gate = format!("language_model.{MLP}.switch_mlp.gate_proj");
    forge.config(
        "quantization",
        json!({ "bits": 4, "group_size": 64, &gate: { "bits": 5, "group_size": 32 } }),
    );
    assert!(forge.write().resolve().is_ok());
    forge.config(
        "quantization",
        json!({ "bits": 4, "group_size": 64, &gate: { "bits": 6, "group_size": 32 } }),
    );
    assert_eq!(
        error(&forge),
        "DIR: the checkpoint does not hold this model
mis-shaped (1):
  model.layers.1.mlp.switch_mlp.gate_up_proj.weight: expected affine 6 bits in groups of 32, as \
         quantization.model.layers.1.mlp.switch_mlp.gate_proj says, found U32 [4, 64, 10], affine 5 bits in groups of 32"
    );
}

#[test]
fn mlx_nvfp4_with_and_without_global_scales() {
    let mut forge = Forge::bf16();
    forge.stack(&format!("{MLP}.switch_mlp"));
    for (name, rows, cols) in PROJECTIONS {
        let stem = format!("{MLP}.switch_mlp.{name}");
        forge.remove(&format!("{stem}.weight"));
        let (words, scales) = ([EXPERTS, rows, cols / 8], [EXPERTS, rows, cols / 16]);
        forge.set(&format!("{stem}.weight"), Dtype::U32, &words, vec![0x21; EXPERTS * rows * cols / 2]);
        forge.set(&format!("{stem}.scales"), Dtype::U8, &scales, vec![0x38; EXPERTS * rows * cols / 16]);
    }
    let (checkpoint, inventory) = forge.write().resolve().unwrap();
    let raw = read_matrix(&checkpoint, &sparse(&inventory).experts[3].down).unwrap();
    assert_eq!(raw.multiplier, 1.0);
    assert_eq!(decode_matrix(&raw)[..4], [0.5, 1.0, 0.5, 1.0]);

    let globals = (1..=EXPERTS).flat_map(|e| (2688.0 * e as f32).to_le_bytes()).collect();
    forge.set(&format!("{MLP}.switch_mlp.down_proj.global_scale"), Dtype::F32, &[EXPERTS], globals);
    let (checkpoint, inventory) = forge.write().resolve().unwrap();
    let raw = read_matrix(&checkpoint, &sparse(&inventory).experts[3].down).unwrap();
    assert_eq!(raw.multiplier, 4.0);
    assert_eq!(decode_matrix(&raw)[..2], [2.0, 4.0]);
}

#[test]
fn calibration_a_tied_head_and_singleton_dimensions_pass() {
    let mut forge = Forge::compressed();
    let scalar = || 1_f32.to_le_bytes().to_vec();
    forge.set("model.layers.1.self_attn.k_scale", Dtype::F32, &[], scalar());
    forge.set("model.layers.1.self_attn.v_scale", Dtype::F32, &[1], scalar());
    forge.reshape("model.layers.1.self_attn.g_proj.weight", &[2, 1, HIDDEN]);
    forge.reshape("model.layers.2.self_attn.g_proj.weight", &[4, HIDDEN, 1]);
    forge.config("tie_word_embeddings", json!(true));
    let (_, inventory) = forge.write().resolve().unwrap();
    assert_eq!(inventory.head, None);
    forge.remove("lm_head.weight");
    assert!(forge.write().resolve().is_ok());
}

#[test]
fn gates_and_sinks_follow_the_configuration() {
    let mut forge = Forge::bf16();
    forge.config("gating", json!("per-element"));
    for (n, heads) in [(0, 2), (1, 2), (2, 4)] {
        forge.floats(&format!("model.layers.{n}.self_attn.g_proj.weight"), &[heads * 16, HIDDEN]);
    }
    forge.config("swa_attention_sink_enabled", json!(true));
    for name in ["sink", "sinks"] {
        let mut forge = forge.clone();
        forge.floats(&format!("model.layers.2.self_attn.{name}"), &[4]);
        let (_, inventory) = forge.write().resolve().unwrap();
        assert_eq!(inventory.layers[2].attention.sink.as_ref().unwrap().len, 4);
        assert_eq!(inventory.layers[1].attention.sink, None);
        assert_eq!(inventory.layers[2].attention.g.as_ref().unwrap().rows, 64);
    }
    let text = error(&forge);
    assert!(
        text.ends_with("missing (1):\n  model.layers.2.self_attn.sink: expected BF16/F16/F32 [4]"),
        "{text}"
    );

    forge.config("gating", json!(false));
    let text = error(&forge);
    assert!(
        text.contains("unexpected (3):\n  model.layers.2.self_attn.g_proj.weight: BF16 [64, 64]"),
        "{text}"
    );
}

#[test]
fn everything_that_does_not_fit_is_one_error() {
    let mut forge = Forge::bf16();
    forge.remove("model.norm.weight");
    forge.remove("model.layers.1.self_attn.q_norm.weight");
    forge.rename("model.layers.0.self_attn.o_proj.weight", "model.layers.0.self_attn.out_proj.weight");
    forge.reshape("model.embed_tokens.weight", &[41, HIDDEN]);
    forge.reshape("model.layers.2.mlp.gate.weight", &[HIDDEN, EXPERTS]);
    for n in [1, 2] {
        for e in 0..EXPERTS {
            forge.remove(&format!("model.layers.{n}.mlp.experts.{e}.up_proj.weight"));
        }
    }
    forge.remove("model.layers.1.mlp.experts.2.down_proj.weight");
    forge.set("model.layers.0.mlp.up_proj.weight", Dtype::I64, &[96, HIDDEN], vec![0; 8 * 96 * HIDDEN]);
    forge.floats("model.layers.3.input_layernorm.weight", &[HIDDEN]);
    assert_eq!(
        error(&forge),
        "DIR: the checkpoint does not hold this model
missing (12):
  model.layers.0.self_attn.o_proj.weight: expected BF16/F16/F32 [64, 32]
  model.layers.1.mlp.experts.2.down_proj.weight: expected BF16/F16/F32 [64, 32]
  model.layers.1.self_attn.q_norm.weight: expected BF16/F16/F32 [16]
  model.layers.{1..2}.mlp.experts.{0..3}.up_proj.weight: expected BF16/F16/F32 [32, 64]
  model.norm.weight: expected BF16/F16/F32 [64]
mis-shaped (3):
  model.embed_tokens.weight: expected BF16/F16/F32 [40, 64], found BF16 [41, 64]
  model.layers.0.mlp.up_proj.weight: expected BF16/F16/F32 [96, 64], found I64 [96, 64]
  model.layers.2.mlp.gate.weight: expected BF16/F16/F32 [4, 64], found BF16 [64, 4]
unexpected (2):
  model.layers.0.self_attn.out_proj.weight: BF16 [64, 32]
  model.layers.3.input_layernorm.weight: BF16 [64]"
    );
}

#[test]
fn incomplete_packed_matrices_name_the_part() {
    let mut forge = Forge::compressed();
    let at = |e: usize, part: &str| format!("{MLP}.experts.{e}.gate_proj.{part}");
    forge.remove(&at(0, "weight_packed"));
    forge.remove(&at(1, "weight_scale"));
    forge.remove(&at(2, "weight_global_scale"));
    forge.reshape(&at(3, "weight_scale"), &[WIDTH, 2]);
    for part in ["weight_packed", "weight_scale", "weight_global_scale"] {
        forge.remove(&format!("{MLP}.experts.3.up_proj.{part}"));
    }
    assert_eq!(
        error(&forge),
        "DIR: the checkpoint does not hold this model
missing (4):
  model.layers.1.mlp.experts.0.gate_proj.weight_packed: expected U8 [32, 32]
  model.layers.1.mlp.experts.1.gate_proj.weight_scale: expected F8_E4M3 [32, 4]
  model.layers.1.mlp.experts.2.gate_proj.weight_global_scale: expected F32 [1]
  model.layers.1.mlp.experts.3.up_proj.weight_packed: expected U8 [32, 32]
mis-shaped (1):
  model.layers.1.mlp.experts.3.gate_proj.weight_scale: expected F8_E4M3 [32, 4], found F8_E4M3 [32, 2]"
    );

    let mut forge = Forge::bf16();
    forge.quantize("lm_head", &[40], HIDDEN, 4, 64);
    forge.quantize("model.embed_tokens", &[40], HIDDEN, 4, 32);
    forge.remove("lm_head.biases");
    forge.reshape("model.embed_tokens.weight", &[40, 7]);
    assert_eq!(
        error(&forge),
        "DIR: the checkpoint does not hold this model
missing (1):
  lm_head.biases: expected BF16 [40, 1]
mis-shaped (1):
  model.embed_tokens.weight: expected U32 with 4 or 6 or 8 or 10 or 12 or 16 words a row, found U32 [40, 7]"
    );
}

#[test]
fn unsupported_formats_are_called_by_name() {
    let mut forge = Forge::bf16();
    for e in 0..EXPERTS {
        for (name, rows, cols) in PROJECTIONS {
            let stem = format!("{MLP}.experts.{e}.{name}");
            forge.set(&format!("{stem}.weight"), Dtype::F8_E4M3, &[rows, cols], vec![0; rows * cols]);
            forge.set(&format!("{stem}.weight_scale"), Dtype::F32, &[1, 1], vec![0; 4]);
            let stem = format!("model.layers.2.mlp.experts.{e}.{name}");
            forge.remove(&format!("{stem}.weight"));
            forge.set(
                &format!("{stem}.weight_packed"),
                Dtype::I32,
                &[rows, cols / 8],
                vec![0; rows * cols / 2],
            );
            forge.floats(&format!("{stem}.weight_scale"), &[rows, cols / 32]);
            forge.set(&format!("{stem}.weight_shape"), Dtype::I64, &[2], vec![0; 16]);
        }
    }
    let stem = "model.layers.1.mlp.shared_expert.up_proj";
    forge.remove(&format!("{stem}.weight"));
    forge.set(&format!("{stem}.weight"), Dtype::U8, &[WIDTH, HIDDEN / 2], vec![0; WIDTH * HIDDEN / 2]);
    forge.set(&format!("{stem}.weight_scale"), Dtype::F8_E4M3, &[WIDTH, 4], vec![0; WIDTH * 4]);
    forge.set(&format!("{stem}.weight_scale_2"), Dtype::F32, &[], vec![0; 4]);
    assert_eq!(
        error(&forge),
        "DIR: the checkpoint does not hold this model
in an unsupported format (25):
  model.layers.1.mlp.experts.{0..3}.down_proj.weight: FP8 weights (float-quantized, F8 `weight`), which are not read
  model.layers.1.mlp.experts.{0..3}.gate_proj.weight: FP8 weights (float-quantized, F8 `weight`), which are not read
  model.layers.1.mlp.experts.{0..3}.up_proj.weight: FP8 weights (float-quantized, F8 `weight`), which are not read
  model.layers.1.mlp.shared_expert.up_proj.weight: ModelOpt NVFP4 (`weight_scale_2`), which is not read
  model.layers.2.mlp.experts.{0..3}.down_proj.weight_packed: INT4/INT8 pack-quantized (I32 `weight_packed`, \
         `weight_shape`), which is not read
  model.layers.2.mlp.experts.{0..3}.gate_proj.weight_packed: INT4/INT8 pack-quantized (I32 `weight_packed`, \
         `weight_shape`), which is not read
  model.layers.2.mlp.experts.{0..3}.up_proj.weight_packed: INT4/INT8 pack-quantized (I32 `weight_packed`, \
         `weight_shape`), which is not read"
    );
}

#[test]
fn sets_of_numbers_are_condensed() {
    let names = ["a.experts.0.w", "a.experts.1.w", "a.experts.3.w", "a.experts.x.w", "b.layers.7.w"];
    let condensed = super::report::condense(names.iter().map(|name| (*name).to_owned()));
    assert_eq!(condensed, ["a.experts.x.w", "a.experts.{0..1,3}.w", "b.layers.7.w"]);
}
