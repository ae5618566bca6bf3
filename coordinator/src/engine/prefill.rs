//! A prompt into the cache, in chunks, so that no pass needs memory for the whole prompt's activations.

use std::num::NonZeroUsize;

use mlx_rs::Array;

use crate::experts::Experts;
use crate::model::cache::SequenceCache;
use crate::model::trace::RoutingTrace;
use crate::model::{ForwardError, Model, Segment};

/// Runs `ids` through the model, at most `chunk` tokens a micro-batch; `each` gets every pass's residual rows
/// `[tokens, hidden]`.
///
/// # Errors
/// See [`ForwardError`]; the cache is then of no more use.
pub fn prefill(
    model: &Model,
    experts: &mut Experts,
    cache: &mut SequenceCache,
    ids: &[u32],
    chunk: NonZeroUsize,
    mut trace: Option<&mut RoutingTrace>,
    mut each: impl FnMut(Array) -> Result<(), ForwardError>,
) -> Result<(), ForwardError> {
    if ids.is_empty() {
        return Err(ForwardError::EmptySegment);
    }
    for ids in ids.chunks(Model::prefill_rows(chunk.get(), experts)) {
        let mut segment = [Segment { ids, cache }];
        each(model.forward(&mut segment, experts, trace.as_deref_mut())?)?;
    }
    Ok(())
}
