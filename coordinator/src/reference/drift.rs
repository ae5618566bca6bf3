//! How far one model's predictions are from another's, over the positions of a prompt.

use serde::Serialize;

use super::compare::{largest, max_difference};
use crate::engine::sampler::argmax;

/// What a change of the weights does to the predictions of one prompt.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Drift {
    /// Positions compared.
    pub positions: usize,
    /// Largest |Δlogit|.
    pub logit_max: f32,
    /// Mean over the positions of KL(before ‖ after), in nats.
    pub kl_mean: f64,
    /// Largest KL(before ‖ after) of a position, in nats.
    pub kl_max: f64,
    /// Positions with the same most likely token.
    pub greedy_equal: usize,
}

impl Drift {
    /// From `before` to `after`, `[positions, vocab]` each.
    pub fn of(before: &[f32], after: &[f32], vocab: usize) -> Self {
        let mut drift = Self { positions: 0, logit_max: 0.0, kl_mean: 0.0, kl_max: 0.0, greedy_equal: 0 };
        for (before, after) in before.chunks_exact(vocab).zip(after.chunks_exact(vocab)) {
            let kl = divergence(before, after);
            drift.positions += 1;
            drift.kl_mean += kl;
            drift.kl_max = if kl.is_nan() { kl } else { drift.kl_max.max(kl) };
            drift.greedy_equal += usize::from(argmax(before) == argmax(after));
            drift.logit_max = largest(drift.logit_max, max_difference(before, after));
        }
        drift.kl_mean /= drift.positions.max(1) as f64;
        drift
    }
}

/// `Σ p ln(p / q)` with p = softmax(before) and q = softmax(after), in f64.
fn divergence(before: &[f32], after: &[f32]) -> f64 {
    let (p, q) = (log_partition(before), log_partition(after));
    let terms = before.iter().zip(after).map(|(&b, &a)| {
        let (log_p, log_q) = (f64::from(b) - p, f64::from(a) - q);
        if log_p == f64::NEG_INFINITY { 0.0 } else { log_p.exp() * (log_p - log_q) }
    });
    // Rounding may leave a sliver below zero.
    let sum: f64 = terms.sum();
    if sum < 0.0 { 0.0 } else { sum }
}

/// `ln Σ exp(z)`.
fn log_partition(logits: &[f32]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&z| f64::from(z - max).exp()).sum();
    f64::from(max) + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_and_shifted_ones_do_not_diverge() {
        let before = [1.0, 2.0, -3.0, 0.5, 0.0, 7.0];
        let same = Drift::of(&before, &before, 3);
        assert_eq!(same, Drift { positions: 2, logit_max: 0.0, kl_mean: 0.0, kl_max: 0.0, greedy_equal: 2 });
        let shifted = Drift::of(&before, &before.map(|z| z + 4.0), 3);
        assert_eq!(shifted.logit_max, 4.0);
        assert!(shifted.kl_max < 1e-12, "{shifted:?}");
    }

    #[test]
    fn divergence_is_that_of_the_distributions() {
        // p = (1/2, 1/2), q = (4/5, 1/5): ½ ln(5/8) + ½ ln(5/2) = 0.22314.
        let drift = Drift::of(&[0.0, 0.0], &[4.0_f32.ln(), 0.0], 2);
        assert!((drift.kl_mean - 0.223_143_551).abs() < 1e-7, "{drift:?}");
        assert_eq!(drift.greedy_equal, 1);
        assert!(Drift::of(&[0.0, 0.0], &[f32::NAN, 0.0], 2).logit_max.is_nan());
    }
}
