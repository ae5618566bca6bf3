//! (test) Small checkpoints, made tensor by tensor and spoilt on purpose.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use half::bf16;
use serde_json::{Map, Value, json};

use super::{Checkpoint, CheckpointError, Dtype, Inventory, InventoryError};
use crate::config::{ConfigOptions, ModelConfig};

/// Tensors to be written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Forge {
    pub(crate) tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
    pub(crate) config: Value,
}

/// A written checkpoint and its directory.
pub(crate) struct Forged {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) config: ModelConfig,
}

pub(crate) const HIDDEN: usize = 64;
pub(crate) const WIDTH: usize = 32;
pub(crate) const EXPERTS: usize = 4;
pub(crate) const MLP: &str = "model.layers.1.mlp";

impl Forge {
    /// Three layers (dense, sparse full, sparse sliding), every matrix bf16, experts one by one.
    pub(crate) fn bf16() -> Self {
        let config = json!({
            "model_type": "laguna", "vocab_size": 40, "hidden_size": HIDDEN, "intermediate_size": 96,
            "num_hidden_layers": 3, "num_attention_heads": 2, "num_attention_heads_per_layer": [2, 2, 4],
            "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 8,
            "layer_types": ["full_attention", "full_attention", "sliding_attention"],
            "num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": WIDTH,
            "shared_expert_intermediate_size": WIDTH
        });
        let mut forge = Self { config, ..Self::default() };
        forge.floats("model.embed_tokens.weight", &[40, HIDDEN]);
        forge.floats("lm_head.weight", &[40, HIDDEN]);
        forge.floats("model.norm.weight", &[HIDDEN]);
        for n in 0..3 {
            let stem = format!("model.layers.{n}");
            let heads = [2, 2, 4][n];
            for norm in ["input_layernorm", "post_attention_layernorm"] {
                forge.floats(&format!("{stem}.{norm}.weight"), &[HIDDEN]);
            }
            for (name, shape) in [
                ("q_proj", vec![heads * 16, HIDDEN]),
                ("k_proj", vec![32, HIDDEN]),
                ("v_proj", vec![32, HIDDEN]),
                ("o_proj", vec![HIDDEN, heads * 16]),
                ("g_proj", vec![heads, HIDDEN]),
                ("q_norm", vec![16]),
                ("k_norm", vec![16]),
            ] {
                forge.floats(&format!("{stem}.self_attn.{name}.weight"), &shape);
            }
            let mlp = format!("{stem}.mlp");
            if n == 0 {
                forge.swiglu(&mlp, 96);
                continue;
            }
            forge.floats(&format!("{mlp}.gate.weight"), &[EXPERTS, HIDDEN]);
            let bias = vec![0; 4 * EXPERTS];
            forge.set(&format!("{mlp}.experts.e_score_correction_bias"), Dtype::F32, &[EXPERTS], bias);
            forge.swiglu(&format!("{mlp}.shared_expert"), WIDTH);
            for e in 0..EXPERTS {
                forge.swiglu(&format!("{mlp}.experts.{e}"), WIDTH);
            }
        }
        forge
    }

    /// [`Forge::bf16`] with the routed experts in compressed-tensors NVFP4.
    pub(crate) fn compressed() -> Self {
        let mut forge = Self::bf16();
        for n in [1, 2] {
            for e in 0..EXPERTS {
                for (name, rows, cols) in PROJECTIONS {
                    let stem = format!("model.layers.{n}.mlp.experts.{e}.{name}");
                    forge.remove(&format!("{stem}.weight"));
                    forge.compress(&stem, rows, cols);
                }
            }
        }
        forge
    }

    /// Moves layer 1's experts, whatever their format, into stacks under `stem`.
    pub(crate) fn stack(&mut self, stem: &str) {
        for (name, ..) in PROJECTIONS {
            let first = format!("{MLP}.experts.0.{name}.");
            let range = self.tensors.range(first.clone()..);
            let suffixes: Vec<String> =
                range.map_while(|(key, _)| key.strip_prefix(&first).map(str::to_owned)).collect();
            for suffix in suffixes {
                let parts: Vec<_> = (0..EXPERTS)
                    .map(|e| self.remove(&format!("{MLP}.experts.{e}.{name}.{suffix}")))
                    .collect();
                let (dtype, mut shape, _) = parts[0].clone();
                // [1] per expert becomes [E], not [E, 1].
                if shape == [1] {
                    shape.clear();
                }
                shape.insert(0, EXPERTS);
                let bytes = parts.into_iter().flat_map(|(_, _, bytes)| bytes).collect();
                self.set(&format!("{stem}.{name}.{suffix}"), dtype, &shape, bytes);
            }
        }
    }

    /// Joins `stem.gate_proj` and `stem.up_proj` to `stem.gate_up_proj`, matrix by matrix.
    pub(crate) fn fuse(&mut self, stem: &str) {
        let first = format!("{stem}.gate_proj.");
        let range = self.tensors.range(first.clone()..);
        let suffixes: Vec<String> =
            range.map_while(|(key, _)| key.strip_prefix(&first).map(str::to_owned)).collect();
        for suffix in suffixes {
            let (dtype, mut shape, gate) = self.remove(&format!("{first}{suffix}"));
            let (_, _, up) = self.remove(&format!("{stem}.up_proj.{suffix}"));
            let count = if shape.len() == 3 { shape[0] } else { 1 };
            let rows = shape.len() - 2;
            shape[rows] *= 2;
            let each = gate.len() / count;
            let pairs = gate.chunks(each).zip(up.chunks(each));
            let bytes = pairs.flat_map(|(gate, up)| [gate, up].concat()).collect();
            self.set(&format!("{stem}.gate_up_proj.{suffix}"), dtype, &shape, bytes);
        }
    }

    /// Replaces `stem.weight` by affine codes: `[lead.., cols]` in `bits` and `group`.
    pub(crate) fn quantize(&mut self, stem: &str, lead: &[usize], cols: usize, bits: usize, group: usize) {
        self.tensors.remove(&format!("{stem}.weight"));
        let shape = |last: usize| [lead, &[last]].concat();
        let words = shape(cols * bits / 32);
        self.set(
            &format!("{stem}.weight"),
            Dtype::U32,
            &words,
            noise(stem, 4 * words.iter().product::<usize>()),
        );
        self.floats(&format!("{stem}.scales"), &shape(cols / group));
        self.floats(&format!("{stem}.biases"), &shape(cols / group));
    }

    /// `stem` as compressed-tensors NVFP4.
    pub(crate) fn compress(&mut self, stem: &str, rows: usize, cols: usize) {
        let at = |name: &str| format!("{stem}.{name}");
        self.set(&at("weight_packed"), Dtype::U8, &[rows, cols / 2], noise(stem, rows * cols / 2));
        // E4M3 bytes from 0x60 up to 0x6f: 32 to 60.
        let scales = noise(stem, rows * cols / 16).iter().map(|b| 0x60 | b & 15).collect();
        self.set(&at("weight_scale"), Dtype::F8_E4M3, &[rows, cols / 16], scales);
        let global = 1000.0 + stem.len() as f32 + f32::from(noise(stem, 1)[0]);
        self.set(&at("weight_global_scale"), Dtype::F32, &[1], global.to_le_bytes().to_vec());
        self.set(&at("input_global_scale"), Dtype::F32, &[1], 1_f32.to_le_bytes().to_vec());
    }

    pub(crate) fn swiglu(&mut self, stem: &str, width: usize) {
        self.floats(&format!("{stem}.gate_proj.weight"), &[width, HIDDEN]);
        self.floats(&format!("{stem}.up_proj.weight"), &[width, HIDDEN]);
        self.floats(&format!("{stem}.down_proj.weight"), &[HIDDEN, width]);
    }

    /// A bf16 tensor of small numbers that depend on its name.
    pub(crate) fn floats(&mut self, name: &str, shape: &[usize]) {
        let count = shape.iter().product();
        let values = noise(name, count).into_iter().map(|b| (f32::from(b) - 127.5) / 512.0);
        let bytes = values.flat_map(|x| bf16::from_f32(x).to_le_bytes()).collect();
        self.set(name, Dtype::BF16, shape, bytes);
    }

    pub(crate) fn set(&mut self, name: &str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) {
        self.tensors.insert(name.to_owned(), (dtype, shape.to_vec(), bytes));
    }

    pub(crate) fn remove(&mut self, name: &str) -> (Dtype, Vec<usize>, Vec<u8>) {
        self.tensors.remove(name).unwrap_or_else(|| panic!("no {name}"))
    }

    pub(crate) fn rename(&mut self, from: &str, to: &str) {
        let tensor = self.remove(from);
        self.tensors.insert(to.to_owned(), tensor);
    }

    /// Gives a tensor another shape of as many elements, or of more or fewer, bytes to match.
    pub(crate) fn reshape(&mut self, name: &str, shape: &[usize]) {
        let (dtype, _, mut bytes) = self.remove(name);
        bytes.resize(shape.iter().product::<usize>() * dtype.size() as usize, 0);
        self.set(name, dtype, shape, bytes);
    }

    pub(crate) fn config(&mut self, key: &str, value: Value) {
        self.config[key] = value;
    }

    /// Writes one file and `config.json`.
    pub(crate) fn write(&self) -> Forged {
        let dir = tempfile::tempdir().unwrap();
        self.write_file(&dir.path().join("model.safetensors"));
        fs::write(dir.path().join("config.json"), self.config.to_string()).unwrap();
        let config = ModelConfig::from_dir(dir.path(), &ConfigOptions::default()).unwrap();
        Forged { dir, config }
    }

    /// Writes every tensor to one file.
    pub(crate) fn write_file(&self, path: &Path) {
        let (mut header, mut data) = (Map::new(), Vec::new());
        header.insert("__metadata__".into(), json!({ "format": "pt" }));
        for (name, (dtype, shape, bytes)) in &self.tensors {
            let begin = data.len();
            data.extend_from_slice(bytes);
            let entry = json!({ "dtype": dtype.name(), "shape": shape, "data_offsets": [begin, data.len()] });
            header.insert(name.clone(), entry);
        }
        fs::write(path, file_bytes(&Value::Object(header).to_string(), &data)).unwrap();
    }
}

impl Forged {
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    pub(crate) fn open(&self) -> Result<Checkpoint, CheckpointError> {
        Checkpoint::open(self.dir.path())
    }

    pub(crate) fn resolve(&self) -> Result<(Checkpoint, Inventory), InventoryError> {
        let checkpoint = self.open().unwrap();
        let inventory = Inventory::resolve(&checkpoint, &self.config)?;
        Ok((checkpoint, inventory))
    }
}

/// A safetensors file of this header and data.
pub(crate) fn file_bytes(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// Bytes that depend on `name`, from a small linear congruential generator.
fn noise(name: &str, count: usize) -> Vec<u8> {
    let seed = name.bytes().fold(17_u64, |hash, b| (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    let mut state = seed | 1;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// A routed expert's projections: name, rows, columns.
pub(crate) const PROJECTIONS: [(&str, usize, usize); 3] =
    [("gate_proj", WIDTH, HIDDEN), ("up_proj", WIDTH, HIDDEN), ("down_proj", HIDDEN, WIDTH)];
