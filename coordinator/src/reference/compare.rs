//! The differences between a run and its reference, counted.

use std::num::NonZeroUsize;

use serde::Serialize;

use super::expected::Case;
use super::passes::{Prefill, run_decode, run_prefill};
use crate::experts::Experts;
use crate::model::{ForwardError, Model};

/// Differences of one prompt. A number is absent where the reference has nothing to compare with.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    /// Prompt's name.
    pub prompt: String,
    /// Prompt tokens.
    pub tokens: usize,
    /// Largest |Δlogit| of the prefill in one pass.
    pub prefill_max: Option<f32>,
    /// Mean |Δlogit| of the prefill in one pass.
    pub prefill_mean: Option<f64>,
    /// Largest |Δlogit| of the prefill in chunks.
    pub chunked_max: Option<f32>,
    /// Largest |Δlogit| of cached decode.
    pub decode_max: Option<f32>,
    /// (sparse layer, token) pairs whose expert sets differ, in one pass and in chunks together.
    pub routing_mismatches: Option<usize>,
    /// Largest |Δ| of a router weight where the sets agree.
    pub router_weight_max: Option<f32>,
    /// Greedy ids that differ, of [`Self::greedy_steps`].
    pub greedy_mismatches: usize,
    /// Greedy ids compared.
    pub greedy_steps: usize,
}

impl Difference {
    /// Largest |Δlogit| of any pass.
    pub fn max(&self) -> f32 {
        [self.prefill_max, self.chunked_max, self.decode_max].into_iter().flatten().fold(0.0, largest)
    }

    /// Whether the run agrees with its reference. NaN never does.
    pub fn within(&self, tolerance: f32) -> bool {
        let routing = self.routing_mismatches.unwrap_or(0) == 0;
        self.max() <= tolerance && routing && self.greedy_mismatches == 0
    }
}

/// Runs one case: prefill in one pass, prefill in chunks of `chunk`, cached decode.
///
/// # Errors
/// See [`ForwardError`].
pub fn compare(
    model: &Model,
    experts: &mut Experts,
    case: &Case,
    chunk: NonZeroUsize,
) -> Result<Difference, ForwardError> {
    let whole = NonZeroUsize::MAX;
    let mut one = run_prefill(model, experts, &case.input_ids, whole)?;
    let chunked = run_prefill(model, experts, &case.input_ids, chunk)?;
    let routed = [&one, &chunked].map(|run| routing(run, case, model.config().num_experts_per_tok));
    let (prefill_max, chunked_max) = match &case.logits {
        Some(reference) => {
            (Some(max_difference(&one.logits, reference)), Some(max_difference(&chunked.logits, reference)))
        }
        None => (None, None),
    };
    let prefill_mean = case.logits.as_ref().map(|reference| mean_difference(&one.logits, reference));
    let steps = case.greedy_ids.len();
    let decode = run_decode(model, experts, &mut one, steps, Some(&case.greedy_ids))?;
    let decode_max = case.decode_logits.as_ref().map(|reference| max_difference(&decode.logits, reference));
    let greedy_mismatches = decode.greedy_ids.iter().zip(&case.greedy_ids).filter(|(a, b)| a != b).count();
    Ok(Difference {
        prompt: case.key.clone(),
        tokens: case.input_ids.len(),
        prefill_max,
        prefill_mean,
        chunked_max,
        decode_max,
        routing_mismatches: sum(routed.map(|r| r.map(|(mismatches, _)| mismatches))),
        router_weight_max: routed.into_iter().flatten().map(|(_, weight)| weight).reduce(largest),
        greedy_mismatches,
        greedy_steps: steps,
    })
}

/// Mismatching sets, and the largest difference of a weight where sets agree.
fn routing(run: &Prefill, case: &Case, top_k: usize) -> Option<(usize, f32)> {
    let expected = case.experts.as_ref()?;
    let ours: Vec<_> = run.routing.iter().flat_map(|layer| &layer.experts).copied().collect();
    if ours.len() != expected.len() {
        // Another number of layers, tokens or experts: nothing agrees.
        return Some((ours.len().max(expected.len()) / top_k, f32::INFINITY));
    }
    let weights: Vec<f32> = run.routing.iter().flat_map(|layer| &layer.weights).copied().collect();
    let mut mismatches = 0;
    let mut worst = 0.0_f32;
    for (token, (a, b)) in ours.chunks(top_k).zip(expected.chunks(top_k)).enumerate() {
        if a != b {
            mismatches += 1;
        } else if let Some(reference) = &case.weights {
            let range = token * top_k..(token + 1) * top_k;
            worst = largest(worst, max_difference(&weights[range.clone()], &reference[range]));
        }
    }
    Some((mismatches, worst))
}

pub(super) fn max_difference(a: &[f32], b: &[f32]) -> f32 {
    if a.len() != b.len() {
        return f32::INFINITY;
    }
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, largest)
}

fn mean_difference(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs())).sum::<f64>() / a.len().max(1) as f64
}

/// The larger one; NaN counts as larger than any number, so that it is never lost.
pub(super) fn largest(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() { f32::NAN } else { a.max(b) }
}

fn sum(parts: [Option<usize>; 2]) -> Option<usize> {
    parts.into_iter().flatten().reduce(|a, b| a + b)
}
