//! `/health`: 200 while requests are served; 503 with the load's progress, or with the shard that is missing.

use axum::Json;
use axum::extract::State;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::state::{App, SharedApp};

/// `GET /health`.
pub async fn show(State(app): State<SharedApp>) -> Response {
    let mut body = json!({"status": "ok", "model": app.model.id, "context_length": app.context()});
    if let Some(loading) = app.loading() {
        body["status"] = json!("loading");
        body["progress"] = json!(loading.progress);
        body["loading"] = json!(loading.what);
    }
    if let Some(engine) = app.engine() {
        let status = engine.status();
        body["waiting"] = json!(status.waiting);
        body["running"] = json!(status.running);
        body["shards"] = shards(&app);
    }
    match app.serving() {
        Ok(_) => Json(body).into_response(),
        Err(fault) => {
            if body["status"] == "ok" {
                body["status"] = json!("unavailable");
            }
            body["error"] = fault.openai()["error"].take();
            let after = fault.retry_after().map_or(1, |after| after.as_secs());
            (fault.status(), [(RETRY_AFTER, after.to_string())], Json(body)).into_response()
        }
    }
}

fn shards(app: &App) -> Value {
    let shards = app.engine().map(|engine| engine.status().shards).unwrap_or_default();
    shards
        .iter()
        .map(|shard| {
            json!({
                "shard": shard.shard.0,
                "experts": shard.range.to_string(),
                "address": shard.address,
                "backend": shard.backend,
                "up": shard.up,
                "resident_bytes": shard.resident_bytes,
                "round_trip_us": shard.round_trip_us,
                "compute_us": shard.compute_us,
            })
        })
        .collect()
}

/// `GET /` and `HEAD /`: somebody looks whether the server is there.
pub async fn root(State(app): State<SharedApp>) -> String {
    format!(
        "{} is served here.\nOpenAI: /v1/chat/completions, /v1/completions, /v1/responses, /v1/models\n\
         Anthropic: /v1/messages, /v1/messages/count_tokens\nState: /health, /metrics\n",
        app.model.id
    )
}
