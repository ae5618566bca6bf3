//! Who is let in, and what anybody may see.

use axum::body::Body;
use axum::http::Request;
use axum::http::request::Builder;
use serde_json::json;

use super::rig::{Answer, Rig, asking};
use crate::engine::handle::Status;
use crate::http::auth::Keys;
use crate::http::guard::Access;
use crate::http::testing::{Line, limits};

fn rig(keys: Keys, access: Access) -> Rig {
    let change = |options: &mut crate::http::state::Options| {
        options.keys = keys;
        options.access = access;
    };
    Rig::with(change, limits(2048, 8), Status::default(), |_| vec![Line::Say(vec![])])
}

async fn send(rig: &Rig, request: Builder) -> Answer {
    rig.send(request.body(Body::from(asking(json!({"max_tokens": 3})).to_string())).unwrap()).await
}

#[tokio::test]
async fn keys_open_under_both_names_and_nothing_else_does() {
    let rig = rig(Keys::new(["sesame"]), Access::default());
    for path in ["/v1/chat/completions", "/v1/messages"] {
        let with = |name: &str, key: &str| Request::post(path).header(name, key);
        assert_eq!(send(&rig, with("authorization", "Bearer sesame")).await.status, 200);
        assert_eq!(send(&rig, with("x-api-key", "sesame")).await.status, 200);
        for request in [with("x-api-key", "sesam"), Request::post(path)] {
            let answer = send(&rig, request).await;
            assert_eq!(
                (answer.status.as_u16(), &answer.json()["error"]["type"]),
                (401, &json!("authentication_error"))
            );
        }
    }
    assert_eq!(rig.get("/v1/models").await.status, 401);
    assert_eq!(rig.get("/metrics").await.status, 401);
    for probe in [Request::head("/"), Request::get("/health")] {
        assert_eq!(send(&rig, probe).await.status, 200);
    }
}

#[tokio::test]
async fn report_48_foreign_hosts_and_origins_are_turned_away() {
    let rig =
        rig(Keys::default(), Access { origins: vec!["http://app.local".to_owned()], ..Access::default() });
    let post = |host: &str| Request::post("/v1/chat/completions").header("host", host);
    for host in ["127.0.0.1:8080", "localhost:8080", "[::1]:8080"] {
        assert_eq!(send(&rig, post(host)).await.status, 200, "{host}");
    }
    let answer = send(&rig, post("evil.example")).await;
    let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(answer.status, 403);
    assert!(message.contains("Host") && message.contains("--allow-host"), "{message}");
    let answer = send(&rig, post("localhost").header("origin", "http://evil.example")).await;
    let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(answer.status, 403);
    assert!(message.contains("Origin") && message.contains("--cors http://evil.example"), "{message}");
    let answer = send(&rig, post("localhost").header("origin", "http://app.local")).await;
    assert_eq!(answer.headers["access-control-allow-origin"], "http://app.local");
    let own = post("localhost:8080").header("origin", "http://localhost:8080");
    assert_eq!(send(&rig, own).await.status, 200);
}

#[tokio::test]
async fn preflights_need_no_key_and_mirror_what_is_asked() {
    let access = Access { origins: vec!["*".to_owned()], ..Access::default() };
    let rig = rig(Keys::new(["sesame"]), access);
    let preflight = Request::options("/v1/messages")
        .header("origin", "http://app.local")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization,x-stainless-os");
    let answer = send(&rig, preflight).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["access-control-allow-origin"], "*");
    assert_eq!(answer.headers["access-control-allow-headers"], "authorization,x-stainless-os");
}

#[tokio::test]
async fn metrics_name_their_units() {
    let rig = Rig::saying("a");
    rig.chat(json!({})).await;
    rig.post("/v1/messages", json!({})).await;
    let answer = rig.get("/metrics").await;
    assert!(answer.headers["content-type"].to_str().unwrap().starts_with("text/plain"));
    for line in [
        "laguna_http_responses_total{route=\"/v1/chat/completions\",status=\"200\"} 1",
        "laguna_http_responses_total{route=\"/v1/messages\",status=\"400\"} 1",
        "laguna_first_token_seconds_count 1",
        "laguna_ready 1",
        "laguna_context_tokens 2048",
    ] {
        assert!(answer.text.lines().any(|have| have == line), "{line}\n{}", answer.text);
    }
}
