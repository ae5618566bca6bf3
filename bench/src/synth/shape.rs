//! The numbers that make a Laguna's shape.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Known shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// Laguna S 2.1, 117.6 B parameters in 48 layers
    S,
    /// Laguna XS 2.1, 33.4 B parameters in 40 layers
    Xs,
    /// A model for tests: it loads in milliseconds
    Tiny,
}

/// How the routed experts are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// NVFP4 of compressed-tensors: one tensor an expert and projection, with global scales
    #[default]
    Compressed,
    /// NVFP4 of MLX: one stack a layer and projection, without global scales
    Stacked,
}

/// How many of what. Every fourth layer, from the first on, has full attention; the others have a sliding window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Decoder layers.
    pub layers: usize,
    /// How many of them, from the first on, are dense.
    pub dense_layers: usize,
    /// Elements per row.
    pub hidden: usize,
    /// Query heads of layers with full attention.
    pub heads_full: usize,
    /// Query heads of layers with a sliding window.
    pub heads_sliding: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Keys that a sliding layer sees.
    pub window: usize,
    /// Routed experts per sparse layer.
    pub experts: usize,
    /// Experts per row.
    pub top_k: usize,
    /// Inner width of a routed expert.
    pub expert_width: usize,
    /// Inner width of the shared expert.
    pub shared_width: usize,
    /// Whether the shared expert is NVFP4 too (compressed layout only).
    pub shared_packed: bool,
    /// Inner width of dense layers.
    pub dense_width: usize,
    /// Token ids.
    pub vocab: usize,
}

impl Shape {
    /// A known shape, all of its layers.
    pub const fn of(preset: Preset) -> Self {
        match preset {
            Preset::S => Self {
                layers: 48,
                dense_layers: 1,
                hidden: 3072,
                heads_full: 48,
                heads_sliding: 72,
                kv_heads: 8,
                head_dim: 128,
                window: 512,
                experts: 256,
                top_k: 10,
                expert_width: 1024,
                shared_width: 1024,
                shared_packed: false,
                dense_width: 12_288,
                vocab: 100_352,
            },
            Preset::Xs => Self {
                layers: 40,
                dense_layers: 1,
                hidden: 2048,
                heads_full: 48,
                heads_sliding: 64,
                kv_heads: 8,
                head_dim: 128,
                window: 512,
                experts: 256,
                top_k: 8,
                expert_width: 512,
                shared_width: 512,
                shared_packed: true,
                dense_width: 8192,
                vocab: 100_352,
            },
            Preset::Tiny => Self {
                layers: 3,
                dense_layers: 1,
                hidden: 64,
                heads_full: 2,
                heads_sliding: 4,
                kv_heads: 2,
                head_dim: 32,
                window: 16,
                experts: 8,
                top_k: 3,
                expert_width: 32,
                shared_width: 32,
                shared_packed: true,
                dense_width: 96,
                vocab: 128,
            },
        }
    }

    /// One sparse layer of S-shaped experts and next to nothing around it: for measuring the experts alone.
    pub const fn experts_only(experts: usize) -> Self {
        Self {
            layers: 1,
            dense_layers: 0,
            heads_full: 1,
            heads_sliding: 1,
            kv_heads: 1,
            experts,
            shared_width: 32,
            dense_width: 32,
            vocab: 32,
            ..Self::of(Preset::S)
        }
    }

    /// Whether a layer has full attention.
    pub const fn is_full(&self, layer: usize) -> bool {
        layer.is_multiple_of(FULL_EVERY)
    }

    /// Query heads of a layer.
    pub const fn heads(&self, layer: usize) -> usize {
        if self.is_full(layer) { self.heads_full } else { self.heads_sliding }
    }

    /// Bytes of one routed expert: codes and scales.
    pub const fn expert_bytes(&self) -> usize {
        let elements = 3 * self.hidden * self.expert_width;
        elements / 2 + elements / 16
    }

    /// What is wrong with these numbers, if anything.
    pub fn fault(&self) -> Option<String> {
        let widths = [
            ("hidden", self.hidden),
            ("expert width", self.expert_width),
            ("shared width", self.shared_width),
            ("dense width", self.dense_width),
        ];
        if let Some((name, width)) = widths.into_iter().find(|(_, width)| *width == 0 || width % 32 != 0) {
            return Some(format!("{name} is {width}; it must be a multiple of 32"));
        }
        if self.top_k == 0 || self.top_k > self.experts {
            return Some(format!("{} of {} experts per row", self.top_k, self.experts));
        }
        if self.kv_heads == 0 || self.heads_full % self.kv_heads + self.heads_sliding % self.kv_heads != 0 {
            let (full, sliding, kv) = (self.heads_full, self.heads_sliding, self.kv_heads);
            return Some(format!("{full} and {sliding} query heads do not divide among {kv} key heads"));
        }
        if self.layers == 0 || self.dense_layers > self.layers {
            return Some(format!("{} dense layers of {}", self.dense_layers, self.layers));
        }
        (self.vocab < SMALLEST_VOCAB)
            .then(|| format!("a vocabulary of {}; the smallest is {SMALLEST_VOCAB}", self.vocab))
    }
}

/// Layers from one with full attention to the next.
const FULL_EVERY: usize = 4;

/// Ids up to 24 have a meaning in `config.json`.
const SMALLEST_VOCAB: usize = 32;
