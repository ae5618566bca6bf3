//! The forward pass, one file a part, in the order it runs:
//!
//! - [`embed`]: token ids → residual stream
//! - [`layer`]: one decoder layer: [`norm`], attention, norm, MLP or experts
//!   - [`attention`]: q, k, v; QK norm; [`rope`]; [`cache`]; softplus gate; output
//!   - [`dense`]: SwiGLU, for dense layers and for the [`moe`]'s shared expert
//!   - [`moe`]: [`router`], dispatch to the shards, shared expert, sum
//! - `micro_batch`: a pass in parts, one computing while the other is at the experts
//! - [`head`]: residual stream → logits
//! - `pointwise`: the steps between products
//! - [`linear`]: the products all of these are made of, [`load`] what fills them, [`quantize`] in fewer bits
//!
//! Rows of several sequences run together: everything but attention sees one `[rows, hidden]` array.

pub mod attention;
pub mod cache;
pub mod dense;
pub mod embed;
pub mod head;
pub mod layer;
pub mod linear;
pub mod load;
mod micro_batch;
pub mod moe;
pub mod norm;
mod pointwise;
pub mod quantize;
pub mod rope;
pub mod router;
pub mod trace;

#[cfg(test)]
mod tests;

use laguna_shared::compute::ActivationType;
use laguna_shared::config::ModelConfig;
use laguna_shared::weights::CheckpointError;
use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, ops, transforms};

use crate::experts::{Experts, ExpertsError};
use crate::flight::Stage;
use cache::SequenceCache;
use embed::Embedding;
use head::Head;
use layer::{Begun, Layer};
use micro_batch::MicroBatch;
use trace::RoutingTrace;

/// A Laguna's trunk: everything but the routed experts.
#[derive(Debug)]
pub struct Model {
    config: ModelConfig,
    activation: ActivationType,
    embed: Embedding,
    layers: Vec<Layer>,
    head: Head,
}

/// Consecutive new tokens of one sequence and the cache they extend.
#[derive(Debug)]
pub struct Segment<'a> {
    /// New token ids; at least one.
    pub ids: &'a [u32],
    /// Keys and values of the tokens before; extended by the pass.
    pub cache: &'a mut SequenceCache,
}

/// Why a forward pass failed. The caches of its segments are then of no more use.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// A token id that the embedding does not have.
    #[error("token id {id} is outside the vocabulary of {vocab_size}")]
    UnknownToken {
        /// As given.
        id: u32,
        /// Rows of the embedding.
        vocab_size: usize,
    },
    /// A segment without tokens.
    #[error("a segment without tokens")]
    EmptySegment,
    /// The model overflowed, or its weights are broken: no token can be chosen.
    #[error("the model's logits are not finite; the checkpoint may be damaged, or try --dtype f32")]
    NotFinite,
    /// MLX refused an operation or ran out of memory.
    #[error("MLX: {0}")]
    Mlx(#[from] Exception),
    /// The routed experts failed.
    #[error(transparent)]
    Experts(#[from] ExpertsError),
}

/// Why the trunk could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ModelLoadError {
    /// A tensor could not be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// MLX refused a tensor or ran out of memory.
    #[error("MLX, while loading the trunk: {0}")]
    Mlx(#[from] Exception),
}

impl Model {
    /// What the checkpoint's `config.json` says.
    pub const fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Element type of the residual stream.
    pub const fn activation(&self) -> ActivationType {
        self.activation
    }

    /// An empty cache for one sequence.
    pub fn new_cache(&self) -> SequenceCache {
        let windows = self.config.layers.iter().map(|layer| layer.sliding_window);
        SequenceCache::new(
            self.layers.iter().zip(windows).map(|(layer, window)| layer.attention.new_cache(window)),
        )
    }

    /// Tokens that a sequence's cache has room for in all sliding layers together, between passes.
    pub fn ring_tokens(&self) -> usize {
        let windows = self.config.layers.iter().map(|layer| layer.sliding_window);
        let rings = self.layers.iter().zip(windows);
        rings.filter_map(|(layer, window)| Some(layer.attention.ring_tokens(window?))).sum()
    }

    /// Runs the new tokens of every segment through all layers.
    ///
    /// Returns the residual stream before the final norm, `[rows, hidden]`, evaluated; rows lie in segment order.
    /// Any split of a sequence into passes gives the same rows, to rounding.
    ///
    /// # Errors
    /// See [`ForwardError`].
    pub fn forward(
        &self,
        segments: &mut [Segment<'_>],
        experts: &mut Experts,
        trace: Option<&mut RoutingTrace>,
    ) -> Result<Array, ForwardError> {
        let rows = segments.iter().map(|segment| segment.ids.len()).sum();
        let parts = micro_batch::parts(rows, experts.travel());
        let residual = self.forward_in(parts, segments, experts, trace);
        if residual.is_err() {
            // Another micro-batch's calls may still be under way.
            experts.give_up();
        }
        residual
    }

    /// [`forward`](Self::forward) in so many micro-batches.
    fn forward_in(
        &self,
        parts: usize,
        segments: &mut [Segment<'_>],
        experts: &mut Experts,
        mut trace: Option<&mut RoutingTrace>,
    ) -> Result<Array, ForwardError> {
        let ids = self.checked_ids(segments)?;
        let began = experts.flight.begin();
        let mut batches = MicroBatch::cut(segments, parts);
        for batch in &mut batches {
            batch.start(self.embed.forward(&ids[batch.rows.clone()])?);
        }
        for (index, layer) in self.layers.iter().enumerate() {
            for batch in &mut batches {
                if let Some(x) = self.finished(index, batch.begun.take(), experts)? {
                    let pieces = &batch.pieces;
                    batch.begun =
                        Some(layer.begin(index, x, pieces, segments, experts, trace.as_deref_mut())?);
                }
            }
        }
        let mut parts = Vec::with_capacity(batches.len());
        for batch in &mut batches {
            parts.extend(self.finished(self.layers.len(), batch.begun.take(), experts)?);
        }
        let x = match parts.as_slice() {
            [one] => one.clone(),
            many => ops::concatenate(many, 0)?,
        };
        transforms::eval([&x])?;
        experts.flight.end(began, Stage::Pass);
        for segment in segments {
            segment.cache.advance(segment.ids.len());
        }
        Ok(x)
    }

    /// Logits `[rows, vocab]`, f32, of residual rows `[rows, hidden]`. Lazy: nothing is evaluated here.
    ///
    /// # Errors
    /// If MLX refuses the shapes.
    pub fn logits(&self, residual: &Array) -> Result<Array, Exception> {
        self.head.forward(residual, &self.embed)
    }

    /// Logits `[1, vocab]`, f32, of the last residual row.
    ///
    /// # Errors
    /// If MLX refuses the shapes.
    pub fn last_logits(&self, residual: &Array) -> Result<Array, Exception> {
        self.logits(&residual.try_index((-1.., ..))?)
    }

    /// Rows of a prompt that one pass takes, so that each micro-batch has `chunk`.
    pub fn prefill_rows(chunk: usize, experts: &Experts) -> usize {
        micro_batch::pass_rows(chunk, experts.travel())
    }

    /// The residual stream behind the layer before `index`, which had begun.
    fn finished(
        &self,
        index: usize,
        begun: Option<Begun>,
        experts: &mut Experts,
    ) -> Result<Option<Array>, ForwardError> {
        match (begun, index.checked_sub(1)) {
            (Some(begun), Some(before)) => self.layers[before].finish(before, begun, experts).map(Some),
            (Some(Begun::Whole(x)), None) => Ok(Some(x)),
            _ => Ok(None),
        }
    }

    fn checked_ids(&self, segments: &[Segment<'_>]) -> Result<Vec<u32>, ForwardError> {
        let vocab_size = self.config.vocab_size;
        let mut ids = Vec::new();
        for segment in segments {
            if segment.ids.is_empty() {
                return Err(ForwardError::EmptySegment);
            }
            if let Some(&id) = segment.ids.iter().find(|&&id| id as usize >= vocab_size) {
                return Err(ForwardError::UnknownToken { id, vocab_size });
            }
            ids.extend_from_slice(segment.ids);
        }
        if ids.is_empty() { Err(ForwardError::EmptySegment) } else { Ok(ids) }
    }
}
