//! `/v1/responses`, without memory: what Codex CLI and SDKs with `store: false` need.
//!
//! - [`request`]: the body, to an [`Ask`](crate::http::turn::Ask)
//! - [`story`]: the answer as output items, as events and in one piece

pub mod request;
pub mod story;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use crate::http::error::Fault;
use crate::http::journal::Served;
use crate::http::sse::{self, Frames, Narrator};
use crate::http::state::{self, App, SharedApp};
use crate::http::turn::{self, Admitted, Turn};
use story::Story;

/// `POST /v1/responses`.
///
/// # Errors
/// If the request can't be understood, kept or taken; nothing was sent then.
pub async fn create(
    State(app): State<SharedApp>,
    Extension(served): Extension<Served>,
    body: Bytes,
) -> Result<Response, Fault> {
    let request = state::off_thread(&app, move |app| request::read(app, &body)).await?;
    let story = Story::new(app.model.id.clone(), request.echo);
    let response = match (turn::admit(&app, request.ask, served), request.stream) {
        (Ok(admitted), true) => sse::respond(app, admitted, story),
        (Ok(admitted), false) => Json(whole(&app, admitted, story).await?).into_response(),
        // Codex looks for this one inside the stream and nowhere else.
        (Err(fault @ Fault::TooLong { .. }), true) => sse::failed(story, &app, &fault),
        (Err(fault), _) => return Err(fault),
    };
    Ok(super::warn(response, &request.warnings))
}

/// The same story, without its events.
async fn whole(app: &App, admitted: Admitted, mut story: Story) -> Result<serde_json::Value, Fault> {
    let mut turn = Turn::new(app, admitted);
    while let Some(event) = turn.next().await? {
        story.tell(app, event, &mut Frames::default());
    }
    Ok(story.response())
}
