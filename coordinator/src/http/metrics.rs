//! `/metrics` in Prometheus' text format; every name ends in its unit.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::state::{App, SharedApp};
use crate::engine::handle::{ShardStatus, Status};
use crate::experts::timing::{Part, Percentiles, Rows};

/// What this room counts.
#[derive(Debug, Default)]
pub struct Counters {
    responses: Mutex<BTreeMap<(String, u16), u64>>,
    first_token: Histogram,
}

impl Counters {
    /// A request's first token came `after` the engine took it.
    pub fn first_token(&self, after: Duration) {
        self.first_token.record(after);
    }

    fn response(&self, route: &str, status: u16) {
        let mut responses = self.responses.lock().unwrap_or_else(PoisonError::into_inner);
        *responses.entry((route.to_owned(), status)).or_default() += 1;
    }
}

/// Durations by size.
#[derive(Debug, Default)]
struct Histogram {
    buckets: [AtomicU64; BOUNDS.len()],
    count: AtomicU64,
    micros: AtomicU64,
}

impl Histogram {
    fn record(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        for (bound, bucket) in BOUNDS.iter().zip(&self.buckets) {
            if seconds <= *bound {
                bucket.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// Counts every response by route and status.
pub async fn count(State(app): State<SharedApp>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let response = next.run(request).await;
    app.counters.response(&route, response.status().as_u16());
    response
}

/// `GET /metrics`.
pub async fn show(State(app): State<SharedApp>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page(&app))
}

fn page(app: &App) -> String {
    let mut page = Page::default();
    page.one(
        "laguna_uptime_seconds",
        "gauge",
        "Time since the server began",
        app.started.at.elapsed().as_secs_f64(),
    );
    page.one(
        "laguna_context_tokens",
        "gauge",
        "Served context, prompt and completion together",
        app.context(),
    );
    page.one("laguna_ready", "gauge", "1 while requests are served", u8::from(app.serving().is_ok()));
    if let Some(engine) = app.engine() {
        let status = engine.status();
        requests(&mut page, &status, engine.limits().kv_bytes);
        shards(&mut page, &status);
        calls(&mut page, &status.shards);
    }
    page.head("laguna_http_responses_total", "counter", "Responses begun, by route and status");
    for ((route, status), count) in
        app.counters.responses.lock().unwrap_or_else(PoisonError::into_inner).iter()
    {
        page.line("laguna_http_responses_total", &[("route", route), ("status", &status.to_string())], count);
    }
    let name = "laguna_first_token_seconds";
    page.head(name, "histogram", "From the queue's door to the first token");
    let first = &app.counters.first_token;
    for (bound, bucket) in BOUNDS.iter().zip(&first.buckets) {
        page.line(&format!("{name}_bucket"), &[("le", &bound.to_string())], bucket.load(Ordering::Relaxed));
    }
    let count = first.count.load(Ordering::Relaxed);
    page.line(&format!("{name}_bucket"), &[("le", "+Inf")], count);
    page.line(&format!("{name}_sum"), &[], first.micros.load(Ordering::Relaxed) as f64 / 1e6);
    page.line(&format!("{name}_count"), &[], count);
    page.0
}

fn requests(page: &mut Page, status: &Status, kv_bytes: u64) {
    page.one("laguna_requests_waiting", "gauge", "Requests in the queue", status.waiting);
    page.one("laguna_requests_running", "gauge", "Requests in prefill or decode", status.running);
    page.one(
        "laguna_kv_active_bytes",
        "gauge",
        "Keys and values of running requests",
        status.kv_active_bytes,
    );
    page.one("laguna_kv_cached_bytes", "gauge", "Keys and values kept for later", status.kv_cached_bytes);
    page.one("laguna_kv_budget_bytes", "gauge", "Keys and values there is room for", kv_bytes);
    page.one("laguna_prompt_tokens_total", "counter", "Prompt tokens run", status.prompt_tokens);
    page.one(
        "laguna_cached_tokens_total",
        "counter",
        "Prompt tokens from the prefix cache",
        status.cached_tokens,
    );
    page.one("laguna_completion_tokens_total", "counter", "Tokens made", status.completion_tokens);
    page.head("laguna_requests_total", "counter", "Requests over, by how they ended");
    for (outcome, count) in ["finished", "failed", "cancelled"].iter().zip(status.requests) {
        page.line("laguna_requests_total", &[("outcome", outcome)], count);
    }
    if let Some(exchange) = status.exchange {
        let name = "laguna_exchange_microseconds";
        page.head(
            name,
            "gauge",
            "One sparse layer from dispatch to sum, and what ran meanwhile, over the last busy half second",
        );
        page.line(name, &[("quantile", "0.5")], exchange.p50);
        page.line(name, &[("quantile", "0.99")], exchange.p99);
    }
}

fn shards(page: &mut Page, status: &Status) {
    let names: Vec<String> = status.shards.iter().map(|shard| shard.shard.0.to_string()).collect();
    let mut each = |name: &str, kind: &str, help: &str, value: &dyn Fn(usize) -> Option<String>| {
        page.head(name, kind, help);
        for (index, shard) in status.shards.iter().enumerate() {
            if let Some(value) = value(index) {
                let labels = [
                    ("shard", names[index].as_str()),
                    ("address", &shard.address),
                    ("backend", &shard.backend),
                ];
                page.line(name, &labels, value);
            }
        }
    };
    let shards = &status.shards;
    each("laguna_shard_up", "gauge", "1 if calls can be sent", &|i| Some(u8::from(shards[i].up).to_string()));
    each("laguna_shard_resident_bytes", "gauge", "Weights in memory", &|i| {
        Some(shards[i].resident_bytes.to_string())
    });
    each("laguna_shard_calls_total", "counter", "Layer calls answered", &|i| {
        Some(shards[i].calls.to_string())
    });
    each(
        "laguna_shard_round_trip_microseconds",
        "gauge",
        "Mean time of one layer's call, wire and arithmetic, over the last busy half second",
        &|i| shards[i].round_trip_us.map(|us| us.to_string()),
    );
    each(
        "laguna_shard_compute_microseconds",
        "gauge",
        "Mean time of one layer's arithmetic on the shard, over the last busy half second",
        &|i| shards[i].compute_us.map(|us| us.to_string()),
    );
}

/// Every shard's calls by size. Those of a size that never came are left out.
fn calls(page: &mut Page, shards: &[ShardStatus]) {
    let name = "laguna_shard_call_microseconds";
    page.head(
        name,
        "histogram",
        "One layer's call, by rows (one, few: up to 16, many) and part (round_trip is the sum of the others)",
    );
    for shard in shards {
        let id = shard.shard.0.to_string();
        for (rows, part) in Rows::ALL.into_iter().flat_map(|rows| Part::ALL.map(|part| (rows, part))) {
            let counts = shard.by_size.of(rows, part).counts();
            if counts.count() == 0 {
                continue;
            }
            let labels = [("shard", id.as_str()), ("rows", rows.label()), ("part", part.label())];
            let mut bucket = |bound: &str, count: u64| {
                let labels: Vec<_> = labels.into_iter().chain([("le", bound)]).collect();
                page.line(&format!("{name}_bucket"), &labels, count);
            };
            for power in POWERS {
                bucket(&(1_u64 << power).to_string(), counts.within(power));
            }
            bucket("+Inf", counts.count());
            page.line(&format!("{name}_sum"), &labels, counts.sum_us());
            page.line(&format!("{name}_count"), &labels, counts.count());
        }
    }
    let name = "laguna_shard_call_recent_microseconds";
    page.head(name, "gauge", "The same over the last hundred calls or more: finer than the buckets");
    for shard in shards {
        let id = shard.shard.0.to_string();
        for Percentiles { rows, part, p50, p99, .. } in &shard.percentiles {
            for (quantile, value) in [("0.5", p50), ("0.99", p99)] {
                let labels = [
                    ("shard", id.as_str()),
                    ("rows", rows.label()),
                    ("part", part.label()),
                    ("quantile", quantile),
                ];
                page.line(name, &labels, value);
            }
        }
    }
}

#[derive(Default)]
struct Page(String);

impl Page {
    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.head(name, kind, help);
        self.line(name, &[], value);
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string can't fail, here and below.
        let _ = writeln!(self.0, "# HELP {name} {help}.\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        if !labels.is_empty() {
            let escaped = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let labels: Vec<String> = labels.iter().map(|(k, v)| format!("{k}=\"{}\"", escaped(v))).collect();
            let _ = write!(self.0, "{{{}}}", labels.join(","));
        }
        let _ = writeln!(self.0, " {value}");
    }
}

/// Upper bounds in seconds: from a cached turn to a cold prompt of a hundred thousand tokens.
const BOUNDS: [f64; 10] = [0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0, 600.0];

/// Upper bounds of a call's parts, as powers of two of a microsecond: 8 µs to 17 s.
const POWERS: RangeInclusive<u32> = 3..=24;
