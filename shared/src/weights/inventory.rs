//! Where each part of the model lies in the checkpoint: byte ranges and number formats, one per matrix.
//!
//! Plain data; `resolve` fills it. A process reads only the slices it owns: experts out of pre-stacked tensors are slices of their own.

use crate::ids::LayerId;

/// A contiguous run of bytes in one checkpoint file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Index into the checkpoint's file list.
    pub file: u16,
    /// Absolute offset in the file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Element type of a plain (unquantised) tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatType {
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE single.
    F32,
}

impl FloatType {
    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }
}

/// Number format of a matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MatrixFormat {
    /// Row-major floats.
    Plain(FloatType),
    /// E2M1 codes (low nibble first), one E4M3 scale byte per 16 columns; value = code · scale · multiplier.
    Nvfp4,
    /// MLX affine: little-endian bit stream of `bits`-wide codes in u32 words; value = code · scale + bias.
    Affine {
        /// Bits per code: 2, 3, 4, 5, 6 or 8.
        bits: u32,
        /// Columns that share a scale and a bias.
        group_size: usize,
        /// Element type of scales and biases.
        scale_type: FloatType,
    },
}

/// One `[rows, cols]` matrix: `y = x · Wᵀ` has `rows` outputs and `cols` inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct MatrixSource {
    /// Checkpoint name of the weight tensor, for messages.
    pub name: String,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// Number format.
    pub format: MatrixFormat,
    /// The weights or packed codes.
    pub weight: Slice,
    /// Scales of a quantised format.
    pub scales: Option<Slice>,
    /// Biases of the affine format.
    pub biases: Option<Slice>,
    /// Where the NVFP4 global scale lies, if the checkpoint stores one.
    pub global_scale: Option<GlobalScale>,
}

/// A stored f32 global scale and how it enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalScale {
    /// Four bytes, f32.
    pub slice: Slice,
    /// What turns the stored number into a multiplier.
    pub rule: GlobalScaleRule,
}

/// Conventions for global scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GlobalScaleRule {
    /// compressed-tensors `weight_global_scale`: multiplier = 1 / stored.
    Divide,
    /// mlx-lm `.global_scale`: multiplier = stored / 2688 (= 448 · 6).
    MlxOver2688,
}

/// A one-dimensional float tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct VectorSource {
    /// Checkpoint name, for messages.
    pub name: String,
    /// Elements.
    pub len: usize,
    /// Element type.
    pub float: FloatType,
    /// The elements.
    pub slice: Slice,
}

/// The three matrices of a SwiGLU: `down(silu(gate x) * up x)`.
#[derive(Clone, Debug, PartialEq)]
pub struct SwigluSource {
    /// `[intermediate, hidden]`.
    pub gate: MatrixSource,
    /// `[intermediate, hidden]`.
    pub up: MatrixSource,
    /// `[hidden, intermediate]`.
    pub down: MatrixSource,
}

/// A whole model's parts.
#[derive(Clone, Debug)]
pub struct Inventory {
    /// `[vocab, hidden]`.
    pub embed: MatrixSource,
    /// `[hidden]`.
    pub final_norm: VectorSource,
    /// `[vocab, hidden]`; `None` when tied to the embedding.
    pub head: Option<MatrixSource>,
    /// One per decoder layer.
    pub layers: Vec<LayerSource>,
}

impl Inventory {
    /// A sparse layer's parts; `None` for dense and unknown layers.
    pub fn sparse(&self, layer: LayerId) -> Option<&SparseSource> {
        match &self.layers.get(usize::from(layer.0))?.mlp {
            MlpSource::Sparse(sparse) => Some(sparse),
            MlpSource::Dense(_) => None,
        }
    }
}

/// One decoder layer's parts.
#[derive(Clone, Debug)]
pub struct LayerSource {
    /// `[hidden]`.
    pub input_norm: VectorSource,
    /// `[hidden]`.
    pub post_attention_norm: VectorSource,
    /// Attention.
    pub attention: AttentionSource,
    /// What follows attention.
    pub mlp: MlpSource,
}

/// Attention's parts.
#[derive(Clone, Debug)]
pub struct AttentionSource {
    /// `[heads * head_dim, hidden]`.
    pub q: MatrixSource,
    /// `[kv_heads * head_dim, hidden]`.
    pub k: MatrixSource,
    /// `[kv_heads * head_dim, hidden]`.
    pub v: MatrixSource,
    /// `[hidden, heads * head_dim]`.
    pub o: MatrixSource,
    /// `[heads or heads * head_dim, hidden]`; `None` without gating.
    pub g: Option<MatrixSource>,
    /// `[head_dim]`.
    pub q_norm: VectorSource,
    /// `[head_dim]`.
    pub k_norm: VectorSource,
    /// `[heads]`, on sliding layers of checkpoints with sinks.
    pub sink: Option<VectorSource>,
}

/// MLP or experts.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "one per layer; a box would only hide it")]
pub enum MlpSource {
    /// One SwiGLU.
    Dense(SwigluSource),
    /// Router and experts.
    Sparse(SparseSource),
}

/// A sparse layer's parts.
#[derive(Clone, Debug)]
pub struct SparseSource {
    /// `[num_experts, hidden]`.
    pub router: MatrixSource,
    /// `[num_experts]`, added to the scores for selection only.
    pub correction_bias: Option<VectorSource>,
    /// The always-on expert.
    pub shared_expert: Option<SwigluSource>,
    /// Routed experts, ascending; each a byte range of its own wherever it lies.
    pub experts: Vec<SwigluSource>,
}
