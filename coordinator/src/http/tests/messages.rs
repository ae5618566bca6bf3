//! Anthropic's dialect.

use serde_json::{Value, json};

use super::rig::{Answer, Rig, ids};
use crate::http::testing::Line;

const CALL: &str = "<tool_call>f<arg_key>s</arg_key><arg_value>x</arg_value></tool_call>";

fn body(more: Value) -> Value {
    let properties = json!({"s": {"type": "string"}});
    let mut body = json!({
        "model": "claude-x", "max_tokens": 500, "messages": [{"role": "user", "content": "hi"}],
        "thinking": {"type": "disabled"},
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object", "properties": properties}}],
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Events with their names, which must be their types.
fn events(answer: &Answer) -> Vec<Value> {
    let names: Vec<&str> = answer.text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    let events = answer.events();
    assert_eq!(names, events.iter().map(|event| event["type"].as_str().unwrap()).collect::<Vec<_>>());
    events
}

/// The content that Anthropic's SDK puts together from a stream, ids and signatures left out.
fn joined(events: &[Value]) -> Vec<Value> {
    let mut content: Vec<Value> = Vec::new();
    let mut json_text = String::new();
    let mut open = false;
    for event in events {
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert!(!open && event["index"] == content.len());
                open = true;
                json_text.clear();
                content.push(event["content_block"].clone());
            }
            "content_block_delta" => {
                assert!(open && event["index"] == content.len() - 1);
                let (block, delta) = (content.last_mut().unwrap(), &event["delta"]);
                match delta["type"].as_str().unwrap() {
                    "input_json_delta" => json_text.push_str(delta["partial_json"].as_str().unwrap()),
                    "signature_delta" => {}
                    kind => {
                        let name = kind.trim_end_matches("_delta");
                        let text = block[name].as_str().unwrap().to_owned() + delta[name].as_str().unwrap();
                        block[name] = json!(text);
                    }
                }
            }
            "content_block_stop" => {
                assert!(open);
                open = false;
                if !json_text.is_empty() {
                    content.last_mut().unwrap()["input"] = serde_json::from_str(&json_text).unwrap();
                }
            }
            _ => {}
        }
    }
    assert!(!open);
    content.into_iter().map(bare).collect()
}

fn bare(mut block: Value) -> Value {
    for name in ["id", "signature"] {
        block.as_object_mut().unwrap().remove(name);
    }
    block
}

#[tokio::test]
async fn blocks_are_the_same_in_one_piece_and_as_events() {
    for (thinking, text, stop) in [
        ("enabled", format!("why</think>Look.{CALL}{CALL}"), "tool_use"),
        ("adaptive", "why</think>".to_owned(), "end_turn"),
        ("disabled", "just text".to_owned(), "end_turn"),
        ("disabled", CALL.to_owned(), "tool_use"),
    ] {
        let rig = Rig::saying(&text);
        let thinking = json!({"type": thinking});
        let whole = rig.post("/v1/messages?beta=true", body(json!({"thinking": thinking}))).await.json();
        assert_eq!(
            (&whole["type"], &whole["role"], &whole["stop_reason"]),
            (&json!("message"), &json!("assistant"), &json!(stop))
        );
        let stream = rig.post("/v1/messages", body(json!({"thinking": thinking, "stream": true}))).await;
        let events = events(&stream);
        let content: Vec<Value> = whole["content"].as_array().unwrap().iter().cloned().map(bare).collect();
        assert_eq!(joined(&events), content, "{}", stream.text);
        let (stopped, rest) = events.split_last().unwrap();
        assert_eq!((&stopped["type"], &events[0]["type"]), (&json!("message_stop"), &json!("message_start")));
        let delta = rest.last().unwrap();
        assert_eq!((&delta["type"], &delta["delta"]["stop_reason"]), (&json!("message_delta"), &json!(stop)));
        assert_eq!(delta["usage"], whole["usage"]);
    }
}

#[tokio::test]
async fn report_41_tokens_are_counted_from_the_start() {
    let rig = Rig::new(|_| vec![Line::Prefill { processed: 9, cached: 4 }, Line::Say(ids("a"))]);
    let events = events(&rig.post("/v1/messages", body(json!({"stream": true}))).await);
    let counted = rig.post("/v1/messages/count_tokens", body(json!({}))).await.json()["input_tokens"].clone();
    assert_eq!(events[0]["message"]["usage"]["input_tokens"], counted);
    let usage = &events[events.len() - 2]["usage"];
    assert_eq!(usage["cache_read_input_tokens"], 4);
    assert_eq!(usage["input_tokens"].as_u64().unwrap() + 4, counted.as_u64().unwrap());
    assert_eq!(rig.seen.prompts.lock().unwrap()[0].len() as u64, counted.as_u64().unwrap());
}

#[tokio::test]
async fn report_42_the_billing_block_never_reaches_the_model() {
    let system = |turn: &str| {
        let billing = format!("x-anthropic-billing-header: cc_version=2; cch={turn};");
        json!([{"type": "text", "text": billing}, {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}])
    };
    let rig = Rig::saying("a");
    rig.post("/v1/messages", body(json!({"system": system("a1")}))).await;
    let first = rig.last_prompt();
    rig.post("/v1/messages", body(json!({"system": system("b2")}))).await;
    assert_eq!(first, rig.last_prompt());
    assert!(first.contains("<system>Be brief.") && !first.contains("billing"));
}

#[tokio::test]
async fn history_is_rendered_whole() {
    let rig = Rig::saying("a");
    let messages = json!([
        {"role": "user", "content": [{"type": "text", "text": "Go"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "R1", "signature": "x"}, {"type": "text", "text": "ok"},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {"s": "x", "n": 3}},
            {"type": "tool_use", "id": "t2", "name": "f", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "one"}]},
            {"type": "tool_result", "tool_use_id": "t2", "is_error": true, "content": "two"},
            {"type": "text", "text": "and?"},
        ]},
    ]);
    let more = json!({"messages": messages, "thinking": {"type": "enabled", "budget_tokens": 1024}});
    assert_eq!(rig.post("/v1/messages", body(more)).await.status, 200);
    let prompt = rig.last_prompt();
    let (_, turns) = prompt.split_once("</system>\n").unwrap();
    assert_eq!(
        turns,
        "<user>Go</user>\n<assistant><think>R1</think>ok<tool_call>f<arg_key>s</arg_key><arg_value>x</arg_value>\
         <arg_key>n</arg_key><arg_value>3</arg_value></tool_call><tool_call>f</tool_call></assistant>\n\
         <tool_response>one</tool_response>\n<tool_response>two</tool_response>\n<user>and?</user>\n<assistant><think>"
    );
    assert!(prompt.contains(r#""parameters": {"type": "object""#), "{prompt}");
}

#[tokio::test]
async fn stop_sequences_are_told() {
    let answer = Rig::saying("go STOP on")
        .post("/v1/messages", body(json!({"stop_sequences": ["STOP"]})))
        .await
        .json();
    assert_eq!((&answer["stop_reason"], &answer["stop_sequence"]), (&json!("stop_sequence"), &json!("STOP")));
    assert_eq!(answer["content"][0]["text"], "go ");
}

#[tokio::test]
async fn what_cannot_be_kept_is_refused() {
    for (more, part) in [
        (json!({"max_tokens": null}), "max_tokens"),
        (json!({"tool_choice": {"type": "all"}}), "tool_choice.type"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}),
            "messages[0].content[0].type",
        ),
        (
            json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "{"}]}),
            "assistant",
        ),
        (json!({"messages": [{"role": "wizard", "content": "a"}]}), "messages[0].role"),
    ] {
        let answer = Rig::saying("never").post("/v1/messages", body(more.clone())).await;
        assert_eq!(answer.status, 400, "{more}");
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
        assert!(answer.json()["error"]["message"].as_str().unwrap().contains(part), "{}", answer.text);
    }
    let tools = json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]});
    let answer = Rig::saying("a").post("/v1/messages", body(tools)).await;
    assert_eq!(answer.status, 200);
    assert!(answer.headers["warning"].to_str().unwrap().contains("web_search_20250305"));
}

#[tokio::test]
async fn an_error_inside_the_stream_is_an_event() {
    use crate::engine::request::EngineError;
    let rig = Rig::new(|_| vec![Line::Say(ids("a")), Line::Fail(EngineError::Failed("boom".to_owned()))]);
    let events = events(&rig.post("/v1/messages", body(json!({"stream": true}))).await);
    assert_eq!(
        events.last().unwrap(),
        &json!({"type": "error", "error": {"type": "api_error", "message": "boom"}})
    );
}
