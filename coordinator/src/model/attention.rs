//! Grouped-query attention with QK-RMSNorm, partial rotary, a sliding window on some layers, optional sinks, and a
//! softplus gate on the output.

use laguna_shared::compute::cpu::{self, attention::Visible};
use laguna_shared::compute::mlx::array::{heads, slice_of};
use mlx_rs::error::Exception;
use mlx_rs::fast::ScaledDotProductAttentionMask;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::utils::IntoOption;
use mlx_rs::{Array, Dtype, fast, ops, transforms};

use super::Segment;
use super::cache::{Attended, SequenceCache};
use super::linear::{Linear, TrunkMath};
use super::micro_batch::Piece;
use super::norm::RmsNorm;
use super::pointwise;
use super::rope::Rope;

/// One layer's attention.
#[derive(Debug)]
pub struct Attention {
    pub(super) q: Linear,
    pub(super) k: Linear,
    pub(super) v: Linear,
    pub(super) o: Linear,
    /// `g_proj`, to a factor for each head or each channel; `None` without gating.
    pub(super) gate: Option<Linear>,
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
    /// `x` `[rows, hidden]`, normed, of these pieces of segments → `[rows, hidden]`.
    pub(super) fn forward(
        &self,
        layer: usize,
        x: &Array,
        pieces: &[Piece],
        segments: &mut [Segment<'_>],
    ) -> Result<Array, Exception> {
        let rows = x.dim(0);
        let (heads, kv_heads, head_dim) = (self.heads as i32, self.kv_heads as i32, self.head_dim as i32);
        let (q, k, v, gate) = self.project(x)?;
        let q = self.q_norm.forward(&q.reshape(&[rows, heads, head_dim])?)?;
        let k = self.k_norm.forward(&k.reshape(&[rows, kv_heads, head_dim])?)?;
        let v = v.reshape(&[rows, kv_heads, head_dim])?;

        let mut outputs = Vec::with_capacity(pieces.len());
        let mut first = 0;
        for piece in pieces {
            let end = first + piece.ids.len() as i32;
            let whole = first == 0 && end == rows;
            let of = |a: &Array| if whole { Ok(a.clone()) } else { a.try_index((first..end, .., ..)) };
            let cache = &mut *segments[piece.segment].cache;
            let at = cache.len() + piece.ids.start;
            outputs.push(self.attend(layer, at, &of(&q)?, &of(&k)?, &of(&v)?, cache)?);
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

    /// One sequence, from position `at` on: `[tokens, heads, head_dim]` each → `[tokens, heads, head_dim]`.
    fn attend(
        &self,
        layer: usize,
        at: usize,
        q: &Array,
        k: &Array,
        v: &Array,
        cache: &mut SequenceCache,
    ) -> Result<Array, Exception> {
        let q = self.rope.forward(q, at)?;
        let k = self.rope.forward(k, at)?;
        let v = v.transpose_axes(&[1, 0, 2])?.expand_dims(0)?;
        let Attended { keys, values, visible } = cache.extend(layer, at, k, v)?;
        let scale = 1.0 / (self.head_dim as f32).sqrt();
        if let TrunkMath::Cpu(pool) = self.q.math()
            && q.dtype() == Dtype::Float32
            && cpu::Attention::fits(self.head_dim)
        {
            return self.on_cpu(&pool, &q, &keys, &values, visible, scale);
        }
        let array;
        let mask: Option<ScaledDotProductAttentionMask<'_>> = match visible {
            Visible::All => None,
            Visible::Causal => Some(ScaledDotProductAttentionMask::Causal),
            Visible::Window(window) => {
                array = window_mask(keys.dim(2) as usize - q.dim(2) as usize, q.dim(2) as usize, window)?;
                (&array).into_option()
            }
        };
        let out = fast::scaled_dot_product_attention(&q, &keys, &values, scale, mask, self.sinks.as_ref())?;
        out.squeeze_axes(&[0])?.transpose_axes(&[1, 0, 2])
    }

    /// The same, here and now. MLX's own on a CPU holds all scores at once, and multiplies at 4 GFLOP/s.
    fn on_cpu(
        &self,
        pool: &cpu::Pool,
        q: &Array,
        keys: &Array,
        values: &Array,
        visible: Visible,
        scale: f32,
    ) -> Result<Array, Exception> {
        let sinks =
            self.sinks.as_ref().map(|sinks| sinks.as_dtype(Dtype::Float32)?.contiguous()).transpose()?;
        transforms::eval([q, keys, values].into_iter().chain(&sinks))?;
        let attention = cpu::Attention {
            queries: heads(q)?,
            scale,
            keys: heads(keys)?,
            values: heads(values)?,
            visible,
            sinks: sinks.as_ref().map(slice_of).transpose()?,
        };
        let mut out = vec![0.0; q.size()];
        attention.run(cpu::Isa::best(), pool, &mut out);
        Ok(Array::from_slice(&out, &[q.dim(2), q.dim(1), q.dim(3)]))
    }

    /// `out · softplus(gate)`, one factor a head or one a channel. `gate` is `g_proj x`.
    pub(super) fn gated(&self, gate: Option<&Array>, out: Array) -> Result<Array, Exception> {
        gate.map_or(Ok(out.clone()), |gate| pointwise::gate_heads(&self.q.math(), &out, gate))
    }
}

/// `[tokens, before + tokens]`: query i sees key j where `0 <= (before + i) - j < window`.
fn window_mask(before: usize, tokens: usize, window: usize) -> Result<Array, Exception> {
    let keys = before + tokens;
    let query = Array::arange::<_, i32>(before as i32, keys as i32, None)?.expand_dims(1)?;
    let key = Array::arange::<_, i32>(None, keys as i32, None)?.expand_dims(0)?;
    let distance = query.subtract(key)?;
    distance.ge(Array::from_int(0))?.logical_and(distance.lt(Array::from_int(window as i32))?)
}
