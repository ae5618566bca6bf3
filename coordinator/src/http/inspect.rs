//! Looking at text as the model does, under llama-server's names: `/apply-template`, `/tokenize`, `/detokenize`.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use serde_json::{Value, json};

use super::error::Fault;
use super::fields::{self, Fields};
use super::openai::chat::request;
use super::state::{self, SharedApp};

/// `POST /apply-template`: the exact prompt of `messages`, `tools` and `chat_template_kwargs`.
///
/// # Errors
/// As of a chat completion.
pub async fn apply_template(State(app): State<SharedApp>, body: Bytes) -> Result<Json<Value>, Fault> {
    let prompt = state::off_thread(&app, move |app| {
        let body = fields::parse(&body)?;
        let fields = Fields::of_body(&body)?;
        Ok(request::prompt(app, &fields)?.rendered.text)
    });
    Ok(Json(json!({"prompt": prompt.await?})))
}

/// `POST /tokenize`: ids of `content`; `add_special` puts the opening token before it.
///
/// # Errors
/// If `content` is no string.
pub async fn tokenize(State(app): State<SharedApp>, body: Bytes) -> Result<Json<Value>, Fault> {
    let tokens = state::off_thread(&app, move |app| {
        let body = fields::parse(&body)?;
        let fields = Fields::of_body(&body)?;
        let content = fields.string("content")?.ok_or_else(|| fields.missing("content", "string"))?;
        app.require_fit(content, state::COUNTED)?;
        let special = fields.boolean("add_special")?.unwrap_or(false);
        let tokenizer = &app.text.tokenizer;
        let ids = if special { tokenizer.encode_raw(content) } else { tokenizer.encode_rendered(content) }?;
        if !fields.boolean("with_pieces")?.unwrap_or(false) {
            return Ok(json!(ids));
        }
        let piece = |id: &u32| json!({"id": id, "piece": app.text.spellings.text(*id)});
        Ok(ids.iter().map(piece).collect())
    });
    Ok(Json(json!({"tokens": tokens.await?})))
}

/// `POST /detokenize`: the text of `tokens`, control tokens spelled out.
///
/// # Errors
/// If `tokens` are no token ids.
pub async fn detokenize(State(app): State<SharedApp>, body: Bytes) -> Result<Json<Value>, Fault> {
    let content = state::off_thread(&app, move |app| {
        let body = fields::parse(&body)?;
        let fields = Fields::of_body(&body)?;
        let ids = fields.ids("tokens")?.ok_or_else(|| fields.missing("tokens", "array of token ids"))?;
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| app.text.spellings.bytes(id)).copied().collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    });
    Ok(Json(json!({"content": content.await?})))
}
