//! Rotary embedding: half-split pairs of the leading channels, YaRN's attention factor on those channels only.

use laguna_shared::config::RopeConfig;
use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, fast};

use super::linear::TrunkMath;
use super::pointwise;

/// One layer's rotary embedding.
#[derive(Debug)]
pub struct Rope {
    dims: i32,
    /// Periods (reciprocal frequencies), `[dims / 2]`, f32: MLX divides positions by them.
    periods: Array,
    /// `[head_dim]` in the activation type: the attention factor on rotated channels, 1 on the others. In the
    /// activation type, because an f32 factor would silently make the residual stream f32. `None` where it is 1.
    factor: Option<Array>,
    /// Radians a position, `[dims / 2]`.
    frequencies: Vec<f64>,
    /// On rotated channels.
    attention_factor: f64,
    math: TrunkMath,
}

impl Rope {
    /// Prepares the tables of `config` for heads of `head_dim` channels.
    ///
    /// # Errors
    /// If MLX is out of memory.
    pub fn new(
        config: &RopeConfig,
        head_dim: usize,
        activation: Dtype,
        math: TrunkMath,
    ) -> Result<Self, Exception> {
        let frequencies = config.inverse_frequencies();
        let periods: Vec<f32> = frequencies.iter().map(|f| (1.0 / f) as f32).collect();
        let factor = (config.attention_factor != 1.0)
            .then(|| {
                let mut channels = vec![1.0_f32; head_dim];
                channels[..config.rotary_dims].fill(config.attention_factor as f32);
                Array::from_slice(&channels, &[head_dim as i32]).as_dtype(activation)
            })
            .transpose()?;
        let dims = config.rotary_dims as i32;
        let periods = Array::from_slice(&periods, &[periods.len() as i32]);
        let attention_factor = config.attention_factor;
        Ok(Self { dims, periods, factor, frequencies, attention_factor, math })
    }

    /// Rotates `x` `[tokens, heads, head_dim]`, whose first token has position `offset` → `[1, heads, tokens, head_dim]`.
    ///
    /// # Errors
    /// If MLX refuses the shapes.
    pub fn forward(&self, x: &Array, offset: usize) -> Result<Array, Exception> {
        if let Some(elements) = pointwise::elements(&self.math, [x])? {
            let [elements] = elements;
            let (heads, head_dim) = (x.dim(1) as usize, x.dim(2) as usize);
            let mut out = vec![0.0; elements.len()];
            let angles = self.angles(offset, x.dim(0) as usize);
            self.rotate(elements, heads, head_dim, &angles, &mut out);
            return Ok(Array::from_slice(&out, &[1, x.dim(1), x.dim(0), x.dim(2)]));
        }
        let x = x.transpose_axes(&[1, 0, 2])?.expand_dims(0)?;
        let offset = i32::try_from(offset).map_err(|e| Exception::custom(e.to_string()))?;
        let rotate = |x: &Array| fast::rope(x, self.dims, false, None, 1.0, offset, &self.periods);
        match &self.factor {
            Some(factor) => rotate(&x.multiply(factor)?),
            None => rotate(&x),
        }
    }

    /// Cosines and sines of the tokens from position `offset` on, times the attention factor: `[tokens, 2, dims / 2]`. The
    /// angles are f64: in f32 those of far positions would be off by what the position rounds to.
    pub(super) fn angles(&self, offset: usize, tokens: usize) -> Vec<f32> {
        let half = self.frequencies.len();
        let mut angles = vec![0.0; tokens * 2 * half];
        for (token, angles) in angles.chunks_exact_mut((2 * half).max(1)).enumerate() {
            let position = (offset + token) as f64;
            let (cos, sin) = angles.split_at_mut(half);
            for ((cos, sin), frequency) in cos.iter_mut().zip(sin).zip(&self.frequencies) {
                let (s, c) = (position * frequency).sin_cos();
                (*cos, *sin) = ((c * self.attention_factor) as f32, (s * self.attention_factor) as f32);
            }
        }
        angles
    }

    /// Rotates `[tokens, heads, head_dim]` to `[heads, tokens, head_dim]`, f32.
    pub(super) fn rotate(&self, x: &[f32], heads: usize, head_dim: usize, angles: &[f32], out: &mut [f32]) {
        let half = self.frequencies.len();
        let tokens = x.len() / (heads * head_dim).max(1);
        for (token, x) in x.chunks_exact(heads * head_dim).enumerate() {
            let (cos, sin) = angles[token * 2 * half..][..2 * half].split_at(half);
            for (head, x) in x.chunks_exact(head_dim).enumerate() {
                let out = &mut out[(head * tokens + token) * head_dim..][..head_dim];
                let (rotated, rest) = x.split_at(2 * half);
                let (first, second) = rotated.split_at(half);
                let (to, kept) = out.split_at_mut(2 * half);
                let (to_first, to_second) = to.split_at_mut(half);
                for n in 0..half {
                    to_first[n] = first[n] * cos[n] - second[n] * sin[n];
                    to_second[n] = first[n] * sin[n] + second[n] * cos[n];
                }
                kept.copy_from_slice(rest);
            }
        }
    }
}
