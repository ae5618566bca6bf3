//! What reaches the model.

use serde_json::{Value, json};

use super::rig::{Rig, ids, tool};

async fn prompt(body: Value) -> String {
    let rig = Rig::saying("a");
    let shown = rig.post("/apply-template", body.clone()).await;
    assert_eq!(shown.status, 200, "{}", shown.text);
    let answer = rig.post("/v1/chat/completions", body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    // What is shown is what the model gets.
    let shown = shown.json()["prompt"].as_str().unwrap().to_owned();
    assert_eq!(shown, rig.last_prompt());
    shown
}

#[tokio::test]
async fn report_21_a_closed_thought_in_history_does_not_end_reasoning() {
    let rig = Rig::saying("still thinking</think>done");
    let messages = json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "c"},
        {"role": "user", "content": "what does </think> do?"},
    ]);
    let answer = rig.chat(json!({"messages": messages, "reasoning_effort": "low"})).await.json();
    let message = &answer["choices"][0]["message"];
    assert_eq!(
        (&message["reasoning_content"], &message["content"]),
        (&json!("still thinking"), &json!("done"))
    );
}

#[tokio::test]
async fn report_26_tools_are_rendered_in_the_clients_order() {
    let tool = json!({"type": "function", "function": {"name": "é<f>", "parameters": {"z": "'&'", "a": 1}}});
    let prompt = prompt(json!({"messages": [{"role": "user", "content": "a"}], "tools": [tool]})).await;
    let line = r#"{"type": "function", "function": {"name": "é<f>", "parameters": {"z": "'&'", "a": 1}}}"#;
    assert!(prompt.contains(&format!("<available_tools>\n{line}\n</available_tools>")), "{prompt}");
}

#[tokio::test]
async fn report_27_arguments_as_text_or_object_render_the_same() {
    let with = |arguments: Value| {
        let call = json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}});
        json!({"messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "r"},
        ], "tools": [tool("f")]})
    };
    let text = prompt(with(json!(r#"{"s": "x", "n": 3}"#))).await;
    assert_eq!(text, prompt(with(json!({"s": "x", "n": 3}))).await);
    assert!(
        text.contains(
            "<arg_key>n</arg_key><arg_value>3</arg_value></tool_call></assistant>\n<tool_response>r"
        )
    );
}

#[tokio::test]
async fn report_28_later_system_messages_stay_in_their_place() {
    let messages = json!([
        {"role": "developer", "content": "S1"}, {"role": "user", "content": "a"},
        {"role": "system", "content": "S2"}, {"role": "user", "content": "b"},
    ]);
    let prompt = prompt(json!({"messages": messages, "reasoning_effort": "none"})).await;
    let expected =
        "<system>S1</system>\n<user>a</user>\n<system>S2</system>\n<user>b</user>\n<assistant></think>";
    assert_eq!(prompt, format!("〈|EOS|〉{expected}"));
}

#[tokio::test]
async fn report_29_parts_are_joined_and_nothing_is_content_too() {
    let parts = json!([{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]);
    for (content, text) in [(parts, "one two"), (json!(null), ""), (json!(""), ""), (json!([]), "")] {
        let body = json!({"messages": [{"role": "user", "content": content}], "id": null});
        assert!(prompt(body).await.contains(&format!("<user>{text}</user>")));
    }
}

#[tokio::test]
async fn report_30_one_bos_and_both_stop_ids() {
    let rig = Rig::new(|submission| {
        assert_eq!(*submission.stop_ids, [2, 24]);
        vec![]
    });
    assert_eq!(rig.chat(json!({})).await.status, 200);
    let prompts = rig.seen.prompts.lock().unwrap();
    assert_eq!((prompts[0][0], prompts[0].iter().filter(|id| **id == 2).count()), (2, 1));
}

#[tokio::test]
async fn report_31_past_reasoning_is_kept_under_every_name() {
    for name in ["reasoning_content", "reasoning"] {
        let messages = json!([
            {"role": "user", "content": "a"}, {"role": "assistant", "content": "b", name: "R1"},
            {"role": "user", "content": "c"},
        ]);
        let with = |kwargs: Value| json!({"messages": messages, "chat_template_kwargs": kwargs});
        let kept = "<assistant><think>R1</think>b</assistant>";
        assert!(prompt(with(json!({"enable_thinking": true}))).await.contains(kept));
        let off = prompt(with(json!({"enable_thinking": false, "preserve_thinking": true}))).await;
        assert!(off.contains(kept) && off.ends_with("<assistant></think>"));
        assert!(!prompt(with(json!({"enable_thinking": false}))).await.contains("R1"));
    }
}

#[tokio::test]
async fn report_32_no_stray_tag_leads_a_reply() {
    for thinking in [true, false] {
        let rig = Rig::saying("</think>\n\nHello");
        let answer = rig.chat(json!({"chat_template_kwargs": {"enable_thinking": thinking}})).await.json();
        let content = answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
        assert!(content.trim_start() == "Hello", "{content:?}");
    }
}

#[tokio::test]
async fn control_tokens_in_a_users_text_stay_text() {
    let rig = Rig::saying("a");
    rig.chat(json!({"messages": [{"role": "user", "content": "what is </assistant>?"}]})).await;
    assert!(!rig.seen.prompts.lock().unwrap()[0].contains(&24));
}

#[tokio::test]
async fn tokens_there_and_back() {
    let rig = Rig::saying("a");
    let text = "<tool_call>naïve 🌊</tool_call>";
    let plain = rig.post("/tokenize", json!({"content": text})).await.json()["tokens"].clone();
    assert_eq!(plain, json!(ids(text)));
    let special = rig.post("/tokenize", json!({"content": text, "add_special": true})).await.json();
    assert_eq!(special["tokens"][0], 2);
    assert_eq!(special["tokens"].as_array().unwrap()[1..], plain.as_array().unwrap()[..]);
    let back = rig.post("/detokenize", json!({"tokens": special["tokens"]})).await.json();
    assert_eq!(back["content"], format!("〈|EOS|〉{text}"));
    let pieces = rig.post("/tokenize", json!({"content": "<think>", "with_pieces": true})).await.json();
    assert_eq!(pieces["tokens"], json!([{"id": 18, "piece": "<think>"}]));
    assert_eq!(rig.post("/tokenize", json!({})).await.status, 400);
}
