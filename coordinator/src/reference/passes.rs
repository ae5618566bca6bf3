//! The passes that references record: prefill of a prompt in any chunks, and cached greedy decode after it.

use std::num::NonZeroUsize;

use laguna_shared::compute::mlx::array::append_f32;
use laguna_shared::ids::ExpertId;

use crate::engine::prefill::prefill;
use crate::engine::sampler::argmax;
use crate::experts::Experts;
use crate::model::cache::SequenceCache;
use crate::model::trace::RoutingTrace;
use crate::model::{ForwardError, Model, Segment};

/// A prompt's prefill, recorded.
#[derive(Debug)]
pub struct Prefill {
    /// `[tokens, vocab]`.
    pub logits: Vec<f32>,
    /// One per sparse layer, ascending.
    pub routing: Vec<SparseRouting>,
    /// The cache after the prompt.
    pub cache: SequenceCache,
}

/// One sparse layer's choices over the whole prompt.
#[derive(Debug, Default)]
pub struct SparseRouting {
    /// `[tokens, k]`, ascending within a token.
    pub experts: Vec<ExpertId>,
    /// `[tokens, k]`, before `moe_routed_scaling_factor`.
    pub weights: Vec<f32>,
}

/// Cached decode, recorded. Row i of the logits predicts id i.
#[derive(Debug, Default)]
pub struct Decode {
    /// Most likely id of each row.
    pub greedy_ids: Vec<u32>,
    /// `[steps, vocab]`.
    pub logits: Vec<f32>,
}

/// Runs a prompt, at most `chunk` tokens a micro-batch, and keeps every position's logits and routing.
///
/// # Errors
/// See [`ForwardError`].
pub fn run_prefill(
    model: &Model,
    experts: &mut Experts,
    ids: &[u32],
    chunk: NonZeroUsize,
) -> Result<Prefill, ForwardError> {
    let mut cache = model.new_cache();
    let mut trace = RoutingTrace::default();
    let mut logits = Vec::new();
    prefill(model, experts, &mut cache, ids, chunk, Some(&mut trace), |residual| {
        append_f32(&model.logits(&residual)?, &mut logits)?;
        Ok(())
    })?;
    let sparse: Vec<_> = model.config().sparse_layers().collect();
    let mut routing: Vec<SparseRouting> = sparse.iter().map(|_| SparseRouting::default()).collect();
    for pass in trace.layers {
        if let Ok(index) = sparse.binary_search(&pass.layer) {
            routing[index].experts.extend(pass.experts);
            routing[index].weights.extend(pass.weights);
        }
    }
    Ok(Prefill { logits, routing, cache })
}

/// Decodes `steps` tokens after a prefill, one a pass. `follow` names the ids to feed instead of the model's own
/// choices, so that one wrong choice is counted once.
///
/// # Errors
/// See [`ForwardError`].
pub fn run_decode(
    model: &Model,
    experts: &mut Experts,
    prefill: &mut Prefill,
    steps: usize,
    follow: Option<&[u32]>,
) -> Result<Decode, ForwardError> {
    let mut decode = Decode::default();
    let vocab = model.config().vocab_size;
    let mut row = prefill.logits[prefill.logits.len().saturating_sub(vocab)..].to_vec();
    for step in 0..steps {
        let choice = argmax(&row);
        decode.greedy_ids.push(choice);
        decode.logits.extend_from_slice(&row);
        if step + 1 == steps {
            break;
        }
        let id = follow.and_then(|ids| ids.get(step)).copied().unwrap_or(choice);
        let mut segment = [Segment { ids: &[id], cache: &mut prefill.cache }];
        let residual = model.forward(&mut segment, experts, None)?;
        row.clear();
        append_f32(&model.logits(&residual)?, &mut row)?;
    }
    Ok(decode)
}
