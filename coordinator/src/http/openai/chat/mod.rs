//! `/v1/chat/completions`.
//!
//! - [`request`]: the body, to an [`Ask`](crate::http::turn::Ask)
//! - [`whole`]: the answer in one piece
//! - [`stream`]: the answer as chunks

pub mod request;
pub mod stream;
pub mod whole;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::{Value, json};

use crate::http::error::Fault;
use crate::http::journal::Served;
use crate::http::spelling::Spellings;
use crate::http::state::{self, SharedApp};
use crate::http::turn::{self, TokenLogprobs, Turn};
use crate::http::{ids, sse};

/// `POST /v1/chat/completions`.
///
/// # Errors
/// If the request can't be understood, kept or taken; nothing was sent then.
pub async fn create(
    State(app): State<SharedApp>,
    Extension(served): Extension<Served>,
    body: Bytes,
) -> Result<Response, Fault> {
    let request = state::off_thread(&app, move |app| request::read(app, &body)).await?;
    let admitted = turn::admit(&app, request.ask, served)?;
    let head = Head { id: ids::unique("chatcmpl-"), created: state::unix_now(), model: app.model.id.clone() };
    let response = if request.shape.stream {
        sse::respond(app, admitted, stream::Chunks::new(head, request.shape))
    } else {
        let whole = Turn::new(&app, admitted).whole().await?;
        Json(whole::body(&app, &head, &request.shape, whole)).into_response()
    };
    Ok(super::warn(response, &request.warnings))
}

/// What every part of an answer says of it.
#[derive(Clone, Debug)]
pub struct Head {
    id: String,
    created: u64,
    model: String,
}

/// `logprobs` of a choice.
fn logprobs(spellings: &Spellings, tokens: &[TokenLogprobs]) -> Value {
    let entry = |token: &TokenLogprobs| {
        let mut entry = spellings.entry(token.id, token.chosen);
        entry["top_logprobs"] = token.top.iter().map(|&(id, logprob)| spellings.entry(id, logprob)).collect();
        entry
    };
    json!({"content": tokens.iter().map(entry).collect::<Vec<_>>(), "refusal": null})
}
