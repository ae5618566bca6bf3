//! `/v1/messages/count_tokens`: the prompt's length, by the model's own tokenizer.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use serde_json::{Value, json};

use super::request;
use crate::http::error::Fault;
use crate::http::fields::{self, Fields};
use crate::http::state::{self, SharedApp};

/// `POST /v1/messages/count_tokens`.
///
/// # Errors
/// As of a message.
pub async fn count(State(app): State<SharedApp>, body: Bytes) -> Result<Json<Value>, Fault> {
    let tokens = state::off_thread(&app, move |app| {
        let body = fields::parse(&body)?;
        let prompt = request::prompt(app, &Fields::of_body(&body)?)?;
        app.require_fit(&prompt.rendered.text, state::COUNTED)?;
        Ok(app.text.tokenizer.encode_prompt(&prompt.rendered)?.len())
    });
    Ok(Json(json!({"input_tokens": tokens.await?})))
}
