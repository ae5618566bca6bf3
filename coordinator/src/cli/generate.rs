//! `generate`: a text or a message in, tokens out as they come.

use std::ops::ControlFlow;

use laguna_shared::config::GenerationConfig;

use super::args::{Args, GenerateArgs};
use super::cluster::{self, Cluster};
use super::failure::Failure;
use super::loading::unwatched;
use super::output;
use super::trace::TraceFile;
use crate::chat::{Conversation, Message, RenderOptions, Rendered, Role, Template};
use crate::engine::generation::{Finish, Report, Request, generate};
use crate::engine::handle::ShardStatus;
use crate::engine::sampler::{Sampler, Sampling};
use crate::experts::timing::Rows;
use crate::flight::Flight;
use crate::text::{Detokenizer, TextError, TextTokenizer};

/// Runs the command.
///
/// # Errors
/// With one message.
pub fn run(args: &Args, command: &GenerateArgs) -> Result<(), Failure> {
    let text = text(command)?;
    let trace = TraceFile::create(command.trace.as_deref())?;
    let mut cluster = cluster::open(&args.cluster, cluster::native_activation(), None, &unwatched)?;
    if trace.is_some() {
        cluster.experts.flight = Flight::on();
    }
    let tokenizer = TextTokenizer::load(&cluster.dir).map_err(Failure::usage)?;
    let prompt = if command.chat {
        tokenizer.encode_prompt(&render(&cluster, text)?)
    } else {
        tokenizer.encode_raw(text)
    }
    .map_err(Failure::failed)?;
    check_prompt(&cluster, &prompt)?;

    let sampling = sampling(command, &cluster.opened.generation);
    let seed = command.seed.unwrap_or_else(rand::random);
    if sampling.temperature > 0.0 && command.seed.is_none() {
        output::say(format_args!("seed {seed}"));
    }
    let stop_ids = cluster.opened.stop_ids();
    let request = Request {
        prompt: &prompt,
        max_tokens: command.max_tokens,
        chunk: cluster.chunk,
        stop_ids: &stop_ids,
    };
    let mut sampler = Sampler::new(sampling, seed, &prompt);
    let mut detokenizer = Detokenizer::new(&tokenizer);
    let mut failure = None;
    let mut emit =
        |id| -> Result<(), Failure> { output::data(&detokenizer.push(id).map_err(Failure::failed)?) };
    let report =
        generate(&cluster.model, &mut cluster.experts, &request, &mut sampler, |id| match emit(id) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failure = Some(error);
                ControlFlow::Break(())
            }
        })
        .map_err(Failure::failed)?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    output::data(&(detokenizer.finish().map_err(Failure::failed)? + "\n"))?;
    say(&report);
    if report.exchange.is_some() {
        shards(&cluster.experts.shard_status());
    }
    trace.map_or(Ok(()), |trace| trace.finish(&cluster.experts.flight))
}

/// The text to go on with. Given without its flag it is refused with what to type instead.
fn text(command: &GenerateArgs) -> Result<&str, Failure> {
    match &command.prompt {
        Some(text) if command.stray.is_empty() => Ok(text),
        Some(_) => Err(Failure::usage(format!(
            "{:?} belongs to nothing; a prompt of several words needs quotes: -p 'TEXT'",
            command.stray.join(" ")
        ))),
        None => Err(Failure::usage(format!(
            "the prompt goes behind -p: laguna-coord generate -p {:?}",
            command.stray.join(" ")
        ))),
    }
}

/// The message in the checkpoint's own template, ready for the answer.
fn render(cluster: &Cluster, message: &str) -> Result<Rendered, Failure> {
    let template = Template::load(&cluster.dir).map_err(Failure::usage)?;
    let messages = vec![Message::text(Role::User, message)];
    let conversation = Conversation { messages, ..Conversation::default() };
    template.render(&conversation, &RenderOptions::default()).map_err(Failure::failed)
}

fn check_prompt(cluster: &Cluster, prompt: &[u32]) -> Result<(), Failure> {
    let config = cluster.model.config();
    let vocab_size = config.vocab_size;
    if let Some(&id) = prompt.iter().find(|&&id| id as usize >= vocab_size) {
        return Err(Failure::failed(TextError::OutsideVocabulary { id, vocab_size }));
    }
    if prompt.is_empty() {
        return Err(Failure::usage("the prompt is empty, and this tokenizer adds no opening token"));
    }
    if prompt.len() > config.max_position_embeddings {
        return Err(Failure::usage(format!(
            "the prompt has {} tokens; this checkpoint's context is {}",
            prompt.len(),
            config.max_position_embeddings
        )));
    }
    Ok(())
}

/// Flags first, then the checkpoint's own defaults.
fn sampling(command: &GenerateArgs, defaults: &GenerationConfig) -> Sampling {
    if command.greedy {
        return Sampling::greedy();
    }
    let neutral = Sampling::default();
    // A checkpoint that says not to sample means greedy, unless a temperature is asked for.
    let temperature = match defaults.do_sample {
        Some(false) => Some(0.0),
        _ => defaults.temperature.map(|t| t as f32),
    };
    Sampling {
        temperature: command.temperature.or(temperature).unwrap_or(neutral.temperature),
        top_k: command.top_k.or(defaults.top_k).unwrap_or(neutral.top_k),
        top_p: command.top_p.or_else(|| defaults.top_p.map(|p| p as f32)).unwrap_or(neutral.top_p),
        min_p: command.min_p.or_else(|| defaults.min_p.map(|p| p as f32)).unwrap_or(neutral.min_p),
        repetition_penalty: defaults.repetition_penalty.map_or(1.0, |p| p as f32),
        ..neutral
    }
}

fn say(report: &Report) {
    let rate = |tokens: usize, time: std::time::Duration| tokens as f64 / time.as_secs_f64().max(1e-9);
    let finish = match report.finish {
        Finish::Stop(id) => format!("stopped by token {id}"),
        Finish::Length => "reached the limit of new tokens".to_owned(),
        Finish::Cancelled => "cancelled".to_owned(),
    };
    output::say(format_args!(
        "prompt: {} tokens, {:.1} tok/s",
        report.prompt_tokens,
        rate(report.prompt_tokens, report.prefill)
    ));
    // The first token belongs to the prompt's time.
    let decoded = report.new_tokens.saturating_sub(1);
    output::say(format_args!(
        "decode: {} tokens, {:.1} tok/s; {finish}",
        report.new_tokens,
        rate(decoded, report.decode)
    ));
    if let Some(exchange) = report.exchange {
        output::say(format_args!(
            "sparse layer: {:.0} µs p50, {:.0} µs p99 from dispatch to sum, over {} exchanges",
            exchange.p50, exchange.p99, exchange.count
        ));
    }
}

/// A line a shard: what the calls of decode steps took, and what that went to.
fn shards(shards: &[ShardStatus]) {
    for ShardStatus { shard, address, by_size, .. } in shards {
        let parts = by_size.percentiles(Rows::One);
        let Some(first) = parts.first() else { continue };
        let times: Vec<String> =
            parts.iter().map(|it| format!("{} {:.0}/{:.0}", it.part, it.p50, it.p99)).collect();
        output::say(format_args!(
            "{shard} ({address}): µs p50/p99 of {} calls with one row: {}",
            first.count,
            times.join(", ")
        ));
    }
}
