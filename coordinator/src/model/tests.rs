//! The forward pass against its formulas and against the unit goldens (`tests/fixtures/README.md`).

use std::path::{Path, PathBuf};

use laguna_shared::compute::ActivationType;
use laguna_shared::compute::cpu::Pool;
use laguna_shared::compute::mlx::array::append_f32;
use laguna_shared::config::{ConfigOptions, Gating, RopeConfig, RouterConfig, RouterScore};
use laguna_shared::ids::{ExpertId, ExpertRange, ShardId};
use laguna_shared::session::{CallerSettings, InMemoryLinks, InMemoryWorker};
use laguna_worker::bank::{BankKind, load_bank, pool};
use laguna_worker::model::OpenModel;
use mlx_rs::Array;
use mlx_rs::ops::indexing::TryIndexOp;
use serde_json::Value;

use super::attention::Attention;
use super::layer::Mlp;
use super::linear::{Linear, TrunkMath};
use super::load::TrunkSettings;
use super::micro_batch::{MicroBatch, Piece};
use super::pointwise::{gate_heads, mlx_softplus, softplus};
use super::quantize::TrunkBits;
use super::rope::Rope;
use super::router::Selection;
use super::trace::RoutingTrace;
use super::{Model, Segment};
use crate::experts::Experts;

pub(super) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

fn goldens() -> Value {
    serde_json::from_slice(&std::fs::read(fixture("unit_goldens.json")).unwrap()).unwrap()
}

fn floats(value: &Value) -> Vec<f32> {
    match value {
        Value::Array(items) => items.iter().flat_map(floats).collect(),
        other => vec![other.as_f64().unwrap() as f32],
    }
}

fn host(array: &Array) -> Vec<f32> {
    let mut out = Vec::new();
    append_f32(array, &mut out).unwrap();
    out
}

/// Deterministic values in -1..1 that look like noise.
pub(super) fn noise(shape: &[i32], seed: u32) -> Array {
    let mut state = seed.wrapping_mul(2_654_435_761).max(1);
    let values: Vec<f32> = (0..shape.iter().product::<i32>())
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as f32 / u32::MAX as f32 * 2.0 - 1.0
        })
        .collect();
    Array::from_slice(&values, shape)
}

fn bf16_fixture() -> Model {
    loaded(TrunkBits::Stored, TrunkMath::Mlx)
}

pub(super) fn loaded(bits: TrunkBits, math: TrunkMath) -> Model {
    let opened = OpenModel::open(&fixture("bf16"), &ConfigOptions::default()).unwrap();
    let OpenModel { checkpoint, config, inventory, .. } = &opened;
    let settings = TrunkSettings { activation: ActivationType::F32, bits, math };
    Model::load(checkpoint, inventory, config, &settings, &mut |_| ()).unwrap()
}

#[test]
fn rope_rotates_as_the_goldens_do() {
    let goldens = goldens();
    let positions = floats(&goldens["rope"]["positions"]);
    let input = floats(&goldens["rope"]["input"]);
    let head_dim = input.len() / positions.len();
    let mut seen = 0;
    for case in goldens["rope"]["cases"].as_array().unwrap() {
        let config = published_rope(case, head_dim);
        let theirs = floats(&case["inv_freq"]);
        for (ours, theirs) in config.inverse_frequencies().iter().zip(&theirs) {
            assert!((ours / f64::from(*theirs) - 1.0).abs() < 1e-6, "{}: {ours} {theirs}", case["config"]);
        }
        assert_eq!(config.inverse_frequencies().len(), theirs.len());
        let ropes = maths().map(|math| Rope::new(&config, head_dim, mlx_rs::Dtype::Float32, math).unwrap());
        let rotated = floats(&case["rotated"]);
        for (row, &position) in positions.iter().enumerate() {
            let range = row * head_dim..(row + 1) * head_dim;
            let x = Array::from_slice(&input[range.clone()], &[1, 1, head_dim as i32]);
            let ours = ropes.each_ref().map(|rope| host(&rope.forward(&x, position as usize).unwrap()));
            for (ours, theirs) in
                ours.iter().flatten().zip(rotated[range.clone()].iter().chain(&rotated[range]))
            {
                // At position 4096 an f32 angle is good to 2^-12 / 2 = 1.2e-4 radians.
                assert!((ours - theirs).abs() < 6e-4, "{} at {position}: {ours} {theirs}", case["config"]);
            }
        }
        seen += 1;
    }
    assert!(seen >= 6);
}

/// A golden's rope entry, read by the configuration parser like any checkpoint's.
fn published_rope(case: &Value, head_dim: usize) -> RopeConfig {
    let kind = case["layer_type"].as_str().unwrap();
    let config = serde_json::json!({
        "model_type": "laguna", "vocab_size": 64, "hidden_size": 64, "head_dim": head_dim,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 64,
        "layer_types": [kind], "mlp_layer_types": ["dense"], "sliding_window": 16,
        "rope_parameters": case["rope_parameters"],
    });
    let config =
        laguna_shared::config::ModelConfig::from_json(&config.to_string(), &ConfigOptions::default())
            .unwrap();
    let rope = config.layers[0].rope.clone();
    let scaling = case["attention_scaling"].as_f64().unwrap();
    assert!((rope.attention_factor - scaling).abs() < 1e-9, "{} {scaling}", rope.attention_factor);
    rope
}

#[test]
fn yarn_of_xs_2_1_has_the_published_values() {
    // factor 32, 8192 original positions, beta 64 and 1, theta 5e5, 64 rotated dims:
    // low = floor(64 ln(8192 / (64·2π)) / (2 ln 5e5)) = 7, high = ceil(64 ln(8192 / 2π) / (2 ln 5e5)) = 18.
    let goldens = goldens();
    let case = &goldens["rope"]["cases"][0];
    let frequencies = published_rope(case, 128).inverse_frequencies();
    let plain = |i: i32| 5e5_f64.powf(-f64::from(2 * i) / 64.0);
    assert!((frequencies[7] / plain(7) - 1.0).abs() < 1e-12);
    assert!((frequencies[18] * 32.0 / plain(18) - 1.0).abs() < 1e-12);
    let ramp = 4.0 / 11.0;
    let between = plain(11) / 32.0 * ramp + plain(11) * (1.0 - ramp);
    assert!((frequencies[11] / between - 1.0).abs() < 1e-12);
}

#[test]
fn softplus_gate_is_ln_2_at_0_and_follows_the_goldens() {
    let goldens = goldens();
    let logits = floats(&goldens["softplus_gate"]["logits"]);
    let gate = floats(&goldens["softplus_gate"]["gate"]);
    let mlx = host(&mlx_softplus(&Array::from_slice(&logits, &[logits.len() as i32])).unwrap());
    let ours = mlx.iter().copied().chain(logits.iter().map(|z| softplus(*z)));
    let ours: Vec<f32> = ours.collect();
    let twice = |of: &[f32]| [of, of].concat();
    for ((z, ours), theirs) in twice(&logits).iter().zip(&ours).zip(twice(&gate)) {
        // MLX flushes subnormals on some backends: 3.8e-44 may be 0.
        assert!((ours - theirs).abs() <= 2e-6 * theirs.abs() + 1e-38, "softplus({z}) = {ours}, not {theirs}");
    }
    let zero = logits.iter().position(|&z| z == 0.0).unwrap();
    assert!((ours[zero] - std::f32::consts::LN_2).abs() < 1e-6);
}

#[test]
fn a_gate_of_zeros_scales_every_head_by_ln_2() {
    for model in maths().map(|math| loaded(TrunkBits::Stored, math)) {
        let attention = &model.layers[0].attention;
        assert_eq!(model.config.gating, Gating::PerHead);
        let (heads, head_dim) = (attention.heads as i32, attention.head_dim as i32);
        // The gate's input is the normed row; a row of zeros makes every head's gate softplus(0).
        let zeros =
            mlx_rs::ops::zeros_dtype(&[2, model.config.hidden_size as i32], mlx_rs::Dtype::Float32).unwrap();
        let out = noise(&[2, heads, head_dim], 3);
        let gate = attention.gate.as_ref().unwrap().forward(&zeros).unwrap();
        let gated = host(&attention.gated(Some(&gate), out.clone()).unwrap());
        for (gated, plain) in gated.iter().zip(host(&out)) {
            assert!((gated - plain * std::f32::consts::LN_2).abs() < 1e-6);
        }
    }
}

#[test]
fn a_gate_has_a_factor_for_each_head_or_for_each_channel() {
    let (rows, heads, head_dim) = (3, 4, 16);
    let x = noise(&[rows, heads, head_dim], 7);
    for width in [1, head_dim] {
        let gate = noise(&[rows, heads * width], 8).multiply(Array::from_f32(5.0)).unwrap();
        let (elements, factors) = (host(&x), host(&gate));
        for math in maths() {
            let gated = host(&gate_heads(&math, &x, &gate).unwrap());
            for (n, (gated, x)) in gated.iter().zip(&elements).enumerate() {
                let factor = f64::from(factors[n / (head_dim / width) as usize]).exp().ln_1p();
                let off = (f64::from(*gated) - f64::from(*x) * factor).abs();
                assert!(off < 2e-6, "{math:?}, width {width}, element {n}: {gated}");
            }
        }
    }
}

#[test]
fn router_chooses_as_the_goldens_do() {
    let goldens = goldens();
    for case in goldens["router"].as_array().unwrap() {
        let cap = case["softcap"].as_f64().unwrap() as f32;
        let selection = |bias: Vec<f32>| Selection {
            config: RouterConfig {
                score: match case["score_func"].as_str().unwrap() {
                    "sigmoid" => RouterScore::Sigmoid,
                    "sqrtsoftplus" => RouterScore::SqrtSoftplus,
                    "softmax" => RouterScore::Softmax,
                    other => panic!("{other}"),
                },
                logit_softcap: (cap > 0.0).then_some(cap),
                norm_topk_prob: true,
            },
            bias,
            top_k: case["top_k"].as_u64().unwrap() as usize,
        };
        let ids = |value: &Value| -> Vec<ExpertId> {
            floats(value).into_iter().map(|id| ExpertId(id as u16)).collect()
        };
        let logits = floats(&case["logits"]);
        let bias = floats(&case["e_score_correction_bias"]);
        let unbiased = selection(vec![0.0; bias.len()]).choose(&logits);
        assert_eq!(unbiased.experts, ids(&case["topk_idx_without_bias"]));
        let biased = selection(bias).choose(&logits);
        assert_eq!(biased.experts, ids(&case["topk_idx_ascending"]));
        assert_ne!(biased.experts, unbiased.experts, "a golden that cannot tell the bias from none");
        for (ours, theirs) in biased.weights.iter().zip(floats(&case["topk_weights_normalized"])) {
            assert!((ours - theirs).abs() < 1e-6, "{ours} {theirs}");
        }
    }
}

/// A layer's attention over whole segments.
fn attend(attention: &Attention, layer: usize, x: &Array, segments: &mut [Segment<'_>]) -> Vec<f32> {
    let pieces = MicroBatch::cut(segments, 1).remove(0).pieces;
    host(&attention.forward(layer, x, &pieces, segments).unwrap())
}

/// Attention of 96 tokens; a change at token 60 must not reach earlier ones, nor, on a sliding layer, later ones
/// outside its window.
fn reach_of_token_60(attention: &Attention, model: &Model, layer: usize) -> Vec<usize> {
    let hidden = model.config.hidden_size as i32;
    let ids = [0_u32; 96];
    let run = |x: &Array| {
        let mut cache = model.new_cache();
        let mut segments = [Segment { ids: &ids, cache: &mut cache }];
        attend(attention, layer, x, &mut segments)
    };
    let x = noise(&[96, hidden], 11);
    let other = noise(&[1, hidden], 12);
    let changed =
        mlx_rs::ops::concatenate(&[x.try_index(..60).unwrap(), other, x.try_index(61..).unwrap()], 0)
            .unwrap();
    let (before, after) = (run(&x), run(&changed));
    let width = hidden as usize;
    let differs = |row: &usize| before[row * width..][..width] != after[row * width..][..width];
    (0..96).filter(differs).collect()
}

#[test]
fn attention_is_causal_over_96_tokens_on_both_layer_types() {
    for model in maths().map(|math| loaded(TrunkBits::Stored, math)) {
        let layer_of = |sliding: bool| {
            model.config.layers.iter().position(|l| l.sliding_window.is_some() == sliding).unwrap()
        };
        let full = layer_of(false);
        assert_eq!(
            reach_of_token_60(&model.layers[full].attention, &model, full),
            (60..96).collect::<Vec<_>>()
        );
        let sliding = layer_of(true);
        let window = model.config.layers[sliding].sliding_window.unwrap();
        let reached = reach_of_token_60(&model.layers[sliding].attention, &model, sliding);
        assert_eq!(reached, (60..60 + window).collect::<Vec<_>>(), "window {window}, itself included");
    }
}

#[test]
fn any_chunks_give_the_rows_of_one_pass() {
    for model in maths().map(|math| loaded(TrunkBits::Stored, math)) {
        let hidden = model.config.hidden_size as i32;
        let x = noise(&[96, hidden], 21);
        for layer in 0..model.layers.len() {
            let attention = &model.layers[layer].attention;
            let run = |splits: &[usize]| {
                let mut cache = model.new_cache();
                let mut out = Vec::new();
                let mut first = 0;
                for &size in splits {
                    let ids = vec![0; size];
                    let rows = x.try_index(first as i32..(first + size) as i32).unwrap();
                    let mut segments = [Segment { ids: &ids, cache: &mut cache }];
                    out.extend(attend(attention, layer, &rows, &mut segments));
                    cache.advance(size);
                    first += size;
                }
                assert_eq!(first, 96);
                out
            };
            let whole = run(&[96]);
            for splits in
                [&[1; 96][..], &[16, 16, 16, 16, 16, 16], &[5, 1, 1, 40, 17, 31, 1], &[95, 1], &[1, 95]]
            {
                for (a, b) in whole.iter().zip(run(splits)) {
                    assert!((a - b).abs() < 1e-5, "layer {layer}, chunks {splits:?}: {a} {b}");
                }
            }
        }
    }
}

#[test]
fn segments_of_two_sequences_run_as_each_alone() {
    for model in maths().map(|math| loaded(TrunkBits::Stored, math)) {
        let hidden = model.config.hidden_size as i32;
        let x = noise(&[30, hidden], 31);
        for layer in [0, 1] {
            let attention = &model.layers[layer].attention;
            let alone = |range: std::ops::Range<i32>| {
                let ids = vec![0; range.len()];
                let mut cache = model.new_cache();
                let rows = x.try_index(range).unwrap();
                attend(attention, layer, &rows, &mut [Segment { ids: &ids, cache: &mut cache }])
            };
            let (mut a, mut b) = (model.new_cache(), model.new_cache());
            let ids = [0; 20];
            let mut segments =
                [Segment { ids: &ids, cache: &mut a }, Segment { ids: &ids[..10], cache: &mut b }];
            let together = attend(attention, layer, &x, &mut segments);
            let apart = [alone(0..20), alone(20..30)].concat();
            for (a, b) in together.iter().zip(&apart) {
                assert!((a - b).abs() < 1e-5, "{a} {b}");
            }
        }
    }
}

/// Both ways to compute a product.
fn maths() -> [TrunkMath; 2] {
    [TrunkMath::Mlx, TrunkMath::Cpu(Pool::new(2))]
}

/// The first `rows` rows of a product's matrix.
fn weights(linear: &Linear, rows: u32) -> Vec<f32> {
    host(&linear.rows(&(0..rows).collect::<Vec<u32>>()).unwrap())
}

fn router_weights(model: &Model) -> Vec<f32> {
    let sparse = model.layers.iter().find_map(|layer| match &layer.mlp {
        Mlp::Sparse(sparse) => Some(sparse),
        Mlp::Dense(_) => None,
    });
    weights(&sparse.unwrap().router.linear, 16)
}

#[test]
fn products_are_those_of_the_weights_wherever_they_are_computed() {
    for math in maths() {
        for bits in [TrunkBits::Stored, TrunkBits::Eight, TrunkBits::Four] {
            let model = loaded(bits, math.clone());
            let hidden = model.config().hidden_size;
            let q = &model.layers[0].attention.q;
            let matrix = weights(q, 64);
            for rows in [1, 3, 40] {
                let x = noise(&[rows, hidden as i32], 5);
                let product = host(&q.forward(&x).unwrap().try_index((.., ..64)).unwrap());
                for (x, y) in host(&x).chunks_exact(hidden).zip(product.chunks_exact(64)) {
                    for (w, y) in matrix.chunks_exact(hidden).zip(y) {
                        let exact: f64 = w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
                        assert!(
                            (exact - f64::from(*y)).abs() < 1e-5,
                            "{math:?} {bits:?} {rows}: {exact} {y}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn fewer_bits_move_each_weight_by_half_a_step_of_its_group() {
    for math in maths() {
        for (bits, steps) in [(TrunkBits::Eight, 255.0), (TrunkBits::Four, 15.0)] {
            let (_, group) = bits.format().unwrap();
            let mut model = loaded(TrunkBits::Stored, math.clone());
            let q = |model: &Model| weights(&model.layers[0].attention.q, 64);
            let (before, routed) = (q(&model), router_weights(&model));
            model.quantize(bits).unwrap();
            let after = q(&model);
            assert_ne!(before, after);
            for (before, after) in before.chunks_exact(group).zip(after.chunks_exact(group)) {
                let max = before.iter().copied().fold(f32::MIN, f32::max);
                let min = before.iter().copied().fold(f32::MAX, f32::min);
                // Scale and bias are rounded to f16.
                let rounding = 2.0_f32.powi(-11) * (max - min).abs().max(min.abs());
                for (b, a) in before.iter().zip(after) {
                    assert!((b - a).abs() <= (max - min) / steps * 0.51 + 2.0 * rounding, "{b} {a}");
                }
            }
            assert_eq!(router_weights(&model), routed);
            // Loading in few bits is loading and quantising.
            assert_eq!(q(&loaded(bits, math.clone())), after);
        }
    }
}

/// The fixture's experts in this thread, in two shards.
pub(super) fn experts_of(opened: &OpenModel) -> Experts {
    let count = u16::try_from(opened.config.num_experts).unwrap();
    let worker = |shard: u16, range: ExpertRange| {
        let bank = load_bank(BankKind::Reference, opened, range, &pool(None), &mut |_| ()).unwrap();
        let hello = opened.hello(ShardId(shard), range, ActivationType::F32).unwrap();
        let welcome = opened.welcome(ShardId(shard), bank.as_ref()).unwrap();
        InMemoryWorker { hello, welcome, bank }
    };
    let half = count / 2;
    let workers = vec![worker(0, ExpertRange::new(0, half)), worker(1, ExpertRange::new(half, count))];
    let links = InMemoryLinks::new(workers, CallerSettings::default()).unwrap();
    let owners: Vec<ShardId> = (0..count).map(|e| ShardId(e / half)).collect();
    Experts::new(&owners, Box::new(links), None).unwrap()
}

#[test]
fn micro_batches_give_the_rows_of_one_pass() {
    let opened = OpenModel::open(&fixture("bf16"), &ConfigOptions::default()).unwrap();
    let mut experts = experts_of(&opened);
    let ids: Vec<u32> = (0..90).map(|n| 5 + n * 37 % 200).collect();
    for model in maths().map(|math| loaded(TrunkBits::Stored, math)) {
        // Two sequences, one of which goes on; the cut lies inside the first, then inside the second.
        let mut run = |parts: usize| {
            let (mut a, mut b) = (model.new_cache(), model.new_cache());
            let mut out = Vec::new();
            let mut trace = RoutingTrace::default();
            for (of_a, of_b) in [(0..60, 0..20), (60..90, 20..75)] {
                let mut segments =
                    [Segment { ids: &ids[of_a], cache: &mut a }, Segment { ids: &ids[of_b], cache: &mut b }];
                let rows = model.forward_in(parts, &mut segments, &mut experts, Some(&mut trace)).unwrap();
                out.extend(host(&rows));
            }
            assert_eq!((a.len(), b.len()), (90, 75));
            let sparse = model.config.sparse_layers().count();
            assert_eq!(trace.layers.len(), 2 * parts * sparse, "one entry a layer and micro-batch");
            out
        };
        let whole = run(1);
        for parts in [2, 3] {
            for (a, b) in whole.iter().zip(run(parts)) {
                assert!((a - b).abs() < 1e-4, "{parts} parts: {a} {b}");
            }
        }
    }
}

#[test]
fn a_pass_is_cut_into_rows_of_nearly_the_same_number() {
    let model = bf16_fixture();
    let (mut a, mut b, mut c) = (model.new_cache(), model.new_cache(), model.new_cache());
    let ids = [0; 10];
    let segments = [
        Segment { ids: &ids[..1], cache: &mut a },
        Segment { ids: &ids[..7], cache: &mut b },
        Segment { ids: &ids[..3], cache: &mut c },
    ];
    let cut = |parts| -> Vec<_> {
        MicroBatch::cut(&segments, parts).into_iter().map(|batch| (batch.rows, batch.pieces)).collect()
    };
    let piece = |segment, ids| Piece { segment, ids };
    assert_eq!(cut(1), [(0..11, vec![piece(0, 0..1), piece(1, 0..7), piece(2, 0..3)])]);
    assert_eq!(
        cut(2),
        [(0..6, vec![piece(0, 0..1), piece(1, 0..5)]), (6..11, vec![piece(1, 5..7), piece(2, 0..3)])]
    );
    assert_eq!(cut(100).len(), 11, "never an empty one");
}
