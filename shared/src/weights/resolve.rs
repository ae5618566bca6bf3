//! The model's parts, found in a checkpoint: every name a part has been published under, every layout of experts.

use std::collections::BTreeMap;

use crate::config::{Gating, LayerConfig, MlpKind, ModelConfig, RouterScore};

use super::{
    checkpoint::Checkpoint,
    inventory::{
        AttentionSource, Inventory, LayerSource, MatrixSource, MlpSource, SparseSource, SwigluSource,
    },
    names,
    packed::{Finder, Packed, Want},
    report::InventoryError,
};

impl Inventory {
    /// Finds every part of the model. What does not fit is one error that lists all of it.
    pub fn resolve(checkpoint: &Checkpoint, config: &ModelConfig) -> Result<Self, InventoryError> {
        let mut resolver = Resolver {
            finder: Finder::new(checkpoint, &config.quantization),
            config,
            single_experts: single_experts(checkpoint),
        };
        let inventory = resolver.model();
        let tied = config.tie_word_embeddings;
        let error = resolver.finder.finish(|name| names::is_ignored(name) || (tied && names::is_head(name)));
        match inventory {
            Some(inventory) if error.is_empty() => Ok(inventory),
            _ => Err(error),
        }
    }
}

struct Resolver<'a> {
    finder: Finder<'a>,
    config: &'a ModelConfig,
    /// MLPs whose experts are stored one by one → last part of a weight's name there.
    single_experts: BTreeMap<String, &'static str>,
}

// A part that is absent or misshapen is `None` here and a fault in the finder; the search goes on regardless, so `?`
// comes only after all parts were looked for.
impl Resolver<'_> {
    fn model(&mut self) -> Option<Inventory> {
        let config = self.config;
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let embed = self.matrix(names::EMBEDDING, vocab, hidden);
        let final_norm = self.finder.vector(&[names::FINAL_NORM.to_owned()], hidden, true);
        let head = (!config.tie_word_embeddings).then(|| self.matrix(names::HEAD, vocab, hidden));
        let layers: Vec<_> =
            config.layers.iter().enumerate().map(|(n, layer)| self.layer(n, layer)).collect();
        Some(Inventory {
            embed: embed?,
            final_norm: final_norm?,
            head: match head {
                Some(head) => Some(head?),
                None => None,
            },
            layers: layers.into_iter().collect::<Option<_>>()?,
        })
    }

    fn layer(&mut self, n: usize, layer: &LayerConfig) -> Option<LayerSource> {
        let stem = names::layer(n);
        let hidden = self.config.hidden_size;
        let mut norm = |name: &str| self.finder.vector(&[format!("{stem}.{name}.weight")], hidden, true);
        let input_norm = norm("input_layernorm");
        let post_attention_norm = norm("post_attention_layernorm");
        let attention = self.attention(&stem, layer);
        let mlp = format!("{stem}.mlp");
        let mlp = match layer.mlp {
            MlpKind::Dense => {
                self.swiglu(&mlp, self.config.intermediate_size, "weight").map(MlpSource::Dense)
            }
            MlpKind::Sparse => self.sparse(&mlp).map(MlpSource::Sparse),
        };
        Some(LayerSource {
            input_norm: input_norm?,
            post_attention_norm: post_attention_norm?,
            attention: attention?,
            mlp: mlp?,
        })
    }

    fn attention(&mut self, layer_stem: &str, layer: &LayerConfig) -> Option<AttentionSource> {
        let config = self.config;
        let (hidden, dim) = (config.hidden_size, config.head_dim);
        let heads = layer.num_attention_heads;
        let (queries, keys) = (heads * dim, config.num_key_value_heads * dim);
        let stem = format!("{layer_stem}.self_attn");
        let at = |name: &str| format!("{stem}.{name}");

        let q = self.matrix(&at("q_proj"), queries, hidden);
        let k = self.matrix(&at("k_proj"), keys, hidden);
        let v = self.matrix(&at("v_proj"), keys, hidden);
        let o = self.matrix(&at("o_proj"), hidden, queries);
        let gates = match config.gating {
            Gating::PerHead => Some(heads),
            Gating::PerElement => Some(queries),
            Gating::None => None,
        };
        let g = gates.map(|rows| self.matrix(&at("g_proj"), rows, hidden));
        let q_norm = self.finder.vector(&[at("q_norm.weight")], dim, true);
        let k_norm = self.finder.vector(&[at("k_norm.weight")], dim, true);
        let needed = config.attention_sinks && layer.sliding_window.is_some();
        let sink = config
            .attention_sinks
            .then(|| self.finder.vector(&names::sinks(layer_stem), heads, needed))
            .flatten();
        if needed && sink.is_none() {
            return None;
        }
        Some(AttentionSource {
            q: q?,
            k: k?,
            v: v?,
            o: o?,
            g: match g {
                Some(g) => Some(g?),
                None => None,
            },
            q_norm: q_norm?,
            k_norm: k_norm?,
            sink,
        })
    }

    fn sparse(&mut self, mlp: &str) -> Option<SparseSource> {
        let config = self.config;
        let router = self.finder.matrix(&names::routers(mlp), config.num_experts, config.hidden_size);
        // Only sigmoid-like scores are balanced by a bias in published models; a softmax router may do without.
        let needed = config.router.score != RouterScore::Softmax;
        let bias = self.finder.vector(&names::correction_biases(mlp), config.num_experts, needed);
        let width = config.shared_expert_intermediate_size;
        let shared = (width > 0).then(|| {
            let stems = names::shared_experts(mlp);
            let stem = stems.iter().find(|stem| self.has_swiglu(stem)).unwrap_or(&stems[0]);
            self.swiglu(stem, width, "weight")
        });
        let experts = self.experts(mlp);
        if needed && bias.is_none() {
            return None;
        }
        Some(SparseSource {
            router: router?,
            correction_bias: bias,
            shared_expert: match shared {
                Some(shared) => Some(shared?),
                None => None,
            },
            experts: experts?,
        })
    }

    fn experts(&mut self, mlp: &str) -> Option<Vec<SwigluSource>> {
        let (count, width) = (self.config.num_experts, self.config.moe_intermediate_size);
        let stacks = names::expert_stacks(mlp);
        let single = self.single_experts.get(mlp).copied();
        let stack = stacks.iter().find(|stem| self.has_swiglu(stem)).filter(|_| single.is_none());
        if let Some(stem) = stack {
            return self.stack(stem, count, width);
        }
        let suffix = single.unwrap_or("weight");
        let found: Vec<_> = (0..count).map(|n| self.swiglu(&names::expert(mlp, n), width, suffix)).collect();
        found.into_iter().collect()
    }

    fn stack(&mut self, stem: &str, count: usize, width: usize) -> Option<Vec<SwigluSource>> {
        let hidden = self.config.hidden_size;
        let mut find = |name: &str, rows, cols| {
            self.finder.packed(&format!("{stem}.{name}"), Want { count: Some(count), rows, cols }, "weight")
        };
        let down = find("down_proj", hidden, width);
        let fused = self.finder.has(&format!("{stem}.gate_up_proj"));
        let mut find = |name: &str, rows| {
            let want = Want { count: Some(count), rows, cols: hidden };
            self.finder.packed(&format!("{stem}.{name}"), want, "weight")
        };
        let gate_up = if fused {
            GateUp::Fused(find("gate_up_proj", 2 * width)?)
        } else {
            let (gate, up) = (find("gate_proj", width), find("up_proj", width));
            GateUp::Split(gate?, up?)
        };
        let down = down?;
        let experts = (0..count).map(|n| {
            let (gate, up) = gate_up.matrices(n, width);
            SwigluSource { gate, up, down: down.matrix(n, 0..hidden) }
        });
        Some(experts.collect())
    }

    fn swiglu(&mut self, stem: &str, width: usize, suffix: &str) -> Option<SwigluSource> {
        let hidden = self.config.hidden_size;
        let fused = self.finder.has(&format!("{stem}.gate_up_proj"));
        let mut find = |name: &str, rows, cols| {
            self.finder.packed(&format!("{stem}.{name}"), Want::one(rows, cols), suffix)
        };
        let down = find("down_proj", hidden, width);
        let gate_up = if fused {
            GateUp::Fused(find("gate_up_proj", 2 * width, hidden)?)
        } else {
            let (gate, up) = (find("gate_proj", width, hidden), find("up_proj", width, hidden));
            GateUp::Split(gate?, up?)
        };
        let (gate, up) = gate_up.matrices(0, width);
        Some(SwigluSource { gate, up, down: down?.matrix(0, 0..hidden) })
    }

    fn has_swiglu(&self, stem: &str) -> bool {
        ["gate_up_proj", "gate_proj", "up_proj", "down_proj"]
            .iter()
            .any(|name| self.finder.has(&format!("{stem}.{name}")))
    }

    fn matrix(&mut self, stem: &str, rows: usize, cols: usize) -> Option<MatrixSource> {
        self.finder.matrix(&[stem.to_owned()], rows, cols)
    }
}

/// Gate and up projections, apart or in one tensor (gate's rows first).
enum GateUp {
    Split(Packed, Packed),
    Fused(Packed),
}

impl GateUp {
    fn matrices(&self, n: usize, width: usize) -> (MatrixSource, MatrixSource) {
        match self {
            Self::Split(gate, up) => (gate.matrix(n, 0..width), up.matrix(n, 0..width)),
            Self::Fused(both) => (both.matrix(n, 0..width), both.matrix(n, width..2 * width)),
        }
    }
}

/// MLPs whose experts are stored one by one, and how their weights' names end.
fn single_experts(checkpoint: &Checkpoint) -> BTreeMap<String, &'static str> {
    let mut found = BTreeMap::new();
    for (name, _) in checkpoint.tensors() {
        let Some((mlp, rest)) = name.split_once(".experts.") else { continue };
        if !rest.starts_with(|c: char| c.is_ascii_digit()) {
            continue;
        }
        let suffix = found.entry(mlp.to_owned()).or_insert("weight");
        if name.ends_with(".weight_packed") {
            *suffix = "weight_packed";
        }
    }
    found
}
