//! Parameters and bytes of a checkpoint by part and by format, from headers alone: what planning and `inspect` count
//! with. Must not print.

use std::{collections::BTreeMap, fmt};

use crate::ids::{ExpertRange, LayerId};

use super::{
    checkpoint::Checkpoint,
    inventory::{
        FloatType, Inventory, MatrixFormat, MatrixSource, MlpSource, SparseSource, SwigluSource, VectorSource,
    },
};

/// What a checkpoint holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Account {
    /// By part of the model.
    pub parts: BTreeMap<Part, Amount>,
    /// By number format, e.g. `bf16`, `nvfp4`, `affine 4-bit, groups of 64`.
    pub formats: BTreeMap<String, Amount>,
    /// How routed experts are stored, e.g. `nvfp4, stacked, gate and up fused`, and the layers stored so.
    pub layouts: BTreeMap<String, Vec<LayerId>>,
    /// Routed experts of each sparse layer.
    pub experts: Vec<LayerExperts>,
    /// Bytes of tensors that are not used: calibration, a tied head.
    pub unused_bytes: u64,
    /// Bytes of all weight files, headers included.
    pub file_bytes: u64,
}

/// Parameters and the bytes that store them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Numbers of the model, whatever stores them (scales are not parameters).
    pub parameters: u64,
    /// Bytes: codes, scales, biases, global scales.
    pub bytes: u64,
}

/// Parts of a model, in the order of a forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Token embedding.
    Embedding,
    /// Every RMSNorm.
    Norms,
    /// Attention projections, gate and sinks.
    Attention,
    /// MLPs of dense layers.
    DenseMlp,
    /// Routers and their selection biases.
    Router,
    /// Always-on experts.
    SharedExpert,
    /// Routed experts.
    RoutedExperts,
    /// Output head, unless tied.
    Head,
}

/// Routed experts of one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerExperts {
    /// The layer.
    pub layer: LayerId,
    /// Bytes of each expert, in order.
    pub bytes: Vec<u64>,
}

impl Account {
    /// Counts a resolved checkpoint.
    pub fn of(checkpoint: &Checkpoint, inventory: &Inventory) -> Self {
        let mut account = Self { file_bytes: checkpoint.file_bytes(), ..Self::default() };
        account.matrix(Part::Embedding, &inventory.embed);
        account.vector(Part::Norms, &inventory.final_norm);
        if let Some(head) = &inventory.head {
            account.matrix(Part::Head, head);
        }
        for (n, layer) in (0..).zip(&inventory.layers) {
            let attention = &layer.attention;
            for norm in [&layer.input_norm, &layer.post_attention_norm, &attention.q_norm, &attention.k_norm]
            {
                account.vector(Part::Norms, norm);
            }
            let projections = [&attention.q, &attention.k, &attention.v, &attention.o];
            for matrix in projections.into_iter().chain(&attention.g) {
                account.matrix(Part::Attention, matrix);
            }
            if let Some(sink) = &attention.sink {
                account.vector(Part::Attention, sink);
            }
            match &layer.mlp {
                MlpSource::Dense(dense) => _ = account.swiglu(Part::DenseMlp, dense),
                MlpSource::Sparse(sparse) => account.sparse(LayerId(n), sparse),
            }
        }
        let stored: u64 = checkpoint.tensors().map(|(_, info)| info.slice.len).sum();
        account.unused_bytes = stored.saturating_sub(account.total().bytes);
        account
    }

    /// All parts together.
    pub fn total(&self) -> Amount {
        self.parts.values().fold(Amount::default(), |sum, part| Amount {
            parameters: sum.parameters + part.parameters,
            bytes: sum.bytes + part.bytes,
        })
    }

    /// Everything but the routed experts: what a coordinator holds, shards aside.
    pub fn trunk_bytes(&self) -> u64 {
        let routed = self.parts.get(&Part::RoutedExperts).map_or(0, |part| part.bytes);
        self.total().bytes - routed
    }

    /// Bytes of a shard's experts, over all sparse layers.
    pub fn shard_bytes(&self, range: ExpertRange) -> u64 {
        self.experts.iter().map(|layer| layer.range_bytes(range)).sum()
    }

    fn sparse(&mut self, layer: LayerId, sparse: &SparseSource) {
        self.matrix(Part::Router, &sparse.router);
        if let Some(bias) = &sparse.correction_bias {
            self.vector(Part::Router, bias);
        }
        if let Some(shared) = &sparse.shared_expert {
            self.swiglu(Part::SharedExpert, shared);
        }
        let bytes = sparse.experts.iter().map(|expert| self.swiglu(Part::RoutedExperts, expert)).collect();
        self.experts.push(LayerExperts { layer, bytes });
        self.layouts.entry(layout(&sparse.experts)).or_default().push(layer);
    }

    fn swiglu(&mut self, part: Part, source: &SwigluSource) -> u64 {
        [&source.gate, &source.up, &source.down].into_iter().map(|matrix| self.matrix(part, matrix)).sum()
    }

    fn matrix(&mut self, part: Part, source: &MatrixSource) -> u64 {
        let bytes = source.bytes() + source.global_scale.map_or(0, |global| global.slice.len);
        let parameters = source.rows as u64 * source.cols as u64;
        self.add(part, source.format, Amount { parameters, bytes });
        bytes
    }

    fn vector(&mut self, part: Part, source: &VectorSource) {
        let amount = Amount { parameters: source.len as u64, bytes: source.slice.len };
        self.add(part, MatrixFormat::Plain(source.float), amount);
    }

    fn add(&mut self, part: Part, format: MatrixFormat, amount: Amount) {
        let sums = [self.parts.entry(part).or_default(), self.formats.entry(format.to_string()).or_default()];
        for sum in sums {
            sum.parameters += amount.parameters;
            sum.bytes += amount.bytes;
        }
    }
}

impl LayerExperts {
    /// Bytes of the largest expert.
    pub fn largest(&self) -> u64 {
        self.bytes.iter().copied().max().unwrap_or(0)
    }

    /// Bytes of the experts of `range`.
    pub fn range_bytes(&self, range: ExpertRange) -> u64 {
        self.bytes.iter().skip(usize::from(range.start)).take(range.len()).sum()
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Embedding => "embedding",
            Self::Norms => "norms",
            Self::Attention => "attention",
            Self::DenseMlp => "dense MLP",
            Self::Router => "router",
            Self::SharedExpert => "shared expert",
            Self::RoutedExperts => "routed experts",
            Self::Head => "head",
        })
    }
}

impl fmt::Display for FloatType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
        })
    }
}

impl fmt::Display for MatrixFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(float) => float.fmt(f),
            Self::Nvfp4 => f.write_str("nvfp4"),
            Self::Affine { bits, group_size, .. } => write!(f, "affine {bits}-bit, groups of {group_size}"),
        }
    }
}

fn layout(experts: &[SwigluSource]) -> String {
    let Some(first) = experts.first() else { return "none".to_owned() };
    let mut text = first.gate.format.to_string();
    if first.down.format != first.gate.format {
        text += &format!(" (down {})", first.down.format);
    }
    let stacked = experts.get(1).is_some_and(|second| second.down.name == first.down.name);
    text += if stacked { ", stacked" } else { ", one by one" };
    if first.gate.name == first.up.name {
        text += ", gate and up fused";
    }
    text
}
