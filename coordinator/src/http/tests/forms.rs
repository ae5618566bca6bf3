//! Answers of a form that the request asks for, from a model that has no sense of its own: reports 24 and 25.

use serde_json::{Value, json};

use super::rig::{Answer, Rig, asking, ids, tool};
use crate::engine::handle::Status;
use crate::http::testing::{Babble, Line, limits};

/// A server whose model babbles, the same for every request.
fn babbling(seed: u64) -> Rig {
    let urges =
        ["</arg_value>", "</arg_value>", "\"", "}", "]", "1", "</tool_call>", "</think>", "<tool_call>"];
    let babble = Box::new(Babble::new(seed, urges.map(ids).to_vec()));
    let script = move |_: &_| vec![Line::Babble(babble.clone())];
    Rig::with(|_| {}, limits(8192, 8), Status::default(), script)
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "minimum": 0, "maximum": 99},
            "of": {"enum": ["a", "b"]}, "note": {"type": "string", "maxLength": 12}},
        "required": ["ok", "n", "of"],
        "additionalProperties": false,
    })
}

/// Whether `text` is JSON by the schema above.
fn check(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert!(value["ok"].is_boolean() && value["n"].as_u64().unwrap() < 100, "{text}");
    assert!(value["of"] == "a" || value["of"] == "b", "{text}");
    assert!(value.get("note").is_none_or(|note| note.as_str().unwrap().chars().count() <= 12), "{text}");
    assert!(value.as_object().unwrap().len() <= 4, "{text}");
}

/// A tool with a string, a choice and a number, of which the last may be left out.
fn strict_tool(name: &str, strict: bool) -> Value {
    let parameters = json!({
        "type": "object",
        "properties": {"s": {"type": "string"}, "of": {"type": "string", "enum": ["a", "b c"]},
            "n": {"type": "integer"}},
        "required": ["s", "of"],
        "additionalProperties": false,
    });
    json!({"type": "function", "function": {"name": name, "strict": strict, "parameters": parameters}})
}

fn check_arguments(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert!(value["s"].is_string() && (value["of"] == "a" || value["of"] == "b c"), "{text}");
    assert!(value.get("n").is_none_or(|n| n.is_i64() || n.is_u64() || n.is_number()), "{text}");
    assert!(value.as_object().unwrap().keys().all(|key| ["s", "of", "n"].contains(&key.as_str())), "{text}");
}

/// The message of an answer, streamed or not, in the stream's shape.
fn message(answer: &Answer, stream: bool) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.text);
    if stream {
        return answer.joined();
    }
    let choice = &answer.json()["choices"][0];
    let calls = choice["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
    let call = |call: &Value| json!({"id": call["id"], "name": call["function"]["name"], "arguments": call["function"]["arguments"]});
    json!({
        "content": choice["message"]["content"].as_str().unwrap_or_default(),
        "reasoning_content": choice["message"]["reasoning_content"].as_str().unwrap_or_default(),
        "tool_calls": calls.iter().map(call).collect::<Vec<_>>(),
        "finish_reason": choice["finish_reason"],
    })
}

/// The message of a request, checked to be the same as a stream and in one piece but for the ids of calls.
async fn told(seed: u64, fields: Value) -> Value {
    let mut messages = Vec::new();
    for stream in [false, true] {
        let mut body = fields.clone();
        body["stream"] = json!(stream);
        let mut message = message(&babbling(seed).chat(body).await, stream);
        for call in message["tool_calls"].as_array_mut().unwrap() {
            assert!(call["id"].as_str().unwrap().starts_with("call_"));
            call["id"] = Value::Null;
        }
        messages.push(message);
    }
    for name in ["content", "reasoning_content", "tool_calls", "finish_reason"] {
        assert_eq!(messages[0][name], messages[1][name], "{name}");
    }
    messages.swap_remove(0)
}

#[tokio::test]
async fn report_24_a_call_is_made_where_one_is_required() {
    let named = json!({"type": "function", "function": {"name": "g"}});
    let allowed =
        json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named.clone()]}});
    for (seed, (choice, only)) in
        (1..).zip([(json!("required"), None), (named, Some("g")), (allowed, Some("g"))])
    {
        for effort in ["none", "high"] {
            let tools = json!([strict_tool("f", false), strict_tool("g", true)]);
            let fields = json!({"tools": tools, "tool_choice": choice, "reasoning_effort": effort});
            let message = told(seed, fields).await;
            assert_eq!((&message["finish_reason"], &message["content"]), (&json!("tool_calls"), &json!("")));
            let calls = message["tool_calls"].as_array().unwrap();
            assert!(!calls.is_empty());
            for call in calls {
                assert!(only.is_none_or(|name| call["name"] == name), "{call}");
                check_arguments(call["arguments"].as_str().unwrap());
            }
            if effort == "none" {
                assert_eq!(message["reasoning_content"], "");
            }
        }
    }
}

#[tokio::test]
async fn report_24_one_call_is_made_where_one_is_allowed() {
    for seed in 0..6 {
        let tools = json!([strict_tool("f", false)]);
        let fields = json!({"tools": tools, "tool_choice": "required", "parallel_tool_calls": false});
        let message = told(seed, fields).await;
        assert_eq!(message["tool_calls"].as_array().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn report_24_strict_tools_bind_every_call() {
    let mut called = 0;
    for seed in 0..6 {
        let fields = json!({"tools": [strict_tool("f", true)], "max_tokens": 600});
        let message = told(seed, fields).await;
        for call in message["tool_calls"].as_array().unwrap() {
            // The budget may have cut the last one.
            if message["finish_reason"] == "tool_calls" {
                check_arguments(call["arguments"].as_str().unwrap());
                called += 1;
            }
        }
    }
    assert!(called > 2, "{called} calls");
}

#[tokio::test]
async fn report_25_output_formats_are_kept() {
    let by_schema =
        json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema(), "strict": true}});
    for effort in ["none", "high"] {
        for seed in 0..4 {
            let message = told(seed, json!({"response_format": by_schema, "reasoning_effort": effort})).await;
            assert_eq!(message["finish_reason"], "stop");
            check(message["content"].as_str().unwrap());
        }
    }
    let message = told(5, json!({"response_format": {"type": "json_object"}})).await;
    let text = message["content"].as_str().unwrap();
    assert!(serde_json::from_str::<Value>(text).unwrap().is_object(), "{text}");
    // With tools the model may call instead; what it says is JSON either way.
    let both = json!({"response_format": by_schema, "tools": [strict_tool("f", true)]});
    let mut kinds = [0, 0];
    for seed in 0..8 {
        let message = told(seed, both.clone()).await;
        let calls = message["tool_calls"].as_array().unwrap();
        kinds[usize::from(calls.is_empty())] += 1;
        match calls.is_empty() {
            true => check(message["content"].as_str().unwrap()),
            false => calls.iter().for_each(|call| check_arguments(call["arguments"].as_str().unwrap())),
        }
    }
    assert!(kinds[0] > 0 && kinds[1] > 0, "{kinds:?}");
}

#[tokio::test]
async fn report_25_every_dialect_keeps_them() {
    let rig = babbling(3);
    let format = json!({"type": "json_schema", "name": "x", "schema": schema()});
    let body = json!({"input": "hi", "reasoning": {"effort": "none"}, "text": {"format": format}});
    let answer = rig.post("/v1/responses", body).await.json();
    check(answer["output"][0]["content"][0]["text"].as_str().unwrap());
    assert_eq!(answer["text"]["format"], format);

    let chat_format = json!({"type": "json_schema", "json_schema": {"schema": schema()}});
    let body = json!({"prompt": "x =", "response_format": chat_format});
    let answer = rig.post("/v1/completions", body).await.json();
    check(answer["choices"][0]["text"].as_str().unwrap());

    for field in [json!({"output_format": format}), json!({"output_config": {"format": format}})] {
        let mut body = asking(json!({"max_tokens": 4000}));
        body.as_object_mut().unwrap().extend(field.as_object().unwrap().clone());
        let answer = rig.post("/v1/messages", body).await.json();
        assert_eq!(answer["stop_reason"], "end_turn");
        check(answer["content"][0]["text"].as_str().unwrap());
    }
    let tools = json!([{"name": "f", "strict": true, "input_schema": strict_tool("f", true)["function"]["parameters"]}]);
    for choice in
        [json!({"type": "any"}), json!({"type": "tool", "name": "f", "disable_parallel_tool_use": true})]
    {
        let body = asking(json!({"max_tokens": 4000, "tools": tools, "tool_choice": choice}));
        let answer = rig.post("/v1/messages", body).await.json();
        assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
        let blocks = answer["content"].as_array().unwrap();
        assert!(blocks.iter().all(|block| block["type"] == "tool_use"));
        assert!(choice["type"] == "any" || blocks.len() == 1);
        check_arguments(&blocks[0]["input"].to_string());
    }
    let tool = json!({"type": "function", "name": "f", "parameters": strict_tool("f", true)["function"]["parameters"]});
    let choice = json!({"type": "function", "name": "f"});
    let body =
        json!({"input": "hi", "reasoning": {"effort": "none"}, "tools": [tool], "tool_choice": choice});
    let answer = rig.post("/v1/responses", body).await.json();
    check_arguments(answer["output"][0]["arguments"].as_str().unwrap());
}

#[tokio::test]
async fn report_25_what_the_budget_cuts_says_length() {
    let format = json!({"type": "json_schema", "json_schema": {"schema": schema()}});
    let message = told(1, json!({"response_format": format, "max_tokens": 4})).await;
    assert_eq!(message["finish_reason"], "length");
}

#[tokio::test]
async fn what_cannot_be_enforced_is_refused_before_anything_is_said() {
    let schema_with = |keyword: &str, rule: Value| {
        let mut schema = schema();
        schema[keyword] = rule;
        json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    };
    let strict_with = |argument: Value| {
        let parameters = json!({"type": "object", "properties": {"a": argument}, "required": ["a"]});
        json!([{"type": "function", "function": {"name": "f", "strict": true, "parameters": parameters}}])
    };
    for (fields, param, word) in [
        (
            json!({"response_format": schema_with("if", json!({}))}),
            "response_format.json_schema.schema",
            "\"if\"",
        ),
        (
            json!({"response_format": schema_with("properties", json!({"a": {"type": "string", "format": "zodiac"}}))}),
            "response_format.json_schema.schema",
            "zodiac",
        ),
        (json!({"response_format": {"type": "regex"}}), "response_format.type", "regex"),
        (
            json!({"tools": strict_with(json!({"type": "array", "contains": {}}))}),
            "tools[0].function.parameters.properties.a",
            "contains",
        ),
        (json!({"guided_regex": "a+"}), "guided_regex", "response_format"),
    ] {
        for stream in [false, true] {
            let mut body = fields.clone();
            body["stream"] = json!(stream);
            let rig = Rig::saying("never");
            let answer = rig.chat(body).await;
            assert_eq!(answer.status, 400, "{}", answer.text);
            let error = &answer.json()["error"];
            assert_eq!((&error["code"], &error["param"]), (&json!("unsupported_parameter"), &json!(param)));
            assert!(error["message"].as_str().unwrap().contains(word), "{error}");
            assert!(rig.seen.prompts.lock().unwrap().is_empty());
        }
    }
    for (fields, param) in [
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {}}}),
            "response_format.json_schema.schema",
        ),
        (json!({"response_format": "json"}), "response_format"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (
            json!({"tools": [tool("f")], "tool_choice": {"type": "function", "function": {"name": "g"}}}),
            "tool_choice",
        ),
    ] {
        let answer = Rig::saying("never").chat(fields.clone()).await;
        assert_eq!(
            (answer.status.as_u16(), &answer.json()["error"]["param"]),
            (400, &json!(param)),
            "{fields}"
        );
    }
    // Nothing was left out of this one: no warning.
    let answer = Rig::saying("a").chat(json!({"tools": [strict_tool("f", true)]})).await;
    assert!(!answer.headers.contains_key("warning"), "{:?}", answer.headers);
    assert_eq!(Rig::saying("a").chat(json!({"response_format": {"type": "text"}})).await.status, 200);
}

#[tokio::test]
async fn a_script_that_breaks_the_form_fails_loudly() {
    let answer = Rig::saying("Sure!").chat(json!({"response_format": {"type": "json_object"}})).await;
    assert_eq!(answer.status, 500);
    assert!(answer.json()["error"]["message"].as_str().unwrap().contains("forbids"), "{}", answer.text);
}
