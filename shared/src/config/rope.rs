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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{RopeConfig, RopeScaling};
    use crate::config::{ConfigOptions, ModelConfig};

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-6 * b.abs()
    }

    #[test]
    fn published_configurations_give_the_published_frequencies() {
        let goldens: Value = serde_json::from_str(include_str!("goldens/rope.json")).unwrap();
        for case in goldens["cases"].as_array().unwrap() {
            let config = json!({
                "model_type": "laguna", "vocab_size": 8, "hidden_size": 64, "num_hidden_layers": 1,
                "num_attention_heads": 8, "layer_types": [case["layer_type"]],
                "rope_parameters": case["rope_parameters"]
            });
            let config = ModelConfig::from_json(&config.to_string(), &ConfigOptions::default()).unwrap();
            let rope = &config.layers[0].rope;
            let expected: Vec<_> =
                case["inv_freq"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
            let found = rope.inverse_frequencies();
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                assert!(close(*found, *expected), "{}: {found} is not {expected}", case["config"]);
            }
            assert!(close(rope.attention_factor, case["attention_scaling"].as_f64().unwrap()));
        }
    }

    #[test]
    fn linear_divides_every_frequency() {
        let plain = RopeConfig { rotary_dims: 8, ..RopeConfig::default() };
        let linear = RopeConfig { scaling: RopeScaling::Linear { factor: 4.0 }, ..plain.clone() };
        let pairs = plain.inverse_frequencies().into_iter().zip(linear.inverse_frequencies());
        assert!(pairs.into_iter().all(|(plain, linear)| plain / 4.0 == linear));
        assert_eq!(plain.inverse_frequencies(), [1.0, 0.1, 0.01, 0.001]);
    }

    #[test]
    fn yarn_ramp_of_no_width_is_a_step() {
        // Both bounds fall on pair 0: every later pair is interpolated, none divides by zero.
        let rope = RopeConfig {
            theta: 10_000.0,
            rotary_dims: 8,
            scaling: RopeScaling::Yarn {
                factor: 2.0,
                original_max_position_embeddings: 4.0,
                beta_fast: 32.0,
                beta_slow: 1.0,
            },
            attention_factor: 1.0,
        };
        assert_eq!(rope.inverse_frequencies(), [1.0, 0.05, 0.005, 0.0005]);
        let none = RopeConfig { rotary_dims: 0, ..rope };
        assert!(none.inverse_frequencies().is_empty());
    }
}
