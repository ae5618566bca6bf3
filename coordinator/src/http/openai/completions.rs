//! `/v1/completions`: text that goes on.

use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::{Value, json};

use crate::chat::{Event as Said, Thinking};
use crate::http::error::Fault;
use crate::http::fields::{self, Fields, mismatch};
use crate::http::form::{self, Format};
use crate::http::journal::Served;
use crate::http::prompt::Tools;
use crate::http::spelling::{LEAST_LOGPROB, Spellings};
use crate::http::sse::{Frames, Narrator};
use crate::http::state::{App, KeepAliveStyle, SharedApp};
use crate::http::turn::{self, Ask, Reader, TokenLogprobs, Turn, TurnEvent};
use crate::http::{ids, knobs, openai, sse, state};

struct Request {
    ask: Ask,
    shape: Shape,
}

#[derive(Clone, Copy)]
struct Shape {
    stream: bool,
    include_usage: bool,
    logprobs: bool,
}

/// `POST /v1/completions`.
///
/// # Errors
/// If the request can't be understood, kept or taken; nothing was sent then.
pub async fn create(
    State(app): State<SharedApp>,
    Extension(served): Extension<Served>,
    body: Bytes,
) -> Result<Response, Fault> {
    let request = state::off_thread(&app, move |app| read(app, &body)).await?;
    let admitted = turn::admit(&app, request.ask, served)?;
    let mut texts = Texts {
        id: ids::unique("cmpl-"),
        created: state::unix_now(),
        model: app.model.id.clone(),
        shape: request.shape,
        told: 0,
    };
    if request.shape.stream {
        return Ok(sse::respond(app, admitted, texts));
    }
    let whole = Turn::new(&app, admitted).whole().await?;
    let logprobs = texts.logprobs(&app.text.spellings, &whole.tokens);
    let mut body = texts.body(&whole.reply.content, Some(openai::reason(whole.end.finish)), logprobs);
    body["usage"] = openai::usage(whole.end.usage);
    Ok(Json(body).into_response())
}

fn read(app: &App, body: &Bytes) -> Result<Request, Fault> {
    let body = fields::parse(body)?;
    let fields = Fields::of_body(&body)?;
    knobs::refuse(&fields)?;
    if fields.boolean("echo")? == Some(true) {
        return Err(Fault::unsupported("echo", "not built"));
    }
    if fields.get("suffix").is_some_and(|suffix| suffix != "") {
        return Err(Fault::unsupported("suffix", "this model does not fill in the middle"));
    }
    let include_usage = match fields.object("stream_options")? {
        Some(options) => options.boolean("include_usage")?.unwrap_or(false),
        None => false,
    };
    let logprobs = match fields.get("logprobs") {
        Some(Value::Bool(false)) => None,
        Some(Value::Bool(true)) => Some(0),
        _ => fields.count("logprobs", 0)?.map(|top| knobs::at_most(top, "logprobs")).transpose()?,
    };
    let stop_ids = knobs::stop_ids(&fields, app)?;
    let format = Format::read(&fields, &["response_format"])?;
    let constraint =
        form::constraint(app, format.as_ref(), &Tools::default(), Thinking::Closed, &stop_ids, false)?;
    let ask = Ask {
        prompt: prompt(app, &fields)?,
        reader: Reader::Plain,
        sampling: knobs::sampling(&fields, app)?,
        seed: knobs::seed(&fields)?,
        max_tokens: knobs::max_tokens(&fields)?,
        stops: fields.strings("stop")?,
        stop_ids,
        logprobs,
        single_call: false,
        constraint,
    };
    let stream = fields.boolean("stream")?.unwrap_or(false);
    Ok(Request { ask, shape: Shape { stream, include_usage, logprobs: logprobs.is_some() } })
}

/// One text, or the ids of one, alone or as a list of one.
fn prompt(app: &App, fields: &Fields<'_>) -> Result<Vec<u32>, Fault> {
    let path = fields.path("prompt");
    let text = |text: &str| {
        app.require_fit(text, app.context())?;
        Ok(app.text.tokenizer.encode_raw(text)?)
    };
    match fields.get("prompt") {
        None => Err(fields.missing("prompt", "string or token ids")),
        Some(Value::String(one)) => text(one),
        Some(Value::Array(list)) => match list.as_slice() {
            [Value::String(one)] => text(one),
            [Value::Array(one)] => fields::ids(one, &format!("{path}[0]")),
            [Value::String(_) | Value::Array(_), _, ..] => Err(Fault::unsupported(
                &path,
                "one prompt per request; send several requests, they run together",
            )),
            _ => fields::ids(list, &path),
        },
        Some(other) => Err(mismatch(&path, "string or token ids", other)),
    }
}

/// Tells a turn as pieces of text.
struct Texts {
    id: String,
    created: u64,
    model: String,
    shape: Shape,
    /// Characters told so far, for `text_offset`.
    told: usize,
}

impl Texts {
    fn body(&self, text: &str, finish: Option<&str>, logprobs: Value) -> Value {
        self.object(json!([{"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish}]))
    }

    fn object(&self, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }

    fn piece(&self, text: &str, finish: Option<&str>, logprobs: Value) -> Value {
        let mut body = self.body(text, finish, logprobs);
        if self.shape.include_usage {
            body["usage"] = Value::Null;
        }
        body
    }

    /// `{tokens, token_logprobs, top_logprobs, text_offset}`.
    fn logprobs(&mut self, spellings: &Spellings, tokens: &[TokenLogprobs]) -> Value {
        if !self.shape.logprobs || (self.shape.stream && tokens.is_empty()) {
            return Value::Null;
        }
        let finite = |logprob: f32| logprob.max(LEAST_LOGPROB);
        let top = |token: &TokenLogprobs| -> Value {
            let entries = token.top.iter();
            Value::Object(
                entries.map(|&(id, logprob)| (spellings.text(id), json!(finite(logprob)))).collect(),
            )
        };
        let offset = |token: &TokenLogprobs| {
            let at = self.told;
            self.told += spellings.text(token.id).chars().count();
            at
        };
        json!({
            "tokens": tokens.iter().map(|token| spellings.text(token.id)).collect::<Vec<_>>(),
            "token_logprobs": tokens.iter().map(|token| finite(token.chosen)).collect::<Vec<_>>(),
            "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
            "text_offset": tokens.iter().map(offset).collect::<Vec<_>>(),
        })
    }
}

impl Narrator for Texts {
    /// Headers go out before the prompt is run; a first piece without text shows that they did.
    fn open(&mut self, _: &App, out: &mut Frames) {
        out.data(&self.piece("", None, Value::Null));
    }

    fn tell(&mut self, app: &App, event: TurnEvent, out: &mut Frames) {
        match event {
            TurnEvent::Said { said: Said::Content(text), tokens } => {
                let logprobs = self.logprobs(&app.text.spellings, &tokens);
                out.data(&self.piece(&text, None, logprobs));
            }
            // Plain text has nothing but content.
            TurnEvent::Said { .. } | TurnEvent::Progress(_) => {}
            TurnEvent::End(end) => {
                let logprobs = self.logprobs(&app.text.spellings, &end.tokens);
                out.data(&self.piece("", Some(openai::reason(end.finish)), logprobs));
                if self.shape.include_usage {
                    let mut body = self.object(json!([]));
                    body["usage"] = openai::usage(end.usage);
                    out.data(&body);
                }
                out.done();
            }
        }
    }

    fn keep_alive(&mut self, app: &App, out: &mut Frames) {
        match app.options.keep_alive.style {
            KeepAliveStyle::Comment => out.comment("keep-alive"),
            KeepAliveStyle::Chunk => out.data(&self.piece("", None, Value::Null)),
        }
    }

    fn fail(&mut self, fault: &Fault, out: &mut Frames) {
        out.data(&fault.openai());
    }
}
