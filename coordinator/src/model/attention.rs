//! Grouped-query attention with QK-RMSNorm, partial rotary, a sliding window on some layers, optional sinks, and a
//! softplus gate on the output.

use laguna_shared::config::Gating;
use mlx_rs::error::Exception;
use mlx_rs::fast::ScaledDotProductAttentionMask;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::utils::IntoOption;
use mlx_rs::{Array, Dtype, fast, ops};

use super::Segment;
use super::cache::{Attended, Mask, SequenceCache};
use super::linear::Linear;
use super::norm::RmsNorm;
use super::rope::Rope;

/// One layer's attention.
#[derive(Debug)]
pub struct Attention {
    pub(super) q: Linear,
    pub(super) k: Linear,
    pub(super) v: Linear,
    pub(super) o: Linear,
    /// `g_proj`; `None` without gating.
    pub(super) gate: Option<Linear>,
    pub(super) gating: Gating,
    pub(super) q_norm: RmsNorm,
    pub(super) k_norm: RmsNorm,
    pub(super) rope: Rope,
    /// One logit per head that takes part in the softmax and has no value, activation type.
    pub(super) sinks: Option<Array>,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
}

impl Attention {
    /// `x` `[rows, hidden]`, normed → `[rows, hidden]`.
    pub(super) fn forward(
        &self,
        layer: usize,
        x: &Array,
        segments: &mut [Segment<'_>],
    ) -> Result<Array, Exception> {
        let rows = x.dim(0);
        let (heads, kv_heads, head_dim) = (self.heads as i32, self.kv_heads as i32, self.head_dim as i32);
        let (q, k, v, gate) = self.project(x)?;
        let q = self.q_norm.forward(&q.reshape(&[rows, heads, head_dim])?)?;
        let k = self.k_norm.forward(&k.reshape(&[rows, kv_heads, head_dim])?)?;
        let v = v.reshape(&[rows, kv_heads, head_dim])?;

        let mut outputs = Vec::with_capacity(segments.len());
        let mut first = 0;
        for segment in segments.iter_mut() {
            let end = first + segment.ids.len() as i32;
            let whole = first == 0 && end == rows;
            let of = |a: &Array| if whole { Ok(a.clone()) } else { a.try_index((first..end, .., ..)) };
            outputs.push(self.attend(layer, &of(&q)?, &of(&k)?, &of(&v)?, segment.cache)?);
            first = end;
        }
        let out = match outputs.as_slice() {
            [one] => one.clone(),
            many => ops::concatenate(many, 0)?,
        };
        let out = self.gated(gate.as_ref(), out)?.reshape(&[rows, heads * head_dim])?;
        self.o.forward(&out)
    }

    /// Everything that is multiplied with `x`: q, k, v, and the gate if there is one.
    fn project(&self, x: &Array) -> Result<(Array, Array, Array, Option<Array>), Exception> {
        let Self { q, k, v, gate, .. } = self;
        Ok(match gate {
            Some(gate) => {
                let [q, k, v, gate] = Linear::forward_all([q, k, v, gate], x)?;
                (q, k, v, Some(gate))
            }
            None => {
                let [q, k, v] = Linear::forward_all([q, k, v], x)?;
                (q, k, v, None)
            }
        })
    }

    /// One sequence: `[tokens, heads, head_dim]` each → `[tokens, heads, head_dim]`.
    fn attend(
        &self,
        layer: usize,
        q: &Array,
        k: &Array,
        v: &Array,
        cache: &mut SequenceCache,
    ) -> Result<Array, Exception> {
        let by_head = |a: &Array| a.transpose_axes(&[1, 0, 2])?.expand_dims(0);
        let offset = cache.len();
        let q = self.rope.forward(&by_head(q)?, offset)?;
        let k = self.rope.forward(&by_head(k)?, offset)?;
        let Attended { keys, values, mask } = cache.extend(layer, k, by_head(v)?)?;
        let mask: Option<ScaledDotProductAttentionMask<'_>> = match &mask {
            Mask::All => None,
            Mask::Causal => Some(ScaledDotProductAttentionMask::Causal),
            Mask::Array(mask) => mask.into_option(),
        };
        let scale = 1.0 / (self.head_dim as f32).sqrt();
        let out = fast::scaled_dot_product_attention(&q, &keys, &values, scale, mask, self.sinks.as_ref())?;
        out.squeeze_axes(&[0])?.transpose_axes(&[1, 0, 2])
    }

    /// `out · softplus(gate)`, the softplus in f32; one factor a head or one a channel. `gate` is `g_proj x`.
    pub(super) fn gated(&self, gate: Option<&Array>, out: Array) -> Result<Array, Exception> {
        let Some(gate) = gate else { return Ok(out) };
        let width = match self.gating {
            Gating::PerElement => self.head_dim as i32,
            Gating::PerHead | Gating::None => 1,
        };
        let gate = softplus(gate)?.as_dtype(out.dtype())?;
        out.multiply(gate.reshape(&[out.dim(0), self.heads as i32, width])?)
    }
}

/// `ln(1 + exp(x))`, f32.
pub(super) fn softplus(x: &Array) -> Result<Array, Exception> {
    ops::logaddexp(x.as_dtype(Dtype::Float32)?, Array::from_f32(0.0))
}
