//! A synthetic checkpoint, written as a stream: pre-stacked NVFP4 experts, large enough that memory and reads mean
//! something. Its weights are arbitrary bytes; it knows nothing.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::{Map, Value, json};

/// Sizes of the checkpoint: one dense and [`Self::SPARSE`] sparse layers.
#[derive(Clone, Copy, Debug)]
pub struct Forge {
    /// Elements of the residual stream; a multiple of 64.
    pub hidden: usize,
    /// Routed experts of each sparse layer.
    pub experts: usize,
    /// Width of a routed expert; a multiple of 16.
    pub width: usize,
}

impl Forge {
    /// Sparse layers.
    pub const SPARSE: usize = 2;

    /// Bytes of one expert in one layer: 4 bits a weight, and a scale byte for each 16 weights.
    pub const fn expert_bytes(&self) -> u64 {
        (3 * self.hidden * self.width * 9 / 16) as u64
    }

    /// Bytes of all routed experts.
    pub const fn routed_bytes(&self) -> u64 {
        self.expert_bytes() * (self.experts * Self::SPARSE) as u64
    }

    /// Writes the checkpoint into an empty folder: `config.json` and one file, never more than a block in memory.
    ///
    /// # Panics
    /// If the folder cannot be written to.
    pub fn write(&self, folder: &Path) {
        fs::write(folder.join("config.json"), self.config().to_string())
            .expect("the folder can be written to");
        let tensors = self.tensors();
        let mut table = Map::new();
        let mut offset = 0;
        for tensor in &tensors {
            let end = offset + tensor.bytes();
            let entry =
                json!({ "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [offset, end] });
            table.insert(tensor.name.clone(), entry);
            offset = end;
        }
        let mut text = Value::Object(table).to_string();
        text += &" ".repeat(text.len().next_multiple_of(8) - text.len());
        let file = File::create(folder.join("model.safetensors")).expect("the folder can be written to");
        let mut file = BufWriter::with_capacity(BLOCK, file);
        let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
        file.write_all(&(text.len() as u64).to_le_bytes()).expect("there is room on the disk");
        file.write_all(text.as_bytes()).expect("there is room on the disk");
        for tensor in &tensors {
            pour(&mut file, tensor, &mut noise);
        }
        file.flush().expect("there is room on the disk");
    }

    fn config(&self) -> Value {
        json!({
            "architectures": ["LagunaForCausalLM"], "model_type": "laguna",
            "vocab_size": VOCABULARY, "hidden_size": self.hidden, "intermediate_size": 2 * self.hidden,
            "num_hidden_layers": 1 + Self::SPARSE, "num_attention_heads": HEADS,
            "num_attention_heads_per_layer": vec![HEADS; 1 + Self::SPARSE],
            "num_key_value_heads": HEADS, "head_dim": HEAD_DIM, "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6, "attention_bias": false, "gating": "per-head", "tie_word_embeddings": false,
            "sliding_window": 64,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "num_experts": self.experts, "num_experts_per_tok": 4, "moe_intermediate_size": self.width,
            "shared_expert_intermediate_size": 64, "norm_topk_prob": true, "moe_routed_scaling_factor": 2.5,
            "moe_apply_router_weight_on_input": false, "moe_router_logit_softcapping": 0.0,
            "rope_parameters": {
                "full_attention": { "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0 },
                "sliding_attention": { "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0 },
            },
            "bos_token_id": 2, "eos_token_id": [2, 24], "pad_token_id": 9, "torch_dtype": "bfloat16",
            "quantization": { "group_size": 16, "bits": 4, "mode": "nvfp4" },
        })
    }

    fn tensors(&self) -> Vec<Tensor> {
        let mut tensors = Vec::new();
        let mut add = |name: String, dtype: &'static str, shape: &[usize]| {
            tensors.push(Tensor { name, dtype, shape: shape.to_vec() });
        };
        let h = self.hidden;
        add("model.embed_tokens.weight".into(), "BF16", &[VOCABULARY, h]);
        add("model.norm.weight".into(), "BF16", &[h]);
        add("lm_head.weight".into(), "BF16", &[VOCABULARY, h]);
        for layer in 0..=Self::SPARSE {
            let p = format!("model.layers.{layer}");
            for norm in ["input_layernorm", "post_attention_layernorm"] {
                add(format!("{p}.{norm}.weight"), "BF16", &[h]);
            }
            for (name, rows, cols) in [
                ("q_proj", HEADS * HEAD_DIM, h),
                ("k_proj", HEADS * HEAD_DIM, h),
                ("v_proj", HEADS * HEAD_DIM, h),
                ("o_proj", h, HEADS * HEAD_DIM),
                ("g_proj", HEADS, h),
            ] {
                add(format!("{p}.self_attn.{name}.weight"), "BF16", &[rows, cols]);
            }
            for norm in ["q_norm", "k_norm"] {
                add(format!("{p}.self_attn.{norm}.weight"), "BF16", &[HEAD_DIM]);
            }
            let (mlp, width) =
                if layer == 0 { (format!("{p}.mlp"), 2 * h) } else { (format!("{p}.mlp.shared_expert"), 64) };
            add(format!("{mlp}.gate_proj.weight"), "BF16", &[width, h]);
            add(format!("{mlp}.up_proj.weight"), "BF16", &[width, h]);
            add(format!("{mlp}.down_proj.weight"), "BF16", &[h, width]);
            if layer == 0 {
                continue;
            }
            add(format!("{p}.mlp.gate.weight"), "BF16", &[self.experts, h]);
            add(format!("{p}.mlp.gate.e_score_correction_bias"), "F32", &[self.experts]);
            for (name, rows, cols) in
                [("gate_proj", self.width, h), ("up_proj", self.width, h), ("down_proj", h, self.width)]
            {
                let stack = format!("{p}.mlp.switch_mlp.{name}");
                add(format!("{stack}.weight"), "U32", &[self.experts, rows, cols / 8]);
                add(format!("{stack}.scales"), "U8", &[self.experts, rows, cols / 16]);
            }
        }
        tensors
    }
}

struct Tensor {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
}

impl Tensor {
    fn bytes(&self) -> usize {
        let item = match self.dtype {
            "U8" => 1,
            "BF16" => 2,
            _ => 4,
        };
        item * self.shape.iter().product::<usize>()
    }
}

/// Bytes that are sound for the type: codes are anything, scales and floats small numbers.
fn pour(file: &mut impl Write, tensor: &Tensor, noise: &mut Noise) {
    let mut block = vec![0; BLOCK];
    let mut left = tensor.bytes();
    while left > 0 {
        let part = &mut block[..left.min(BLOCK)];
        match tensor.dtype {
            "U32" => part.chunks_mut(8).for_each(|bytes| {
                let word = noise.next().to_le_bytes();
                bytes.copy_from_slice(&word[..bytes.len()]);
            }),
            // E4M3: around 1/16.
            "U8" => part.iter_mut().for_each(|byte| *byte = 0x18 + (noise.next() % 8) as u8),
            // bf16: ±2⁻⁶ or so.
            "BF16" => part.chunks_mut(2).for_each(|bytes| {
                let bits = noise.next();
                bytes.copy_from_slice(&[bits as u8, 0x3c | (bits >> 8) as u8 & 0x80]);
            }),
            _ => part.fill(0),
        }
        file.write_all(part).expect("there is room on the disk");
        left -= part.len();
    }
}

/// xorshift: the same bytes on every run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

const VOCABULARY: usize = 512;
const HEADS: usize = 4;
const HEAD_DIM: usize = 64;

/// Bytes written at a time; a multiple of every element's size.
const BLOCK: usize = 1 << 20;
