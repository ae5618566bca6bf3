//! Rotary embedding: half-split pairs of the leading channels, YaRN's attention factor on those channels only.

use laguna_shared::config::RopeConfig;
use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, fast};

/// One layer's rotary embedding, as MLX takes it.
#[derive(Debug)]
pub struct Rope {
    dims: i32,
    /// Periods (reciprocal frequencies), `[dims / 2]`, f32: MLX divides positions by them.
    periods: Array,
    /// `[head_dim]` in the activation type: the attention factor on rotated channels, 1 on the others. In the
    /// activation type, because an f32 factor would silently make the residual stream f32. `None` where it is 1.
    factor: Option<Array>,
}

impl Rope {
    /// Prepares the tables of `config` for heads of `head_dim` channels.
    ///
    /// # Errors
    /// If MLX is out of memory.
    pub fn new(config: &RopeConfig, head_dim: usize, activation: Dtype) -> Result<Self, Exception> {
        let periods: Vec<f32> = config.inverse_frequencies().iter().map(|f| (1.0 / f) as f32).collect();
        let factor = (config.attention_factor != 1.0)
            .then(|| {
                let mut channels = vec![1.0_f32; head_dim];
                channels[..config.rotary_dims].fill(config.attention_factor as f32);
                Array::from_slice(&channels, &[head_dim as i32]).as_dtype(activation)
            })
            .transpose()?;
        let dims = config.rotary_dims as i32;
        Ok(Self { dims, periods: Array::from_slice(&periods, &[periods.len() as i32]), factor })
    }

    /// Rotates `x` `[1, heads, tokens, head_dim]`, whose first token has position `offset`.
    ///
    /// # Errors
    /// If MLX refuses the shapes.
    pub fn forward(&self, x: &Array, offset: usize) -> Result<Array, Exception> {
        let offset = i32::try_from(offset).map_err(|e| Exception::custom(e.to_string()))?;
        let rotate = |x: &Array| fast::rope(x, self.dims, false, None, 1.0, offset, &self.periods);
        match &self.factor {
            Some(factor) => rotate(&x.multiply(factor)?),
            None => rotate(x),
        }
    }
}
