//! Chat completions: the stream line by line, and that it says the same as the answer in one piece.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::rig::{Rig, ids, tool};
use crate::http::state::ReasoningField;
use crate::http::testing::{Line, limits};

#[tokio::test]
async fn the_stream_line_by_line() {
    let rig = Rig::saying("Hello there");
    let answer = rig.chat(json!({"stream": true, "stream_options": {"include_usage": true}})).await;
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    assert_eq!(answer.headers["cache-control"], "no-cache");
    assert_eq!(answer.headers["x-accel-buffering"], "no");
    let events = answer.events();
    for event in &events {
        for name in ["id", "created", "model", "object"] {
            assert_eq!(event[name], events[0][name], "{name}");
        }
        assert!(event["choices"].is_array());
    }
    assert_eq!(events[0]["object"], "chat.completion.chunk");
    assert_eq!(events[0]["model"], "laguna-nano");
    let first = &events[0]["choices"][0];
    assert_eq!(first["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!(first["finish_reason"], Value::Null);
    let (usage, rest) = events.split_last().unwrap();
    assert!(rest.iter().all(|event| event["usage"].is_null() && event.get("usage").is_some()));
    assert_eq!(usage["choices"], json!([]));
    let completion = ids("Hello there").len() + 1;
    assert_eq!(usage["usage"]["completion_tokens"], completion);
    let total = usage["usage"]["prompt_tokens"].as_u64().unwrap() + completion as u64;
    assert_eq!(usage["usage"]["total_tokens"], total);
    let finish = &rest.last().unwrap()["choices"][0];
    assert_eq!((&finish["delta"], &finish["finish_reason"]), (&json!({}), &json!("stop")));
    assert!(answer.text.ends_with("data: [DONE]\n\n"));
    assert_eq!(answer.joined()["content"], "Hello there");
}

#[tokio::test]
async fn report_09_there_is_always_exactly_one_finish_chunk() {
    for text in ["", "a", "<think>", "<tool_call>"] {
        let answer = Rig::saying(text).chat(json!({"stream": true})).await;
        let finishes =
            answer.events().iter().filter(|e| e["choices"][0]["finish_reason"].is_string()).count();
        assert_eq!(finishes, 1, "{text:?}: {}", answer.text);
    }
}

#[tokio::test]
async fn report_10_usage_comes_only_when_asked_for() {
    let answer = Rig::saying("a").chat(json!({"stream": true})).await;
    assert!(
        answer
            .events()
            .iter()
            .all(|e| e.get("usage").is_none() && e["choices"].as_array().unwrap().len() == 1)
    );
}

#[tokio::test]
async fn report_13_characters_split_over_tokens_stay_whole() {
    let text = "naïve 🌊🏝️ こんにちは";
    let answer = Rig::saying(text).chat(json!({"stream": true})).await;
    assert!(!answer.text.contains('\u{fffd}'), "{}", answer.text);
    assert_eq!(answer.joined()["content"], text);
    // Bytes that never become a character are flushed at the end.
    let mut cut = ids("ok 🌊");
    cut.pop();
    let rig = Rig::new(move |_| vec![Line::Say(cut.clone())]);
    let content = rig.chat(json!({"stream": true})).await.joined()["content"].as_str().unwrap().to_owned();
    assert!(content.starts_with("ok ") && content.ends_with('\u{fffd}'), "{content:?}");
}

#[tokio::test]
async fn report_14_stop_strings_over_tokens_never_leak() {
    for (stop, kept) in
        [(json!("STOP"), "go "), (json!(["x", "TOP on"]), "go S"), (json!("STOPS"), "go STOP on")]
    {
        for stream in [false, true] {
            let rig = Rig::saying("go STOP on");
            let answer = rig.chat(json!({"stop": stop, "stream": stream})).await;
            let content = if stream {
                answer.joined()["content"].clone()
            } else {
                answer.json()["choices"][0]["message"]["content"].clone()
            };
            assert_eq!(content, kept, "{stop}");
        }
    }
}

#[tokio::test]
async fn report_15_an_error_after_200_is_told_and_the_stream_closed() {
    use crate::engine::request::EngineError;
    let rig = Rig::new(|_| {
        let lost = "shard 1 (studio-b, 10.0.5.2:4433) has gone away";
        vec![Line::Say(ids("some")), Line::Fail(EngineError::WorkerLost(lost.to_owned()))]
    });
    let answer = rig.chat(json!({"stream": true})).await;
    let events = answer.events();
    let error = &events.last().unwrap()["error"];
    assert_eq!((&error["code"], &error["type"]), (&json!("worker_lost"), &json!("server_error")));
    assert!(!answer.text.contains("[DONE]") && answer.joined()["finish_reason"].is_null());
    // In one piece it is a status.
    let answer = rig.chat(json!({})).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]["code"]), (503, &json!("worker_lost")));
    assert!(answer.headers.contains_key("retry-after"));
}

#[tokio::test]
async fn an_engine_that_vanishes_is_an_error_too() {
    let rig = Rig::new(|_| vec![Line::Say(ids("some")), Line::Vanish]);
    let answer = rig.chat(json!({"stream": true})).await;
    assert_eq!(answer.events().last().unwrap()["error"]["type"], "server_error");
    assert_eq!(rig.chat(json!({})).await.status, 500);
}

#[tokio::test]
async fn report_18_progress_of_the_prompt_on_request() {
    let rig = Rig::new(|_| vec![Line::Prefill { processed: 5, cached: 3 }, Line::Say(ids("a"))]);
    let answer = rig.chat(json!({"stream": true, "return_progress": true})).await;
    let events = answer.events();
    let progress = events.iter().find_map(|event| event.get("prompt_progress")).expect("progress");
    assert_eq!((&progress["cache"], &progress["processed"]), (&json!(3), &json!(5)));
    assert!(!rig.chat(json!({"stream": true})).await.text.contains("prompt_progress"));
    assert_eq!(rig.chat(json!({})).await.json()["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
}

#[tokio::test]
async fn report_34_what_the_budget_cuts_says_length() {
    let rig = Rig::saying("one two three four five six");
    for field in ["max_tokens", "max_completion_tokens"] {
        let answer = rig.chat(json!({field: 3})).await.json();
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        assert_eq!(answer["usage"]["completion_tokens"], 3);
    }
    assert_eq!(rig.chat(json!({})).await.json()["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn reasoning_goes_where_the_flag_says() {
    for (field, names) in [
        (ReasoningField::ReasoningContent, vec!["reasoning_content"]),
        (ReasoningField::Reasoning, vec!["reasoning"]),
        (ReasoningField::Both, vec!["reasoning_content", "reasoning"]),
    ] {
        let said = ids("because</think>so");
        let rig = Rig::with(
            |o| o.reasoning_field = field,
            limits(2048, 8),
            <_>::default(),
            move |_| vec![Line::Say(said.clone())],
        );
        let answer = rig.chat(json!({"reasoning_effort": "high"})).await.json();
        let message = &answer["choices"][0]["message"];
        assert_eq!(message["content"], "so");
        for name in ["reasoning_content", "reasoning"] {
            let expected = if names.contains(&name) { json!("because") } else { Value::Null };
            assert_eq!(message[name], expected, "{field:?}");
        }
        let reasoning = ids("because</think>").len();
        assert_eq!(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], reasoning);
    }
}

#[tokio::test]
async fn logprobs_follow_the_tokens() {
    let rig = Rig::saying("go STOP on");
    for stream in [false, true] {
        let body = json!({"logprobs": true, "top_logprobs": 2, "stop": "STOP", "stream": stream});
        let answer = rig.chat(body).await;
        let choices: Vec<Value> = if stream { answer.events() } else { vec![answer.json()] }
            .iter()
            .map(|e| e["choices"][0].clone())
            .collect();
        let tokens: Vec<&Value> =
            choices.iter().flat_map(|c| c["logprobs"]["content"].as_array().into_iter().flatten()).collect();
        let text: String = tokens.iter().map(|token| token["token"].as_str().unwrap()).collect();
        // The last token's first character passed, its second began the stop string.
        assert_eq!(text, "go S", "{}", answer.text);
        assert!(tokens.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() == 2));
    }
    let answer = Rig::saying("a").chat(json!({"top_logprobs": 2})).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]["param"]), (400, &json!("top_logprobs")));
}

/// What a model may say: pieces of Laguna's protocol in any order.
fn sayings() -> impl Strategy<Value = String> {
    let pieces = prop::sample::select(vec![
        "text ",
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "f",
        "<arg_key>",
        "</arg_key>",
        "s",
        "n",
        "<arg_value>",
        "</arg_value>",
        "3",
        "🌊",
        "\n",
        "STOP",
        "〈|EOS|〉",
        "\"",
        "<tool_call>f<arg_key>s</arg_key><arg_value>é",
    ]);
    prop::collection::vec(pieces, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn report_06_stream_and_whole_are_the_same_message(
        text in sayings(), thinks: bool, most in prop::option::of(1_usize..40), tools: bool, single: bool,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let said: Vec<u32> = ids(&text).into_iter().filter(|id| *id != 2).collect();
            let rig = Rig::new(move |_| vec![Line::Say(said.clone())]);
            let mut body = json!({
                "stop": "STOP", "max_tokens": most, "parallel_tool_calls": !single,
                "chat_template_kwargs": {"enable_thinking": thinks},
            });
            if tools {
                body["tools"] = json!([tool("f")]);
            }
            let whole = rig.chat(body.clone()).await.json();
            body["stream"] = json!(true);
            body["stream_options"] = json!({"include_usage": true});
            let stream = rig.chat(body).await;
            let (joined, choice) = (stream.joined(), &whole["choices"][0]);
            let message = &choice["message"];
            assert_eq!(joined["content"], message["content"].as_str().unwrap_or(""));
            assert_eq!(joined["reasoning_content"], message["reasoning_content"].as_str().unwrap_or(""));
            assert_eq!(joined["finish_reason"], choice["finish_reason"]);
            let calls = |calls: &Value, at: fn(&Value) -> &Value| -> Vec<(Value, Value)> {
                let calls = calls.as_array().into_iter().flatten();
                calls.map(|call| (at(call)["name"].clone(), at(call)["arguments"].clone())).collect()
            };
            assert_eq!(calls(&joined["tool_calls"], |c| c), calls(&message["tool_calls"], |c| &c["function"]));
            assert_eq!(stream.events().last().unwrap()["usage"], whole["usage"]);
        });
    }
}
