//! `/health`: 200 while requests are served; 503 with the load's progress, or with the shard that is missing.
//! `/cluster`: the same body, always 200, for those who look at it rather than act on it, as the web page does.
//!
//! Totals only grow, so that each reader makes its own rates of them; times are means over the engine's last busy half
//! second, however many read them.

use axum::Json;
use axum::extract::State;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::state::{App, SharedApp};
use crate::engine::handle::{ShardStatus, Status};

/// `GET /health`.
pub async fn show(State(app): State<SharedApp>) -> Response {
    let body = Json(body(&app));
    match app.serving() {
        Ok(_) => body.into_response(),
        Err(fault) => {
            let after = fault.retry_after().map_or(1, |after| after.as_secs());
            (fault.status(), [(RETRY_AFTER, after.to_string())], body).into_response()
        }
    }
}

/// `GET /cluster`.
pub async fn cluster(State(app): State<SharedApp>) -> Json<Value> {
    Json(body(&app))
}

fn body(app: &App) -> Value {
    let mut body = json!({
        "status": "ok",
        "model": app.model.id,
        "context_length": app.context(),
        "thinking": app.options.thinking,
        "uptime_seconds": app.started.at.elapsed().as_secs_f64(),
    });
    if let Some(loading) = app.loading() {
        body["status"] = json!("loading");
        body["progress"] = json!(loading.progress);
        body["loading"] = json!(loading.what);
    }
    if let Some(engine) = app.engine() {
        running(&mut body, &engine.status(), engine.limits().kv_bytes);
    }
    if let Err(fault) = app.serving() {
        if body["status"] == "ok" {
            body["status"] = json!("unavailable");
        }
        body["error"] = fault.openai()["error"].take();
    }
    body
}

fn running(body: &mut Value, status: &Status, kv_budget: u64) {
    body["waiting"] = json!(status.waiting);
    body["running"] = json!(status.running);
    body["kv"] = json!({
        "active_bytes": status.kv_active_bytes,
        "cached_bytes": status.kv_cached_bytes,
        "budget_bytes": kv_budget,
    });
    body["tokens"] = json!({
        "prompt": status.prompt_tokens,
        "cached": status.cached_tokens,
        "completion": status.completion_tokens,
    });
    body["exchange_us"] = match status.exchange {
        Some(exchange) => json!({"p50": exchange.p50, "p99": exchange.p99}),
        None => Value::Null,
    };
    body["shards"] = status.shards.iter().map(shard).collect();
}

fn shard(shard: &ShardStatus) -> Value {
    json!({
        "shard": shard.shard.0,
        "experts": shard.range.to_string(),
        "address": shard.address,
        "backend": shard.backend,
        "up": shard.up,
        "resident_bytes": shard.resident_bytes,
        "calls": shard.calls,
        "round_trip_us": shard.round_trip_us,
        "compute_us": shard.compute_us,
    })
}
