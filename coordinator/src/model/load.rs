//! Fills the trunk from a checkpoint: reads only its own tensors, one at a time.

use std::sync::Arc;

use laguna_shared::compute::ActivationType;
use laguna_shared::compute::cpu::CpuMatrix;
use laguna_shared::compute::mlx::array::{activation_dtype, float_dtype, from_bytes};
use laguna_shared::config::{LayerConfig, ModelConfig};
use laguna_shared::ids::LayerId;
use laguna_shared::weights::decode::decode_floats;
use laguna_shared::weights::inventory::{
    AttentionSource, Inventory, LayerSource, MatrixFormat, MatrixSource, MlpSource, SparseSource,
    SwigluSource, VectorSource,
};
use laguna_shared::weights::{Checkpoint, read_matrix};
use mlx_rs::{Array, Dtype};

use super::attention::Attention;
use super::dense::Swiglu;
use super::embed::Embedding;
use super::head::Head;
use super::layer::{Layer, Mlp};
use super::linear::{Linear, TrunkMath};
use super::moe::SparseMlp;
use super::norm::RmsNorm;
use super::quantize::TrunkBits;
use super::rope::Rope;
use super::router::{Router, Selection};
use super::{Model, ModelLoadError};

/// How a trunk is held.
#[derive(Clone, Debug)]
pub struct TrunkSettings {
    /// Element type of the residual stream.
    pub activation: ActivationType,
    /// Bits of the products' weights.
    pub bits: TrunkBits,
    /// Where the products are computed.
    pub math: TrunkMath,
}

impl Model {
    /// Loads the trunk. `progress` is told the bytes of each tensor read.
    ///
    /// # Errors
    /// If a tensor cannot be read, or MLX is out of memory.
    pub fn load(
        checkpoint: &Checkpoint,
        inventory: &Inventory,
        config: &ModelConfig,
        settings: &TrunkSettings,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, ModelLoadError> {
        let activation = settings.activation;
        let dtype = activation_dtype(activation);
        let mut loader = Loader { checkpoint, config, settings, dtype, progress };
        let embed = Embedding { weight: loader.stored(&inventory.embed)? };
        let layers = inventory
            .layers
            .iter()
            .zip(&config.layers)
            .zip(0..)
            .map(|((source, layer), n)| loader.layer(LayerId(n), source, layer))
            .collect::<Result<_, _>>()?;
        let head = Head {
            norm: loader.norm(&inventory.final_norm)?,
            weight: inventory.head.as_ref().map(|h| loader.linear(h)).transpose()?,
        };
        Ok(Self { config: config.clone(), activation, embed, layers, head })
    }
}

struct Loader<'a> {
    checkpoint: &'a Checkpoint,
    config: &'a ModelConfig,
    settings: &'a TrunkSettings,
    dtype: Dtype,
    progress: &'a mut dyn FnMut(u64),
}

impl Loader<'_> {
    fn layer(
        &mut self,
        id: LayerId,
        source: &LayerSource,
        config: &LayerConfig,
    ) -> Result<Layer, ModelLoadError> {
        Ok(Layer {
            input_norm: self.norm(&source.input_norm)?,
            attention: self.attention(&source.attention, config)?,
            post_attention_norm: self.norm(&source.post_attention_norm)?,
            mlp: match &source.mlp {
                MlpSource::Dense(swiglu) => Mlp::Dense(self.swiglu(swiglu)?),
                MlpSource::Sparse(sparse) => Mlp::Sparse(Box::new(self.sparse(id, sparse)?)),
            },
        })
    }

    fn attention(
        &mut self,
        source: &AttentionSource,
        layer: &LayerConfig,
    ) -> Result<Attention, ModelLoadError> {
        Ok(Attention {
            q: self.linear(&source.q)?,
            k: self.linear(&source.k)?,
            v: self.linear(&source.v)?,
            o: self.linear(&source.o)?,
            gate: source.g.as_ref().map(|g| self.linear(g)).transpose()?,
            q_norm: self.norm(&source.q_norm)?,
            k_norm: self.norm(&source.k_norm)?,
            rope: Rope::new(&layer.rope, self.config.head_dim, self.dtype, self.settings.math.clone())?,
            sinks: source.sink.as_ref().map(|s| self.vector(s)).transpose()?,
            heads: layer.num_attention_heads,
            kv_heads: self.config.num_key_value_heads,
            head_dim: self.config.head_dim,
        })
    }

    fn sparse(&mut self, layer: LayerId, source: &SparseSource) -> Result<SparseMlp, ModelLoadError> {
        let bias = match &source.correction_bias {
            Some(bias) => self.floats(bias)?,
            None => vec![0.0; self.config.num_experts],
        };
        Ok(SparseMlp {
            layer,
            router: Router {
                linear: self.stored(&source.router)?,
                rules: Selection { config: self.config.router, bias, top_k: self.config.num_experts_per_tok },
            },
            shared_expert: source.shared_expert.as_ref().map(|s| self.swiglu(s)).transpose()?,
            routed_scaling: self.config.routed_scaling_factor,
            activation: self.settings.activation,
        })
    }

    fn swiglu(&mut self, source: &SwigluSource) -> Result<Swiglu, ModelLoadError> {
        Ok(Swiglu {
            gate: self.linear(&source.gate)?,
            up: self.linear(&source.up)?,
            down: self.linear(&source.down)?,
        })
    }

    /// A product, in the bits that were asked for.
    fn linear(&mut self, source: &MatrixSource) -> Result<Linear, ModelLoadError> {
        let plain = matches!(source.format, MatrixFormat::Plain(_));
        if self.settings.bits == TrunkBits::Stored || !plain {
            return self.stored(source);
        }
        let raw = read_matrix(self.checkpoint, source)?;
        (self.progress)(raw.bytes());
        let raw = self.settings.bits.apply(&raw, self.dtype).unwrap_or(raw);
        Ok(Linear::new(raw, self.dtype, &self.settings.math)?)
    }

    /// A product, as the checkpoint has it.
    fn stored(&mut self, source: &MatrixSource) -> Result<Linear, ModelLoadError> {
        if let TrunkMath::Cpu(pool) = &self.settings.math {
            let matrix = CpuMatrix::load(self.checkpoint, source, self.progress)?;
            return Ok(Linear::mapped(matrix, Arc::clone(pool), self.dtype));
        }
        let raw = read_matrix(self.checkpoint, source)?;
        let bytes = raw.bytes();
        let linear = Linear::new(raw, self.dtype, &self.settings.math)?;
        (self.progress)(bytes);
        Ok(linear)
    }

    fn norm(&mut self, source: &VectorSource) -> Result<RmsNorm, ModelLoadError> {
        Ok(RmsNorm {
            weight: self.vector(source)?,
            eps: self.config.rms_norm_eps,
            math: self.settings.math.clone(),
        })
    }

    fn vector(&mut self, source: &VectorSource) -> Result<Array, ModelLoadError> {
        let bytes = self.checkpoint.read_vec(source.slice)?;
        (self.progress)(bytes.len() as u64);
        Ok(from_bytes(&bytes, &[source.len], float_dtype(source.float))?.as_dtype(self.dtype)?)
    }

    fn floats(&mut self, source: &VectorSource) -> Result<Vec<f32>, ModelLoadError> {
        let bytes = self.checkpoint.read_vec(source.slice)?;
        (self.progress)(bytes.len() as u64);
        let mut floats = vec![0.0; source.len];
        decode_floats(source.float, &bytes, &mut floats);
        Ok(floats)
    }
}
