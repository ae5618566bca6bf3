//! Tool calls: identity, order, arguments as they arrive, reasons.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::rig::{Rig, ids, tool};
use crate::http::testing::Line;

const CALL: &str = "<tool_call>f<arg_key>s</arg_key><arg_value>a \"b\"\n</arg_value><arg_key>n</arg_key><arg_value>3</arg_value></tool_call>";

fn with_tools(more: Value) -> Value {
    let mut body = json!({"tools": [tool("f"), tool("g")]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn report_01_parallel_calls_count_their_indices() {
    let rig = Rig::saying(&format!("{CALL}<tool_call>g</tool_call>{CALL}"));
    let message = rig.chat(with_tools(json!({"stream": true}))).await.joined();
    let names: Vec<&Value> =
        message["tool_calls"].as_array().unwrap().iter().map(|call| &call["name"]).collect();
    assert_eq!(names, ["f", "g", "f"]);
}

#[tokio::test]
async fn report_02_every_tool_delta_has_its_index() {
    let answer = Rig::saying(CALL).chat(with_tools(json!({"stream": true}))).await;
    let events = answer.events();
    let deltas =
        events.iter().flat_map(|e| e["choices"][0]["delta"]["tool_calls"].as_array().into_iter().flatten());
    assert!(deltas.clone().count() > 2 && deltas.clone().all(|delta| delta["index"].is_u64()));
}

#[tokio::test]
async fn report_03_the_first_delta_has_id_type_whole_name_and_empty_arguments() {
    let answer = Rig::saying(CALL).chat(with_tools(json!({"stream": true}))).await;
    let events = answer.events();
    let mut deltas = events.iter().filter_map(|e| e["choices"][0]["delta"]["tool_calls"].get(0));
    let first = deltas.next().unwrap();
    assert!(first["id"].as_str().unwrap().starts_with("call_"));
    assert_eq!(first["type"], "function");
    assert_eq!(first["function"], json!({"name": "f", "arguments": ""}));
    for delta in deltas {
        let keys: Vec<&String> = delta.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["index", "function"]);
        assert_eq!(delta["function"].as_object().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn report_04_identity_is_never_repeated_or_changed() {
    // The rig's client panics on a repeated id, type or name.
    let message =
        Rig::saying(&format!("{CALL}{CALL}")).chat(with_tools(json!({"stream": true}))).await.joined();
    assert_ne!(message["tool_calls"][0]["id"], message["tool_calls"][1]["id"]);
    assert_eq!(message["tool_calls"][0]["arguments"], r#"{"s":"a \"b\"\n","n":3}"#);
}

#[tokio::test]
async fn report_05_calls_end_with_tool_calls() {
    for stream in [false, true] {
        let answer = Rig::saying(CALL).chat(with_tools(json!({"stream": stream}))).await;
        let finish = if stream {
            answer.joined()["finish_reason"].clone()
        } else {
            answer.json()["choices"][0]["finish_reason"].clone()
        };
        assert_eq!(finish, "tool_calls");
    }
}

#[tokio::test]
async fn report_07_call_closed_by_eos_is_kept() {
    let open = "<tool_call>f<arg_key>s</arg_key><arg_value>x";
    let answer = Rig::saying(open).chat(with_tools(json!({}))).await.json();
    let call = &answer["choices"][0]["message"]["tool_calls"][0];
    assert_eq!(call["function"], json!({"name": "f", "arguments": r#"{"s":"x"}"#}));
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn report_08_the_reason_is_what_was_sent() {
    // Markup that is no call, and a call the budget cut.
    let answer = Rig::saying("<tool_call></tool_call>").chat(with_tools(json!({}))).await.json();
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert!(answer["choices"][0]["message"].get("tool_calls").is_none());
    let cut = ids("<tool_call>f<arg_key>s</arg_key><arg_value>x").len();
    let answer = Rig::saying(CALL).chat(with_tools(json!({"max_tokens": cut}))).await.json();
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn report_11_string_arguments_stream_as_they_arrive() {
    let value = "one two three four five six seven eight ".repeat(8);
    let text = format!("<tool_call>f<arg_key>s</arg_key><arg_value>{value}</arg_value></tool_call>");
    let answer = Rig::saying(&text).chat(with_tools(json!({"stream": true}))).await;
    let events = answer.events();
    let fragments = events.iter().filter(|e| e["choices"][0]["delta"]["tool_calls"].is_array()).count();
    assert!(fragments > 40, "{fragments} fragments");
    let arguments = answer.joined()["tool_calls"][0]["arguments"].as_str().unwrap().to_owned();
    assert_eq!(serde_json::from_str::<Value>(&arguments).unwrap(), json!({"s": value}));
}

#[tokio::test]
async fn report_12_call_ids_never_come_twice() {
    let rig = Rig::saying(&format!("{CALL}{CALL}"));
    let mut seen = HashSet::new();
    for stream in [true, false, true] {
        let answer = rig.chat(with_tools(json!({"stream": stream}))).await;
        let message = if stream { answer.joined() } else { answer.json()["choices"][0]["message"].clone() };
        for call in message["tool_calls"].as_array().unwrap() {
            assert!(seen.insert(call["id"].as_str().unwrap().to_owned()), "{call}");
        }
    }
    assert_eq!(seen.len(), 6);
}

#[tokio::test]
async fn report_20_a_call_ends_open_reasoning() {
    let answer = Rig::saying(&format!("hmm {CALL}"))
        .chat(with_tools(json!({"reasoning_effort": "high"})))
        .await
        .json();
    let message = &answer["choices"][0]["message"];
    assert!(message["reasoning_content"].as_str().unwrap().starts_with("hmm"));
    assert_eq!(message["tool_calls"][0]["function"]["name"], "f");
}

#[tokio::test]
async fn report_22_calls_are_read_without_any_flag() {
    let answer = Rig::saying(&format!("Let me see.{CALL}")).chat(with_tools(json!({}))).await.json();
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["content"], "Let me see.");
    assert_eq!(message["tool_calls"].as_array().unwrap().len(), 1);
    let answer = Rig::saying(CALL).chat(with_tools(json!({}))).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], Value::Null);
}

#[tokio::test]
async fn report_23_string_arguments_keep_their_white_space() {
    let text = "<tool_call>f<arg_key>s</arg_key><arg_value>\n    def f():\n\t</arg_value></tool_call>";
    let answer = Rig::saying(text).chat(with_tools(json!({}))).await.json();
    let arguments =
        answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(arguments).unwrap(), json!({"s": "\n    def f():\n\t"}));
}

#[tokio::test]
async fn one_call_is_all_where_parallel_calls_are_ruled_out() {
    for stream in [false, true] {
        let rig = Rig::saying(&format!("{CALL}{CALL}"));
        let answer = rig.chat(with_tools(json!({"stream": stream, "parallel_tool_calls": false}))).await;
        let (calls, finish) = if stream {
            (answer.joined()["tool_calls"].clone(), answer.joined()["finish_reason"].clone())
        } else {
            let choice = answer.json()["choices"][0].clone();
            (choice["message"]["tool_calls"].clone(), choice["finish_reason"].clone())
        };
        assert_eq!((calls.as_array().unwrap().len(), finish), (1, json!("tool_calls")));
    }
}

#[tokio::test]
async fn no_call_can_begin_where_none_is_wanted() {
    let rig = Rig::new(|submission| {
        assert_eq!(submission.sampling.logit_bias, [(25, f32::NEG_INFINITY)]);
        vec![Line::Say(ids("no"))]
    });
    let answer = rig.chat(with_tools(json!({"tool_choice": "none"}))).await;
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "no");
    assert!(rig.last_prompt().contains("<available_tools>"), "the session's prefix stays");
}
