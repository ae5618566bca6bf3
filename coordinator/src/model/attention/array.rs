//! Attention by MLX, as part of a graph.

use laguna_shared::compute::cpu::attention::Visible;
use mlx_rs::error::Exception;
use mlx_rs::fast::ScaledDotProductAttentionMask;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::utils::IntoOption;
use mlx_rs::{Array, fast, ops};

use super::Attention;
use crate::model::Segment;
use crate::model::cache::array::{ArrayCache, Attended};
use crate::model::micro_batch::Piece;

impl Attention {
    /// q, k and v of some rows, `[rows, heads · head_dim]` → `[rows, heads, head_dim]`, before the gate.
    pub(super) fn attend_in_mlx(
        &self,
        layer: usize,
        [q, k, v]: [&Array; 3],
        pieces: &[Piece],
        segments: &mut [Segment<'_>],
    ) -> Result<Array, Exception> {
        let rows = q.dim(0);
        let (heads, kv_heads, head_dim) = (self.heads as i32, self.kv_heads as i32, self.head_dim as i32);
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
            outputs.push(self.attend(at, &of(&q)?, &of(&k)?, &of(&v)?, cache.array(layer)?)?);
            first = end;
        }
        match outputs.as_slice() {
            [one] => Ok(one.clone()),
            many => ops::concatenate(many, 0),
        }
    }

    /// One sequence, from position `at` on: `[tokens, heads, head_dim]` each → `[tokens, heads, head_dim]`.
    fn attend(
        &self,
        at: usize,
        q: &Array,
        k: &Array,
        v: &Array,
        cache: &mut ArrayCache,
    ) -> Result<Array, Exception> {
        let q = self.rope.forward(q, at)?;
        let k = self.rope.forward(k, at)?;
        let v = v.transpose_axes(&[1, 0, 2])?.expand_dims(0)?;
        let Attended { keys, values, visible } = cache.extend(at, k, v)?;
        let scale = 1.0 / (self.head_dim as f32).sqrt();
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
}

/// `[tokens, before + tokens]`: query i sees key j where `0 <= (before + i) - j < window`.
fn window_mask(before: usize, tokens: usize, window: usize) -> Result<Array, Exception> {
    let keys = before + tokens;
    let query = Array::arange::<_, i32>(before as i32, keys as i32, None)?.expand_dims(1)?;
    let key = Array::arange::<_, i32>(None, keys as i32, None)?.expand_dims(0)?;
    let distance = query.subtract(key)?;
    distance.ge(Array::from_int(0))?.logical_and(distance.lt(Array::from_int(window as i32))?)
}
