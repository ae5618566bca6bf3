//! Attention on the CPU, here and now, from the products' memory to the next product's: no step of it is MLX's, whose
//! stream would have to be waited for.

use laguna_shared::compute::cpu::{self, Heads, Isa, Pool};
use laguna_shared::compute::mlx::array::slice_of;
use mlx_rs::Array;
use mlx_rs::error::Exception;

use super::Attention;
use crate::model::Segment;
use crate::model::micro_batch::Piece;
use crate::model::norm::RmsNorm;

impl Attention {
    /// q, k and v of some rows, `[rows, heads · head_dim]` f32 → `[rows, heads, head_dim]`, before the gate.
    pub(super) fn attend_on_cpu(
        &self,
        pool: &Pool,
        layer: usize,
        [q, k, v]: [&Array; 3],
        pieces: &[Piece],
        segments: &mut [Segment<'_>],
    ) -> Result<Array, Exception> {
        let (head_dim, isa) = (self.head_dim, Isa::best());
        let (row, kv_row) = (self.heads * head_dim, self.kv_heads * head_dim);
        let (q, k, v) = (normed(&self.q_norm, q)?, normed(&self.k_norm, k)?, slice_of::<f32>(v)?);
        let sinks = self.sinks.as_ref().map(slice_of::<f32>).transpose()?;
        let mut out = vec![0.0; q.len()];
        let (mut rotated_q, mut rotated_k) = (vec![0.0; q.len()], vec![0.0; k.len()]);
        let mut first = 0;
        for piece in pieces {
            let tokens = piece.ids.len();
            let cache = &mut *segments[piece.segment].cache;
            let at = cache.len() + piece.ids.start;
            let [rows, kv_rows] = [row, kv_row].map(|row| first * row..(first + tokens) * row);
            let (to_q, to_k) = (&mut rotated_q[rows.clone()], &mut rotated_k[kv_rows.clone()]);
            let angles = self.rope.angles(at, tokens);
            self.rope.rotate(&q[rows.clone()], self.heads, head_dim, &angles, to_q);
            self.rope.rotate(&k[kv_rows.clone()], self.kv_heads, head_dim, &angles, to_k);
            // Rotation puts one head after the other; values come a token after the other.
            let after = |heads| ([heads, tokens, head_dim], [tokens * head_dim, head_dim]);
            let beside = ([self.kv_heads, tokens, head_dim], [head_dim, kv_row]);
            let (cached, visible) = cache.host(layer)?.extend(
                at,
                heads(to_k, after(self.kv_heads))?,
                heads(&v[kv_rows], beside)?,
            );
            let queries = heads(to_q, after(self.heads))?;
            let scale = 1.0 / (head_dim as f32).sqrt();
            cpu::Attention { queries, scale, cached, visible, sinks }.run(isa, pool, &mut out[rows]);
            let Segment { ids, cache } = &mut segments[piece.segment];
            if piece.ids.end == ids.len() {
                // Here, and not when the pass ends: so only one layer at a time holds a whole pass besides its window.
                cache.host(layer)?.advance(at + tokens);
            }
            first += tokens;
        }
        Ok(Array::from_slice(&out, &[(out.len() / row) as i32, self.heads as i32, head_dim as i32]))
    }
}

/// Every head of every row, normed.
fn normed(norm: &RmsNorm, x: &Array) -> Result<Vec<f32>, Exception> {
    let x = slice_of::<f32>(x)?;
    let mut out = vec![0.0; x.len()];
    cpu::pointwise::rms_norm(Isa::best(), x, slice_of(&norm.weight)?, norm.eps, &mut out);
    Ok(out)
}

fn heads(values: &[f32], (shape, strides): ([usize; 3], [usize; 2])) -> Result<Heads<'_>, Exception> {
    Heads::new(values, shape, strides)
        .ok_or_else(|| Exception::custom(format!("{} values are not {shape:?}", values.len())))
}
