//! `--trunk-bits`: a plain trunk in affine codes, chosen by whoever runs the model, not by the checkpoint.
//!
//! Three quarters of the bytes that a token reads are the trunk's, so fewer bits make decode faster, at a price that
//! `verify --trunk-bits` measures. The router, the norms, the rotary tables and the embedding look-up stay as stored.

use laguna_shared::weights::RawMatrix;
use laguna_shared::weights::affine::quantize;
use laguna_shared::weights::inventory::{FloatType, MatrixFormat};
use mlx_rs::Dtype;
use mlx_rs::error::Exception;

use super::Model;
use super::layer::{Layer, Mlp};
use super::linear::Linear;

/// Bits of a weight of the trunk's products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrunkBits {
    /// As the checkpoint has it.
    #[default]
    Stored,
    /// Affine codes of 8 bits, one scale and bias for 64 columns.
    Eight,
    /// Affine codes of 4 bits, one scale and bias for 64 columns: 4.5 bits a weight, as NVFP4 has.
    Four,
}

impl TrunkBits {
    /// Bits of a code and columns of a group; `None` for [`Stored`](Self::Stored).
    pub const fn format(self) -> Option<(u32, usize)> {
        match self {
            Self::Stored => None,
            Self::Eight => Some((8, 64)),
            Self::Four => Some((4, 64)),
        }
    }
}

impl TrunkBits {
    /// A plain matrix in these bits; `None` where it stays as it is.
    pub(super) fn apply(self, raw: &RawMatrix, activation: Dtype) -> Option<RawMatrix> {
        let (bits, group_size) = self.format()?;
        // MLX computes with scales of the activations' type; of two narrow ones, f16 is the finer.
        let scale_type = if activation == Dtype::Bfloat16 { FloatType::Bf16 } else { FloatType::F16 };
        quantize(raw, bits, group_size, scale_type)
    }
}

impl Linear {
    /// Turns plain weights into affine codes; packed ones stay as they are.
    pub(super) fn quantize(&mut self, bits: TrunkBits) -> Result<(), Exception> {
        if bits == TrunkBits::Stored {
            return Ok(());
        }
        let Some((rows, cols, values)) = self.plain()? else { return Ok(()) };
        let raw = RawMatrix {
            rows,
            cols,
            format: MatrixFormat::Plain(FloatType::F32),
            weight: bytemuck::cast_slice(&values).to_vec(),
            scales: Vec::new(),
            biases: Vec::new(),
            multiplier: 1.0,
        };
        let (activation, math) = (self.activation(), self.math());
        if let Some(packed) = bits.apply(&raw, activation) {
            *self = Self::new(packed, activation, &math)?;
        }
        Ok(())
    }
}

impl Model {
    /// Quantises every product of a loaded trunk but the router's, as loading it with these bits does.
    ///
    /// # Errors
    /// If MLX is out of memory; the model is then of no more use.
    pub fn quantize(&mut self, bits: TrunkBits) -> Result<(), Exception> {
        let head = self.head.weight.iter_mut();
        head.chain(self.layers.iter_mut().flat_map(products)).try_for_each(|linear| linear.quantize(bits))
    }
}

/// The products of a layer that may be quantised.
fn products(layer: &mut Layer) -> impl Iterator<Item = &mut Linear> {
    let attention = &mut layer.attention;
    let swiglu = match &mut layer.mlp {
        Mlp::Dense(swiglu) => Some(swiglu),
        Mlp::Sparse(sparse) => sparse.shared_expert.as_mut(),
    };
    [&mut attention.q, &mut attention.k, &mut attention.v, &mut attention.o]
        .into_iter()
        .chain(&mut attention.gate)
        .chain(swiglu.into_iter().flat_map(|swiglu| [&mut swiglu.gate, &mut swiglu.up, &mut swiglu.down]))
}
