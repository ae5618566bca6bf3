//! Looking at the server: the page, its state, the names of requests.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use laguna_shared::ids::{ExpertRange, ShardId};
use laguna_shared::wire::WorkerTimes;
use serde_json::json;

use super::rig::{Answer, Rig, read, state};
use crate::engine::handle::{ShardStatus, Status};
use crate::experts::timing::{ExchangeSummary, ShardTimes};
use crate::http::auth::Keys;
use crate::http::page::POLICY;
use crate::http::state::Loading;
use crate::http::testing::{Line, limits};

fn browser(path: &str) -> Request<Body> {
    Request::get(path).header("accept", "text/html,application/xhtml+xml").body(Body::empty()).unwrap()
}

fn status(trouble: Option<&str>) -> Status {
    let mut times = ShardTimes::default();
    let micros = std::time::Duration::from_micros;
    times.record(1, micros(20), WorkerTimes { queue: micros(2), compute: micros(8) });
    times.record(300, micros(900), WorkerTimes { queue: micros(0), compute: micros(700) });
    let shard = ShardStatus {
        shard: ShardId(1),
        range: ExpertRange::new(0, 128),
        address: "10.0.5.2:4433".to_owned(),
        backend: "mlx".to_owned(),
        resident_bytes: 7,
        up: trouble.is_none(),
        calls: 9,
        round_trip_us: Some(120.5),
        compute_us: Some(80.5),
        percentiles: times.recent(),
        by_size: times.by_size,
    };
    Status {
        running: 2,
        kv_active_bytes: 3,
        kv_cached_bytes: 4,
        prompt_tokens: 5,
        cached_tokens: 6,
        completion_tokens: 8,
        exchange: Some(ExchangeSummary { count: 3, p50: 1.5, p99: 2.5 }),
        shards: vec![shard],
        trouble: trouble.map(str::to_owned),
        ..Status::default()
    }
}

#[tokio::test]
async fn the_page_and_its_parts_need_no_key_and_fetch_nothing_from_elsewhere() {
    let change = |options: &mut crate::http::state::Options| options.keys = Keys::new(["sesame"]);
    let rig = Rig::with(change, limits(2048, 8), Status::default(), |_| vec![Line::Say(vec![])]);
    let page = rig.send(browser("/")).await;
    assert_eq!(page.headers["content-type"], "text/html; charset=utf-8");
    assert_eq!(page.headers["content-security-policy"], POLICY);
    assert!(!POLICY.contains("unsafe") && !POLICY.contains('*'), "{POLICY}");
    let parts: Vec<&str> = page.text.split('"').filter(|text| text.starts_with("/page/")).collect();
    assert!(parts.len() >= 3, "{parts:?}");
    let imported = ["api", "message", "markdown", "cluster"].map(|name| format!("/page/{name}.js"));
    for part in parts.into_iter().chain(imported.iter().map(String::as_str)) {
        let answer = rig.get(part).await;
        assert_eq!(answer.status, 200, "{part}");
        assert_eq!(answer.headers["x-content-type-options"], "nosniff");
        // Ways to make markup out of text.
        for word in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "http:"] {
            let icon = part.ends_with(".svg") && word == "http:";
            assert!(icon || !answer.text.contains(word), "{part}: {word}");
        }
    }
    assert_eq!(rig.get("/page/nothing.js").await.status, 404);
    assert_eq!(rig.get("/page/..%2f..%2fauth.rs").await.status, 404);
    let plain = rig.get("/").await;
    assert!(plain.text.contains("/v1/chat/completions") && !plain.text.contains('<'), "{}", plain.text);
    assert_eq!(rig.get("/v1/models").await.status, 401);
}

#[tokio::test]
async fn health_tells_everything_that_the_page_shows() {
    let rig = Rig::with(|_| {}, limits(2048, 8), status(None), |_| Vec::new());
    let health = rig.get("/health").await;
    let body = health.json();
    assert_eq!((health.status.as_u16(), &body["status"]), (200, &json!("ok")));
    assert_eq!((&body["running"], &body["waiting"]), (&json!(2), &json!(0)));
    assert_eq!(body["kv"], json!({"active_bytes": 3, "cached_bytes": 4, "budget_bytes": u64::MAX}));
    assert_eq!(body["tokens"], json!({"prompt": 5, "cached": 6, "completion": 8}));
    assert_eq!(body["exchange_us"], json!({"p50": 1.5, "p99": 2.5}));
    let shard = json!({
        "shard": 1, "experts": "0..128", "address": "10.0.5.2:4433", "backend": "mlx", "up": true,
        "resident_bytes": 7, "calls": 9, "round_trip_us": 120.5, "compute_us": 80.5,
    });
    assert_eq!(body["shards"], json!([shard]));
    // However many look, all see the same.
    for _ in 0..3 {
        assert_eq!(rig.get("/cluster").await.json()["shards"], body["shards"]);
        assert!(rig.get("/metrics").await.text.contains("laguna_shard_round_trip_microseconds{"));
    }
}

#[tokio::test]
async fn metrics_tell_where_each_shards_calls_spend_their_time() {
    let rig = Rig::with(|_| {}, limits(2048, 8), status(None), |_| Vec::new());
    let page = rig.get("/metrics").await.text;
    let name = "laguna_shard_call_microseconds";
    let of = |part: &str| format!("shard=\"1\",rows=\"one\",part=\"{part}\"");
    for line in [
        format!("# TYPE {name} histogram"),
        format!("{name}_bucket{{{},le=\"16\"}} 0", of("round_trip")),
        format!("{name}_bucket{{{},le=\"32\"}} 1", of("round_trip")),
        format!("{name}_bucket{{{},le=\"+Inf\"}} 1", of("round_trip")),
        format!("{name}_bucket{{{},le=\"8\"}} 1", of("compute")),
        format!("{name}_sum{{{}}} 10", of("wire")),
        format!("{name}_count{{{}}} 1", of("queue")),
        format!("{name}_sum{{shard=\"1\",rows=\"many\",part=\"compute\"}} 700"),
        format!("laguna_shard_call_recent_microseconds{{{},quantile=\"0.99\"}} 7.5", of("compute")),
    ] {
        assert!(page.lines().any(|have| have == line), "{line}\n{page}");
    }
    assert!(!page.contains("rows=\"few\""), "{page}");
}

#[tokio::test]
async fn trouble_is_503_in_health_and_plain_to_see_in_cluster() {
    let trouble = "shard 1 (10.0.5.2:4433): worker is gone";
    let rig = Rig::with(|_| {}, limits(2048, 8), status(Some(trouble)), |_| Vec::new());
    let (health, cluster) = (rig.get("/health").await, rig.get("/cluster").await);
    assert_eq!((health.status.as_u16(), cluster.status.as_u16()), (503, 200));
    for answer in [health, cluster] {
        let body = answer.json();
        assert_eq!((&body["status"], &body["error"]["message"]), (&json!("unavailable"), &json!(trouble)));
        assert_eq!(body["shards"][0]["up"], false);
    }
}

#[tokio::test]
async fn a_load_is_told_with_its_share_and_what() {
    let app = Arc::new(state(|_| {}));
    let get = async |path: &str| -> Answer {
        let request = Request::get(path).body(Body::empty()).unwrap();
        read(tower::ServiceExt::oneshot(crate::http::app(app.clone()), request).await.unwrap()).await
    };
    app.set_loading(Loading { progress: Some(0.25), what: "shard 0".to_owned() });
    let (health, cluster) = (get("/health").await, get("/cluster").await);
    assert_eq!((health.status.as_u16(), cluster.status.as_u16()), (503, 200));
    for answer in [health, cluster] {
        let body = answer.json();
        assert_eq!((&body["status"], &body["progress"]), (&json!("loading"), &json!(0.25)));
        assert_eq!(body["loading"], "shard 0");
        assert_eq!(body["error"]["message"], "the model is loading (25 %): shard 0");
    }
}

#[tokio::test]
async fn every_answer_names_its_request_once() {
    let rig = Rig::saying("a");
    let mut names = Vec::new();
    for _ in 0..2 {
        let openai = rig.chat(json!({})).await;
        let anthropic = rig.post("/v1/messages", json!({})).await;
        assert_eq!(anthropic.status, 400);
        for (answer, header) in [(openai, "x-request-id"), (anthropic, "request-id")] {
            names.push(answer.headers[header].to_str().unwrap().to_owned());
        }
    }
    assert!(names.iter().all(|name| name.starts_with("req_")), "{names:?}");
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 4, "{names:?}");
}
