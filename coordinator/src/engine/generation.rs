//! One sequence: its prompt, then one token after the other, until a stop id, a limit, or the caller says so.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use laguna_shared::compute::mlx::array::append_f32;

use super::prefill::prefill;
use super::sampler::Sampler;
use crate::experts::Experts;
use crate::experts::timing::ExchangeSummary;
use crate::flight::Stage;
use crate::model::{ForwardError, Model, Segment};

/// What to generate.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Prompt ids; at least one.
    pub prompt: &'a [u32],
    /// Most new tokens.
    pub max_tokens: usize,
    /// Prompt tokens a micro-batch.
    pub chunk: NonZeroUsize,
    /// Ids that end the text; they are not part of it.
    pub stop_ids: &'a [u32],
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// This stop id came.
    Stop(u32),
    /// `max_tokens` were made.
    Length,
    /// The caller's callback said stop.
    Cancelled,
}

/// What a generation took.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Why it ended.
    pub finish: Finish,
    /// Prompt tokens run.
    pub prompt_tokens: usize,
    /// Tokens made, the stop id included.
    pub new_tokens: usize,
    /// Prompt time, the first token's choice included.
    pub prefill: Duration,
    /// Time of all tokens after the first.
    pub decode: Duration,
    /// Exchange times of decode steps, one per sparse layer and token.
    pub exchange: Option<ExchangeSummary>,
}

/// Runs a request; `on_token` gets every new id but the stop id.
///
/// # Errors
/// See [`ForwardError`].
pub fn generate(
    model: &Model,
    experts: &mut Experts,
    request: &Request<'_>,
    sampler: &mut Sampler,
    mut on_token: impl FnMut(u32) -> ControlFlow<()>,
) -> Result<Report, ForwardError> {
    let started = Instant::now();
    let mut cache = model.new_cache();
    let mut last = None;
    prefill(model, experts, &mut cache, request.prompt, request.chunk, None, |rows| {
        last = Some(rows);
        Ok(())
    })?;
    let mut residual = last.ok_or(ForwardError::EmptySegment)?;
    let mut report = Report {
        finish: Finish::Length,
        prompt_tokens: request.prompt.len(),
        new_tokens: 0,
        prefill: Duration::ZERO,
        decode: Duration::ZERO,
        exchange: None,
    };
    let mut logits = Vec::new();
    let mut first_at = None;
    while report.new_tokens < request.max_tokens {
        let began = experts.flight.begin();
        let id = next(model, &residual, sampler, &mut logits)?;
        experts.flight.end(began, Stage::Head);
        report.new_tokens += 1;
        if first_at.is_none() {
            first_at = Some(Instant::now());
            // Decode is reported by itself: a prompt's exchanges carry many rows.
            experts.take_times();
        }
        if request.stop_ids.contains(&id) {
            report.finish = Finish::Stop(id);
            break;
        }
        if on_token(id).is_break() {
            report.finish = Finish::Cancelled;
            break;
        }
        if report.new_tokens < request.max_tokens {
            residual = model.forward(&mut [Segment { ids: &[id], cache: &mut cache }], experts, None)?;
        }
    }
    let first_at = first_at.unwrap_or_else(Instant::now);
    report.prefill = first_at - started;
    report.decode = first_at.elapsed();
    report.exchange = experts.take_times();
    Ok(report)
}

fn next(
    model: &Model,
    residual: &mlx_rs::Array,
    sampler: &mut Sampler,
    logits: &mut Vec<f32>,
) -> Result<u32, ForwardError> {
    logits.clear();
    append_f32(&model.last_logits(residual)?, logits)?;
    if logits.iter().any(|logit| logit.is_nan()) {
        return Err(ForwardError::NotFinite);
    }
    sampler.adjust(logits);
    let id = sampler.sample(logits);
    sampler.accept(id);
    Ok(id)
}
