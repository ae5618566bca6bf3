//! The tensors of a checkpoint, in file order, each with how its bytes are made.
//!
//! Scales follow the usual initialisation, `gain / √inputs`, so that a row's size stays about 1 through any number of
//! layers.

use half::bf16;
use laguna_shared::weights::Dtype;
use laguna_shared::weights::nvfp4::{E2M1, GROUP, e4m3};

use super::noise::Noise;
use super::shape::{Layout, Shape};

/// One tensor to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Checkpoint name.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Outermost first.
    pub shape: Vec<usize>,
    /// Its bytes.
    pub fill: Fill,
}

/// How bytes are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fill {
    /// bf16, uniform.
    Bf16 {
        /// Middle.
        mean: f32,
        /// Standard deviation.
        std: f32,
    },
    /// f32, uniform.
    F32 {
        /// Lowest.
        low: f32,
        /// Highest.
        high: f32,
    },
    /// Any byte: two E2M1 codes.
    Codes,
    /// E4M3 bytes from `low` up, `count` of them.
    Scales {
        /// Lowest byte.
        low: u8,
        /// Different bytes.
        count: u8,
    },
}

impl Tensor {
    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64 * self.dtype.size()
    }
}

impl Fill {
    /// Fills `out`, whose length is a multiple of 8 bytes or the tensor's last.
    pub fn fill(self, noise: &mut Noise, out: &mut [u8]) {
        for out in out.chunks_mut(8) {
            let random = noise.next_u64().to_le_bytes();
            let mut made = random;
            match self {
                Self::Codes => {}
                Self::Scales { low, count } => {
                    made = random.map(|byte| low + ((u16::from(byte) * u16::from(count)) >> 8) as u8);
                }
                Self::Bf16 { mean, std } => {
                    let range = std * UNIFORM_RANGE;
                    for (out, raw) in made.as_chunks_mut::<2>().0.iter_mut().zip(random.as_chunks::<2>().0) {
                        let unit = f32::from(u16::from_le_bytes(*raw)) / 65_536.0 - 0.5;
                        *out = bf16::from_f32(mean + range * unit).to_le_bytes();
                    }
                }
                Self::F32 { low, high } => {
                    for (out, raw) in made.as_chunks_mut::<4>().0.iter_mut().zip(random.as_chunks::<4>().0) {
                        let unit = (u32::from_le_bytes(*raw) >> 8) as f32 / (1_u32 << 24) as f32;
                        *out = (low + (high - low) * unit).to_le_bytes();
                    }
                }
            }
            out.copy_from_slice(&made[..out.len()]);
        }
    }
}

/// Every tensor: one list a file. The first file holds what belongs to no layer.
pub fn tensors(shape: &Shape, layout: Layout) -> Vec<Vec<Tensor>> {
    let mut files = vec![vec![
        matrix("model.embed_tokens", shape.vocab, shape.hidden, (shape.hidden as f32).sqrt()),
        matrix("lm_head", shape.vocab, shape.hidden, 2.0),
        norm("model.norm", shape.hidden),
    ]];
    files.extend((0..shape.layers).map(|n| layer(shape, layout, n)));
    files
}

fn layer(shape: &Shape, layout: Layout, n: usize) -> Vec<Tensor> {
    let stem = format!("model.layers.{n}");
    let at = |name: &str| format!("{stem}.{name}");
    let (hidden, dim) = (shape.hidden, shape.head_dim);
    let queries = shape.heads(n) * dim;
    let keys = shape.kv_heads * dim;
    let mut tensors = vec![
        norm(&at("input_layernorm"), hidden),
        norm(&at("post_attention_layernorm"), hidden),
        matrix(&at("self_attn.q_proj"), queries, hidden, 1.0),
        matrix(&at("self_attn.k_proj"), keys, hidden, 1.0),
        matrix(&at("self_attn.v_proj"), keys, hidden, 1.0),
        matrix(&at("self_attn.o_proj"), hidden, queries, HALF),
        matrix(&at("self_attn.g_proj"), shape.heads(n), hidden, 1.0),
        norm(&at("self_attn.q_norm"), dim),
        norm(&at("self_attn.k_norm"), dim),
    ];
    let mlp = at("mlp");
    if n < shape.dense_layers {
        tensors.extend(swiglu(shape.dense_width, hidden, |name, rows, cols, gain| {
            vec![matrix(&format!("{mlp}.{name}"), rows, cols, gain)]
        }));
        return tensors;
    }
    tensors.push(matrix(&format!("{mlp}.gate"), shape.experts, hidden, 1.0));
    let bias = match layout {
        Layout::Compressed => "experts.e_score_correction_bias",
        Layout::Stacked => "gate.e_score_correction_bias",
    };
    tensors.push(Tensor {
        name: format!("{mlp}.{bias}"),
        dtype: Dtype::F32,
        shape: vec![shape.experts],
        fill: Fill::F32 { low: -0.05, high: 0.05 },
    });
    tensors.extend(swiglu(shape.shared_width, hidden, |name, rows, cols, gain| {
        let name = format!("{mlp}.shared_expert.{name}");
        match layout {
            Layout::Compressed if shape.shared_packed => compressed(&name, rows, cols, gain),
            _ => vec![matrix(&name, rows, cols, gain)],
        }
    }));
    match layout {
        Layout::Compressed => {
            for expert in 0..shape.experts {
                tensors.extend(swiglu(shape.expert_width, hidden, |name, rows, cols, gain| {
                    compressed(&format!("{mlp}.experts.{expert}.{name}"), rows, cols, gain)
                }));
            }
        }
        Layout::Stacked => tensors.extend(swiglu(shape.expert_width, hidden, |name, rows, cols, gain| {
            stacked(&format!("{mlp}.switch_mlp.{name}"), shape.experts, rows, cols, gain)
        })),
    }
    tensors
}

/// The three projections of a SwiGLU, by `make(name, rows, cols, gain)`.
fn swiglu(
    width: usize,
    hidden: usize,
    mut make: impl FnMut(&str, usize, usize, f32) -> Vec<Tensor>,
) -> Vec<Tensor> {
    let mut tensors = make("gate_proj", width, hidden, 1.0);
    tensors.extend(make("up_proj", width, hidden, 1.0));
    tensors.extend(make("down_proj", hidden, width, HALF));
    tensors
}

fn matrix(stem: &str, rows: usize, cols: usize, gain: f32) -> Tensor {
    let std = gain / (cols as f32).sqrt();
    let fill = Fill::Bf16 { mean: 0.0, std };
    Tensor { name: format!("{stem}.weight"), dtype: Dtype::BF16, shape: vec![rows, cols], fill }
}

fn norm(stem: &str, len: usize) -> Tensor {
    let fill = Fill::Bf16 { mean: 1.0, std: 0.05 };
    Tensor { name: format!("{stem}.weight"), dtype: Dtype::BF16, shape: vec![len], fill }
}

/// compressed-tensors: value = code · scale / global scale.
fn compressed(stem: &str, rows: usize, cols: usize, gain: f32) -> Vec<Tensor> {
    let scale: f32 = (SCALES_FROM..SCALES_FROM + SCALES).map(e4m3).sum::<f32>() / f32::from(SCALES);
    let global = code_rms() * scale * (cols as f32).sqrt() / gain;
    let tensor =
        |name: &str, dtype, shape, fill| Tensor { name: format!("{stem}.{name}"), dtype, shape, fill };
    vec![
        tensor("weight_packed", Dtype::U8, vec![rows, cols / 2], Fill::Codes),
        tensor(
            "weight_scale",
            Dtype::F8_E4M3,
            vec![rows, cols / GROUP],
            Fill::Scales { low: SCALES_FROM, count: SCALES },
        ),
        tensor(
            "weight_global_scale",
            Dtype::F32,
            vec![1],
            Fill::F32 { low: 0.8 * global, high: 1.25 * global },
        ),
    ]
}

/// MLX: value = code · scale, so the scales themselves are small.
fn stacked(stem: &str, experts: usize, rows: usize, cols: usize, gain: f32) -> Vec<Tensor> {
    let wanted = gain / (code_rms() * (cols as f32).sqrt());
    let low = (1..0x7e).rev().find(|byte| e4m3(*byte) <= wanted).unwrap_or(1);
    vec![
        Tensor {
            name: format!("{stem}.weight"),
            dtype: Dtype::U32,
            shape: vec![experts, rows, cols / 8],
            fill: Fill::Codes,
        },
        Tensor {
            name: format!("{stem}.scales"),
            dtype: Dtype::U8,
            shape: vec![experts, rows, cols / GROUP],
            fill: Fill::Scales { low, count: 2 },
        },
    ]
}

/// Root mean square of an E2M1 code, all codes being equally likely.
fn code_rms() -> f32 {
    (E2M1.iter().map(|code| code * code).sum::<f32>() / E2M1.len() as f32).sqrt()
}

/// What attention, MLP and experts add to the residual stream is kept smaller than the stream.
const HALF: f32 = 0.5;

/// E4M3 bytes of the compressed layout: 32 to 60.
const SCALES_FROM: u8 = 0x60;
const SCALES: u8 = 16;

/// Width of a uniform distribution of standard deviation 1: √12.
const UNIFORM_RANGE: f32 = 3.464_101_6;
