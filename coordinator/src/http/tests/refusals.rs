//! What is turned away, and in which words.

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

use super::rig::{Rig, asking, state, tool};
use crate::engine::handle::Status;
use crate::http::testing::{limits, parrot};

async fn refused(body: Value) -> Value {
    let answer = Rig::saying("never").chat(body.clone()).await;
    assert_eq!(answer.status, 400, "{body}: {}", answer.text);
    assert_eq!(answer.headers["content-type"], "application/json");
    let error = answer.json()["error"].clone();
    let keys: Vec<&String> = error.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["message", "type", "param", "code"]);
    error
}

#[tokio::test]
async fn bad_fields_are_named() {
    let user = json!({"role": "user", "content": "a"});
    let error = refused(json!({"messages": [user, user, user, {"role": "user", "content": 3}]})).await;
    assert_eq!(
        error,
        json!({
            "message": "messages[3].content: expected string or array, got number",
            "type": "invalid_request_error", "param": "messages[3].content", "code": null,
        })
    );
    for (body, param) in [
        (json!({"temperature": "hot"}), json!("temperature")),
        (json!({"top_p": 1.5}), json!("top_p")),
        (json!({"max_tokens": 0}), json!("max_tokens")),
        (json!({"stop": [1]}), json!("stop[0]")),
        (json!({"logit_bias": {"5000": 1}}), json!("logit_bias.5000")),
        (json!({"stream_options": 1}), json!("stream_options")),
        (json!({"messages": []}), json!("messages")),
        (json!({"messages": null}), json!("messages")),
        (json!({"tools": [{"type": "function"}]}), json!("tools[0].name")),
        (json!({"chat_template_kwargs": {"messages": []}}), json!("messages")),
    ] {
        assert_eq!(refused(body.clone()).await["param"], param, "{body}");
    }
}

#[tokio::test]
async fn bad_json_is_told_from_a_bad_body() {
    let rig = Rig::saying("never");
    for (body, start) in [("{", "the body is not JSON"), ("[]", "the body: expected object, got array")] {
        let request = Request::post("/v1/chat/completions").body(Body::from(body)).unwrap();
        let answer = rig.send(request).await;
        assert_eq!(answer.status, 400);
        assert!(answer.json()["error"]["message"].as_str().unwrap().starts_with(start), "{}", answer.text);
    }
}

#[tokio::test]
async fn what_changes_the_result_is_never_ignored() {
    for (field, value) in [
        ("n", json!(2)),
        ("audio", json!({})),
        ("modalities", json!(["text", "audio"])),
        ("functions", json!([{}])),
        ("guided_json", json!({"type": "object"})),
        ("use_beam_search", json!(true)),
    ] {
        let error = refused(json!({field: value})).await;
        assert_eq!((&error["code"], &error["param"]), (&json!("unsupported_parameter"), &json!(field)));
    }
    for (field, value) in [("n", json!(1)), ("modalities", json!(["text"])), ("audio", json!(null))] {
        assert_eq!(Rig::saying("a").chat(json!({field: value})).await.status, 200, "{field}");
    }
}

#[tokio::test]
async fn report_19_every_shape_of_tool_choice_is_understood() {
    let with = |choice: Value| json!({"tools": [tool("f")], "tool_choice": choice});
    let named = json!({"type": "function", "function": {"name": "f"}});
    let allowed = json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named]}});
    for choice in [json!("auto"), json!("none"), json!(null), allowed] {
        assert_eq!(Rig::saying("a").chat(with(choice.clone())).await.status, 200, "{choice}");
    }
    refused(with(json!(3))).await;
}

#[tokio::test]
async fn report_33_unknown_hints_are_ignored() {
    let hints = json!({
        "prompt_cache_key": "x", "store": true, "metadata": {"a": 1}, "service_tier": "auto", "user": "u",
        "parallel_tool_calls": true, "verbosity": "low", "something_new": [1],
    });
    assert_eq!(Rig::saying("a").chat(hints).await.status, 200);
}

#[tokio::test]
async fn report_35_nothing_is_truncated() {
    let long = "word ".repeat(3000);
    let rig = Rig::saying("never");
    let answer = rig.chat(json!({"messages": [{"role": "user", "content": long}], "max_tokens": 7})).await;
    assert_eq!(answer.status, 400);
    assert!(rig.seen.prompts.lock().unwrap().is_empty());
}

#[tokio::test]
async fn report_36_overflow_is_worded_as_clients_look_for_it() {
    let long = json!([{"role": "user", "content": "word ".repeat(3000)}]);
    for stream in [false, true] {
        let error = refused(json!({"messages": long, "max_tokens": 7, "stream": stream})).await;
        assert_eq!(error["code"], "context_length_exceeded");
        let message = error["message"].as_str().unwrap();
        assert!(
            message
                .starts_with("This model's maximum context length is 2048 tokens. However, you requested ")
        );
        assert!(
            message.ends_with(", 7 in the completion).") || message.ends_with(" 7 in the completion)."),
            "{message}"
        );
    }
    let answer = Rig::saying("never").post("/v1/messages", json!({"messages": long, "max_tokens": 7})).await;
    let body = answer.json();
    assert_eq!((answer.status.as_u16(), &body["error"]["type"]), (400, &json!("invalid_request_error")));
    let message = body["error"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("prompt is too long: ") && message.ends_with(" tokens > 2048 maximum"),
        "{message}"
    );
}

#[tokio::test]
async fn the_context_is_what_keys_and_values_leave() {
    let mut small = limits(2048, 8);
    (small.kv_bytes, small.kv_fixed, small.kv_per_token) = (1_000, 400, 20);
    let rig = Rig::with(|_| {}, small, Status::default(), |_| vec![]);
    assert_eq!(rig.get("/v1/models").await.json()["data"][0]["max_model_len"], 30);
    let error = rig.chat(json!({"messages": [{"role": "user", "content": "word ".repeat(40)}]})).await.json();
    assert!(error["error"]["message"].as_str().unwrap().contains("context length is 30 tokens"));
}

#[tokio::test]
async fn report_48_a_full_queue_answers_at_once() {
    let rig = Rig::with(|_| {}, limits(2048, 0), Status::default(), |_| vec![]);
    let answer = rig.chat(json!({"stream": true})).await;
    assert_eq!(answer.status, 429);
    assert_eq!(answer.headers["retry-after"], "2");
    let error = &answer.json()["error"];
    assert_eq!((&error["type"], &error["code"]), (&json!("rate_limit_error"), &json!("queue_full")));
    let body = asking(json!({"max_tokens": 5}));
    let answer = rig.post("/v1/messages", body).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]["type"]), (429, &json!("rate_limit_error")));
}

#[tokio::test]
async fn report_46_a_missing_shard_is_named() {
    let trouble = "shard 1 (studio-b, 10.0.5.2:4433) has been unreachable for 12 s";
    let status = Status { trouble: Some(trouble.to_owned()), ..Status::default() };
    let rig = Rig::with(|_| {}, limits(2048, 8), status, |_| vec![]);
    for answer in [rig.chat(json!({})).await, rig.get("/health").await] {
        assert_eq!(answer.status, 503);
        assert!(answer.headers.contains_key("retry-after"));
        assert_eq!(answer.json()["error"]["message"], trouble);
    }
}

#[tokio::test]
async fn while_loading_everything_that_needs_the_model_says_so() {
    use crate::http::state::Loading;
    let app = std::sync::Arc::new(state(|_| {}));
    app.set_loading(Loading { progress: Some(0.42), what: "trunk".to_owned() });
    let (engine, seen) = parrot(limits(2048, 8), Status::default(), |_| vec![]);
    let rig = Rig { app, seen };
    let answer = rig.get("/health").await;
    assert_eq!(answer.status, 503);
    let body = answer.json();
    assert_eq!(body["status"], "loading");
    assert!((body["progress"].as_f64().unwrap() - 0.42).abs() < 1e-6);
    let answer = rig.chat(json!({})).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]["code"]), (503, &json!("loading")));
    assert_eq!(rig.get("/v1/models").await.status, 200);
    rig.app.ready(engine);
    assert_eq!(rig.get("/health").await.json()["status"], "ok");
}

#[tokio::test]
async fn unknown_routes_methods_and_models() {
    let rig = Rig::saying("a");
    let answer = rig.post("/v1/nothing", json!({})).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]["type"]), (404, &json!("not_found_error")));
    let answer = rig.get("/v1/messages/nothing").await;
    assert_eq!((answer.status.as_u16(), &answer.json()["type"]), (404, &json!("error")));
    assert_eq!(rig.get("/v1/chat/completions").await.status, 405);
    assert_eq!(rig.get("/v1/models/other").await.status, 404);
}

#[tokio::test]
async fn report_38_any_name_reaches_the_one_model() {
    let rig = Rig::saying("a");
    for name in ["laguna-nano", "nano", "gpt-5", "claude-sonnet-4-5", "poolside/Laguna"] {
        let answer = rig.chat(json!({"model": name})).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["model"]), (200, &json!("laguna-nano")));
    }
    assert_eq!(rig.get("/v1/models/nano").await.json()["id"], "laguna-nano");
}

#[tokio::test]
async fn report_37_the_context_length_can_be_found() {
    let model = &Rig::saying("a").get("/v1/models").await.json()["data"][0];
    assert_eq!(model["id"], "laguna-nano");
    for value in [&model["max_model_len"], &model["context_length"], &model["meta"]["n_ctx"]] {
        assert_eq!(value, 2048);
    }
}

#[tokio::test]
async fn report_39_bodies_of_several_mib_are_taken_and_too_large_ones_named() {
    let rig = Rig::saying("a");
    let hint = "x".repeat(5 << 20);
    assert_eq!(rig.chat(json!({"metadata": {"x": hint}})).await.status, 200);
    let rig = Rig::with(|o| o.body_limit = 1000, limits(2048, 8), Status::default(), |_| vec![]);
    let body = asking(json!({"metadata": {"x": "y".repeat(2000)}})).to_string();
    let chunked = Body::from_stream(futures_util::stream::iter([Ok::<_, std::io::Error>(body.clone())]));
    for body in [Body::from(body), chunked] {
        let answer = rig.send(Request::post("/v1/messages").body(body).unwrap()).await;
        assert_eq!(answer.status, 413);
        assert_eq!(
            answer.json()["error"],
            json!({"type": "request_too_large", "message": "the request body is larger than 1000 bytes"})
        );
    }
}
