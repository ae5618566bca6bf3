//! What a request says about choosing tokens: honoured, or refused; never ignored.

use std::sync::Arc;

use serde_json::Value;

use super::error::Fault;
use super::fields::Fields;
use super::state::App;
use crate::engine::request::MAX_TOP_LOGPROBS;
use crate::engine::sampler::Sampling;

/// The sampling of a request: its own, else the server's defaults.
///
/// # Errors
/// For values out of range.
pub fn sampling(fields: &Fields<'_>, app: &App) -> Result<Sampling, Fault> {
    let defaults = app.options.sampling.clone();
    // vLLM's -1 and llama.cpp's 0 both mean all.
    let top_k = fields.integer("top_k", -1)?.map(|k| usize::try_from(k).unwrap_or(0));
    let repetition = match fields.number("repetition_penalty", f32::MIN_POSITIVE, f32::MAX)? {
        None => fields.number("repeat_penalty", f32::MIN_POSITIVE, f32::MAX)?,
        some => some,
    };
    Ok(Sampling {
        temperature: fields.number("temperature", 0.0, f32::MAX)?.unwrap_or(defaults.temperature),
        top_k: top_k.unwrap_or(defaults.top_k),
        top_p: fields.number("top_p", 0.0, 1.0)?.unwrap_or(defaults.top_p),
        min_p: fields.number("min_p", 0.0, 1.0)?.unwrap_or(defaults.min_p),
        repetition_penalty: repetition.unwrap_or(defaults.repetition_penalty),
        presence_penalty: fields.number("presence_penalty", -2.0, 2.0)?.unwrap_or(defaults.presence_penalty),
        frequency_penalty: fields
            .number("frequency_penalty", -2.0, 2.0)?
            .unwrap_or(defaults.frequency_penalty),
        logit_bias: logit_bias(fields, app)?,
    })
}

/// The seed of a request; a new one each time if it names none.
///
/// # Errors
/// If it is no whole number.
pub fn seed(fields: &Fields<'_>) -> Result<u64, Fault> {
    Ok(fields.integer("seed", i64::MIN)?.map_or_else(rand::random, i64::cast_unsigned))
}

/// Most new tokens, under either name.
///
/// # Errors
/// If it is no whole number from 1.
pub fn max_tokens(fields: &Fields<'_>) -> Result<Option<usize>, Fault> {
    for name in ["max_completion_tokens", "max_tokens", "max_output_tokens"] {
        if let Some(most) = fields.count(name, 1)? {
            return Ok(Some(most));
        }
    }
    Ok(None)
}

/// The ids that end the text.
///
/// # Errors
/// If a request's own are no token ids.
pub fn stop_ids(fields: &Fields<'_>, app: &App) -> Result<Arc<[u32]>, Fault> {
    let own = fields.ids("stop_token_ids")?.unwrap_or_default();
    let ignore = fields.boolean("ignore_eos")?.unwrap_or(false);
    Ok(match (ignore, own.is_empty()) {
        (false, true) => app.model.stop_ids.clone(),
        (true, _) => own.into(),
        (false, false) => app.model.stop_ids.iter().copied().chain(own).collect(),
    })
}

/// `logprobs: true` and `top_logprobs` of the chat dialect.
///
/// # Errors
/// If alternatives are asked for without log-probabilities, or too many.
pub fn logprobs(fields: &Fields<'_>) -> Result<Option<usize>, Fault> {
    let top = fields.count("top_logprobs", 0)?;
    if !fields.boolean("logprobs")?.unwrap_or(false) {
        return match top {
            None | Some(0) => Ok(None),
            Some(_) => Err(Fault::field("top_logprobs", "needs logprobs: true")),
        };
    }
    at_most(top.unwrap_or(0), "top_logprobs").map(Some)
}

/// Holds a number of alternatives against what the engine reports.
///
/// # Errors
/// If it is more.
pub fn at_most(top: usize, name: &str) -> Result<usize, Fault> {
    if top > MAX_TOP_LOGPROBS {
        return Err(Fault::field(name, format!("expected at most {MAX_TOP_LOGPROBS}, got {top}")));
    }
    Ok(top)
}

/// Refuses what would change the result and is not built.
///
/// # Errors
/// [`Fault::Unsupported`] with the field.
pub fn refuse(fields: &Fields<'_>) -> Result<(), Fault> {
    for (name, neutral, reason) in REFUSED {
        if let Some(value) = fields.get(name).filter(|value| !neutral(value)) {
            let shown: String = value.to_string().chars().take(SHOWN).collect();
            return Err(Fault::unsupported(&fields.path(name), &format!("{reason} (got {shown})")));
        }
    }
    Ok(())
}

fn logit_bias(fields: &Fields<'_>, app: &App) -> Result<Vec<(u32, f32)>, Fault> {
    let Some(Value::Object(map)) = fields.get("logit_bias") else {
        return match fields.get("logit_bias") {
            None => Ok(Vec::new()),
            Some(other) => Err(super::fields::mismatch(&fields.path("logit_bias"), "object", other)),
        };
    };
    let vocabulary = app.engine().map_or(usize::MAX, |engine| engine.limits().vocab_size);
    let mut biases = Vec::with_capacity(map.len());
    for (key, value) in map {
        let path = fields.path(&format!("logit_bias.{key}"));
        let id = key.parse::<u32>().ok().filter(|&id| (id as usize) < vocabulary);
        let id = id.ok_or_else(|| Fault::field(&path, "expected the id of a token as key"))?;
        let bias = value.as_f64().map(|bias| bias as f32).filter(|bias| bias.abs() <= 100.0);
        biases.push((id, bias.ok_or_else(|| Fault::field(&path, "expected number from -100 to 100"))?));
    }
    Ok(biases)
}

/// Names, what value changes nothing, and what to say about every other one.
type Refused = (&'static str, fn(&Value) -> bool, &'static str);

const REFUSED: &[Refused] = &[
    ("n", one, "one choice per request is all there is; send the request again for another"),
    ("best_of", one, "one choice per request is all there is"),
    ("audio", never, "this model makes text only"),
    ("modalities", only_text, "this model makes text only"),
    ("functions", empty, "send tools instead"),
    ("function_call", none_or_auto, "send tool_choice instead"),
    ("web_search_options", never, "nothing is searched here"),
    ("json_schema", empty, SEND_FORMAT),
    ("structured_outputs", empty, SEND_FORMAT),
    ("guided_json", empty, SEND_FORMAT),
    ("grammar", empty, ONLY_JSON),
    ("guided_regex", empty, ONLY_JSON),
    ("guided_choice", empty, ONLY_JSON),
    ("guided_grammar", empty, ONLY_JSON),
    ("bad_words", empty, "send logit_bias instead"),
    ("min_tokens", zero, "not built"),
    ("use_beam_search", falsy, "not built"),
    ("typical_p", one, "not built"),
    ("mirostat", zero, "not built"),
    ("dry_multiplier", zero, "not built"),
    ("xtc_probability", zero, "not built"),
    ("dynatemp_range", zero, "not built"),
    ("continue_final_message", falsy, "not built; the model always begins a turn of its own"),
    ("prompt_logprobs", zero, "not built"),
];

const SEND_FORMAT: &str = "send response_format with a json_schema instead";
const ONLY_JSON: &str = "of all forms only JSON by a schema is enforced; send response_format";

fn never(_: &Value) -> bool {
    false
}

fn one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

fn zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}

fn falsy(value: &Value) -> bool {
    value == &Value::Bool(false)
}

fn empty(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

fn none_or_auto(value: &Value) -> bool {
    matches!(value.as_str(), Some("none" | "auto"))
}

fn only_text(value: &Value) -> bool {
    value.as_array().is_some_and(|list| list.iter().all(|modality| modality == "text"))
}

/// Characters of a refused value that its message shows.
const SHOWN: usize = 60;
