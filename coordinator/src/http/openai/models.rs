//! `/v1/models`: one model, and the context it is served with, under every name clients look for. Anthropic's clients
//! read the same object.

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use crate::chat::template::WallTime;
use crate::http::error::Fault;
use crate::http::state::{App, SharedApp};

/// `GET /v1/models`.
pub async fn list(State(app): State<SharedApp>) -> Json<Value> {
    let id = &app.model.id;
    Json(json!({
        "object": "list",
        "data": [describe(&app)],
        "has_more": false,
        "first_id": id,
        "last_id": id,
    }))
}

/// `GET /v1/models/{name}`.
///
/// # Errors
/// [`Fault::NotFound`] for a name that is neither the model's id nor an alias.
pub async fn show(State(app): State<SharedApp>, Path(name): Path<String>) -> Result<Json<Value>, Fault> {
    let model = &app.model;
    if name == model.id || model.aliases.contains(&name) {
        return Ok(Json(describe(&app)));
    }
    Err(Fault::NotFound(format!("model {name:?} is not served here; {:?} is", model.id)))
}

fn describe(app: &App) -> Value {
    let context = app.context();
    let seconds = app.started.unix;
    let date = WallTime::new(i64::try_from(seconds).unwrap_or(i64::MAX), 0).format("%Y-%m-%dT%H:%M:%SZ");
    json!({
        "id": app.model.id,
        "object": "model",
        "type": "model",
        "created": seconds,
        "created_at": date,
        "owned_by": "poolside",
        "display_name": app.model.id,
        "max_model_len": context,
        "context_length": context,
        "meta": {"n_ctx": context, "n_ctx_train": app.model.trained_context},
    })
}
