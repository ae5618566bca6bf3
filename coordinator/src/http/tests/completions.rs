//! Text completions.

use serde_json::{Value, json};

use super::rig::{Rig, ids};

#[tokio::test]
async fn text_goes_on_with_one_bos_and_no_protocol() {
    for prompt in [
        json!("def f():"),
        json!(["def f():"]),
        json!(ids("〈|EOS|〉def f():")),
        json!([ids("〈|EOS|〉def f():")]),
    ] {
        let rig = Rig::saying(" <tool_call>x</think>");
        let answer = rig.post("/v1/completions", json!({"prompt": prompt})).await.json();
        assert_eq!(answer["object"], "text_completion");
        assert_eq!(answer["choices"][0]["text"], " <tool_call>x</think>");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        assert_eq!(rig.last_prompt(), "〈|EOS|〉def f():");
    }
}

#[tokio::test]
async fn the_stream_says_the_same() {
    let body = json!({
        "prompt": "a", "stream": true, "stream_options": {"include_usage": true}, "max_tokens": 4, "logprobs": 1,
    });
    let rig = Rig::saying("one two 🌊 three four");
    let answer = rig.post("/v1/completions", body.clone()).await;
    let events = answer.events();
    let text: String = events.iter().filter_map(|e| e["choices"][0]["text"].as_str()).collect();
    let tokens: Vec<&Value> = events
        .iter()
        .flat_map(|e| e["choices"][0]["logprobs"]["tokens"].as_array().into_iter().flatten())
        .collect();
    assert_eq!(tokens.len(), 4);
    let mut body = body;
    body["stream"] = json!(false);
    let whole = rig.post("/v1/completions", body).await.json();
    assert_eq!(whole["choices"][0]["text"], text);
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(whole["choices"][0]["logprobs"]["tokens"].as_array().unwrap().len(), 4);
    assert_eq!(events.last().unwrap()["usage"], whole["usage"]);
}

#[tokio::test]
async fn what_is_not_built_is_refused() {
    for (field, value) in
        [("echo", json!(true)), ("suffix", json!("x")), ("n", json!(2)), ("prompt", json!(["a", "b"]))]
    {
        let mut body = json!({"prompt": "a"});
        body[field] = value;
        let answer = Rig::saying("never").post("/v1/completions", body).await;
        let error = &answer.json()["error"];
        assert_eq!(
            (answer.status.as_u16(), &error["code"]),
            (400, &json!("unsupported_parameter")),
            "{field}"
        );
        assert_eq!(error["param"], field);
    }
}
