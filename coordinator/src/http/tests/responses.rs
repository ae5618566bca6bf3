//! The Responses dialect.

use serde_json::{Value, json};

use super::rig::{Answer, Rig, ids};
use crate::engine::request::EngineError;
use crate::http::testing::Line;

const CALL: &str = "<tool_call>f<arg_key>s</arg_key><arg_value>x</arg_value></tool_call>";

fn body(more: Value) -> Value {
    let parameters = json!({"type": "object", "properties": {"s": {"type": "string"}}});
    let mut body = json!({
        "model": "gpt-5", "instructions": "Be brief.", "input": "hi", "store": false,
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "reasoning": {"effort": "medium"},
        "tools": [{"type": "function", "name": "f", "strict": false, "parameters": parameters}],
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Events with their names and running numbers.
fn events(answer: &Answer) -> Vec<Value> {
    let events = answer.events();
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
    let names: Vec<&str> = answer.text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(names, events.iter().map(|event| event["type"].as_str().unwrap()).collect::<Vec<_>>());
    events
}

fn bare(items: &Value) -> Vec<Value> {
    let bare = |item: &Value| {
        let mut item = item.as_object().unwrap().clone();
        item.remove("id");
        item.remove("call_id");
        Value::Object(item)
    };
    items.as_array().unwrap().iter().map(bare).collect()
}

#[tokio::test]
async fn the_story_is_the_same_in_one_piece_and_as_events() {
    let rig = Rig::saying(&format!("why</think>Look.{CALL}{CALL}"));
    let whole = rig.post("/v1/responses", body(json!({}))).await.json();
    let kinds: Vec<&Value> = whole["output"].as_array().unwrap().iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call", "function_call"]);
    assert_eq!(whole["output"][2]["arguments"], r#"{"s":"x"}"#);
    assert_eq!((&whole["status"], &whole["object"]), (&json!("completed"), &json!("response")));

    let events = events(&rig.post("/v1/responses", body(json!({"stream": true}))).await);
    let last = events.last().unwrap();
    assert_eq!(
        (&events[0]["type"], &last["type"]),
        (&json!("response.created"), &json!("response.completed"))
    );
    assert_eq!(bare(&last["response"]["output"]), bare(&whole["output"]));
    assert_eq!(last["response"]["usage"], whole["usage"]);
    let done: Vec<Value> = events
        .iter()
        .filter(|e| e["type"] == "response.output_item.done")
        .map(|e| e["item"].clone())
        .collect();
    assert_eq!(json!(done), last["response"]["output"]);
    for (index, item) in done.iter().enumerate() {
        let deltas = events.iter().filter(|e| e["output_index"] == index && e["delta"].is_string());
        let text: String = deltas.map(|e| e["delta"].as_str().unwrap()).collect();
        let whole = item["arguments"].as_str().or_else(|| item["content"][0]["text"].as_str());
        assert_eq!(whole, Some(text.as_str()));
    }
}

#[tokio::test]
async fn report_40_other_tools_are_left_out_with_a_warning() {
    let tools = json!([{"type": "web_search"}, {"type": "custom", "name": "apply_patch"}, {"type": "function", "name": "f"}]);
    let rig = Rig::saying("a");
    let answer = rig.post("/v1/responses", body(json!({"tools": tools}))).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers.get_all("warning").iter().count(), 2);
    assert!(!rig.last_prompt().contains("apply_patch"));
}

#[tokio::test]
async fn a_second_turn_carries_the_first() {
    let rig = Rig::saying(&format!("R1</think>ok{CALL}"));
    let first = rig.post("/v1/responses", body(json!({}))).await.json();
    let mut output = first["output"].as_array().unwrap().clone();
    // Codex keeps only what is sealed.
    output[0].as_object_mut().unwrap().remove("content");
    let call_id = output[2]["call_id"].clone();
    let mut input =
        vec![json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]})];
    input.extend(output);
    input.push(json!({"type": "function_call_output", "call_id": call_id, "output": "result"}));
    let answer = rig.post("/v1/responses", body(json!({"input": input}))).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let prompt = rig.last_prompt();
    let (_, turns) = prompt.split_once("</system>\n").unwrap();
    assert_eq!(
        turns,
        "<user>hi</user>\n<assistant><think>R1</think>ok<tool_call>f<arg_key>s</arg_key><arg_value>x</arg_value>\
         </tool_call></assistant>\n<tool_response>result</tool_response>\n<assistant><think>"
    );
}

#[tokio::test]
async fn report_36_codex_finds_the_overflow_inside_the_stream() {
    let long = "word ".repeat(3000);
    let answer =
        Rig::saying("never").post("/v1/responses", body(json!({"input": long, "stream": true}))).await;
    let events = events(&answer);
    let last = events.last().unwrap();
    assert_eq!((answer.status.as_u16(), &last["type"]), (200, &json!("response.failed")));
    assert_eq!(last["response"]["error"]["code"], "context_length_exceeded");
    let answer = Rig::saying("never").post("/v1/responses", body(json!({"input": long}))).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.json()["error"]["code"]),
        (400, &json!("context_length_exceeded"))
    );
}

#[tokio::test]
async fn a_cut_answer_is_incomplete_and_a_failed_one_failed() {
    let cut = ids("why</think>some text").len() - 1;
    let rig = Rig::saying("why</think>some text and more");
    let events_of = |answer: Answer| events(&answer).pop().unwrap();
    let last =
        events_of(rig.post("/v1/responses", body(json!({"stream": true, "max_output_tokens": cut}))).await);
    assert_eq!(last["type"], "response.incomplete");
    assert_eq!(last["response"]["incomplete_details"]["reason"], "max_output_tokens");
    let rig = Rig::new(|_| vec![Line::Fail(EngineError::WorkerLost("shard 1 has gone".to_owned()))]);
    let last = events_of(rig.post("/v1/responses", body(json!({"stream": true}))).await);
    assert_eq!(
        (&last["type"], &last["response"]["error"]["code"]),
        (&json!("response.failed"), &json!("worker_lost"))
    );
}

#[tokio::test]
async fn what_needs_a_memory_is_refused() {
    for (field, value) in [
        ("previous_response_id", json!("resp_1")),
        ("background", json!(true)),
        ("truncation", json!("auto")),
        ("tool_choice", json!({"type": "web_search_preview"})),
    ] {
        let answer = Rig::saying("never").post("/v1/responses", body(json!({field: value}))).await;
        let error = &answer.json()["error"];
        assert_eq!(
            (answer.status.as_u16(), &error["code"]),
            (400, &json!("unsupported_parameter")),
            "{field}"
        );
        assert_eq!(error["param"], field);
    }
}
