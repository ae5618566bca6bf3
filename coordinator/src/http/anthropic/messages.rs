//! `/v1/messages`.

use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use super::blocks::{self, Blocks};
use super::request;
use crate::http::error::Fault;
use crate::http::journal::Served;
use crate::http::state::{self, SharedApp};
use crate::http::turn::{self, Turn};
use crate::http::{ids, openai, sse};

/// `POST /v1/messages`.
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
    let id = ids::unique("msg_");
    let response = if request.stream {
        let narrator = Blocks::new(id, app.model.id.clone(), admitted.prompt_tokens);
        sse::respond(app, admitted, narrator)
    } else {
        let whole = Turn::new(&app, admitted).whole().await?;
        Json(blocks::whole(&id, &app.model.id, whole)).into_response()
    };
    Ok(openai::warn(response, &request.warnings))
}
