//! Rotary embedding of one layer and its frequencies. Must not know JSON.

use std::f64::consts::PI;

/// Rotary embedding of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the frequencies.
    pub theta: f64,
    /// Leading channels of a head that are rotated (half-split pairs); the others pass through.
    pub rotary_dims: usize,
    /// How the frequencies are stretched for long contexts.
    pub scaling: RopeScaling,
    /// Final factor on cos and sin (YaRN's attention factor); 1.0 without YaRN.
    pub attention_factor: f64,
}

/// Stretching of rotary frequencies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// None.
    Default,
    /// Every frequency divided by `factor`.
    Linear {
        /// Divisor of every frequency.
        factor: f64,
    },
    /// YaRN (arXiv 2309.00071): a ramp between extrapolation and interpolation.
    Yarn {
        /// Divisor of the interpolated frequencies.
        factor: f64,
        /// Context the frequencies were trained for, in tokens.
        original_max_position_embeddings: f64,
        /// Turns above which a frequency is left alone.
        beta_fast: f64,
        /// Turns below which a frequency is divided.
        beta_slow: f64,
    },
}

impl Default for RopeConfig {
    /// Nothing rotated.
    fn default() -> Self {
        Self { theta: 10_000.0, rotary_dims: 0, scaling: RopeScaling::Default, attention_factor: 1.0 }
    }
}

impl RopeConfig {
    /// Angle per position of each rotated pair, `[rotary_dims / 2]`, radians. Pair i is channels i and
    /// i + rotary_dims / 2.
    pub fn inverse_frequencies(&self) -> Vec<f64> {
        let dims = self.rotary_dims as f64;
        let plain = (0..self.rotary_dims / 2).map(|i| self.theta.powf(-2.0 * i as f64 / dims));
        match self.scaling {
            RopeScaling::Default => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|f| f / factor).collect(),
            RopeScaling::Yarn { factor, original_max_position_embeddings, beta_fast, beta_slow } => {
                // The (fractional) pair that turns `turns` times over the original context.
                let pair_of = |turns: f64| {
                    dims * (original_max_position_embeddings / (turns * 2.0 * PI)).ln()
                        / (2.0 * self.theta.ln())
                };
                let low = pair_of(beta_fast).floor().max(0.0);
                let mut high = pair_of(beta_slow).ceil().min(dims - 1.0);
                if low == high {
                    // A ramp of no width would divide by zero.
                    high += 0.001;
                }
                plain
                    .enumerate()
                    .map(|(i, f)| {
                        let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                        f / factor * ramp + f * (1.0 - ramp)
                    })
                    .collect()
            }
        }
    }
}
