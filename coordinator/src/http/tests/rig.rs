//! A server with a parrot for an engine, and a client that keeps every byte.

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use laguna_shared::config::GenerationConfig;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::chat::Template;
use crate::engine::handle::{Limits, Status};
use crate::engine::request::Submission;
use crate::http::state::{App, Options, ServedModel, SharedApp};
use crate::http::testing::{Line, Seen, limits, parrot};
use crate::text::TextTokenizer;

/// A server and what its engine has seen.
pub(crate) struct Rig {
    pub(crate) app: SharedApp,
    pub(crate) seen: Arc<Seen>,
}

/// An answer with all of its body.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: axum::http::HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {}", self.text))
    }

    /// Data of every event but `[DONE]`, which must be the last if it is there.
    pub(crate) fn events(&self) -> Vec<Value> {
        let data = self.text.lines().filter_map(|line| line.strip_prefix("data: "));
        let data: Vec<&str> = data.collect();
        let done = data.iter().position(|data| *data == "[DONE]");
        assert!(done.is_none_or(|at| at + 1 == data.len()), "{}", self.text);
        let events = data.iter().filter(|data| **data != "[DONE]");
        events.map(|data| serde_json::from_str(data).unwrap_or_else(|e| panic!("{e}: {data}"))).collect()
    }

    /// The message that an OpenAI client puts together from a stream.
    pub(crate) fn joined(&self) -> Value {
        let mut message = json!({"role": null, "content": "", "reasoning_content": "", "tool_calls": []});
        let mut finish = Value::Null;
        for event in self.events() {
            let Some(choice) = event["choices"].get(0) else { continue };
            assert_eq!(choice["index"], 0);
            if !choice["finish_reason"].is_null() {
                assert!(finish.is_null(), "finish twice: {}", self.text);
                finish = choice["finish_reason"].clone();
            }
            let delta = &choice["delta"];
            for name in ["content", "reasoning_content"] {
                if let Some(text) = delta[name].as_str() {
                    message[name] = json!(message[name].as_str().unwrap().to_owned() + text);
                }
            }
            if delta["role"].is_string() {
                message["role"] = delta["role"].clone();
            }
            for part in delta["tool_calls"].as_array().into_iter().flatten() {
                let index = usize::try_from(part["index"].as_u64().expect("an index")).unwrap();
                let calls = message["tool_calls"].as_array_mut().unwrap();
                if index == calls.len() {
                    assert!(part["id"].is_string() && part["type"] == "function", "{part}");
                    calls.push(json!({"id": part["id"], "name": part["function"]["name"], "arguments": ""}));
                } else {
                    assert!(part.get("id").is_none() && part.get("type").is_none(), "{part}");
                    assert!(part["function"].get("name").is_none(), "{part}");
                }
                let so_far = calls[index]["arguments"].as_str().unwrap().to_owned();
                calls[index]["arguments"] = json!(so_far + part["function"]["arguments"].as_str().unwrap());
            }
        }
        message["finish_reason"] = finish;
        message
    }
}

impl Rig {
    /// A server whose model does what `script` says.
    pub(crate) fn new(script: impl Fn(&Submission) -> Vec<Line> + Send + 'static) -> Self {
        Self::with(|_| {}, limits(2048, 8), Status::default(), script)
    }

    /// A server whose model says `text`, tokenised as the model would, then ends its turn.
    pub(crate) fn saying(text: &str) -> Self {
        let ids = ids(text);
        Self::new(move |_| vec![Line::Say(ids.clone())])
    }

    pub(crate) fn with(
        change: impl FnOnce(&mut Options),
        limits: Limits,
        status: Status,
        script: impl Fn(&Submission) -> Vec<Line> + Send + 'static,
    ) -> Self {
        let app = Arc::new(state(change));
        let (engine, seen) = parrot(limits, status, script);
        app.ready(engine);
        Self { app, seen }
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let response = crate::http::app(self.app.clone()).oneshot(request).await.expect("infallible");
        read(response).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).expect("a request")).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(Request::post(path).body(Body::from(body.to_string())).expect("a request")).await
    }

    /// A chat completion of one user message and `more` fields.
    pub(crate) async fn chat(&self, more: Value) -> Answer {
        self.post("/v1/chat/completions", asking(more)).await
    }

    /// The prompt that the engine got last, as text with control tokens.
    pub(crate) fn last_prompt(&self) -> String {
        let prompts = self.seen.prompts.lock().unwrap();
        let ids = prompts.last().expect("a prompt");
        self.app.text.tokenizer.inner().decode(ids, false).expect("decodes")
    }
}

/// A body with one user message, thinking off, and `more` fields.
pub(crate) fn asking(more: Value) -> Value {
    let mut body = json!({
        "model": "any", "messages": [{"role": "user", "content": "hi"}], "reasoning_effort": "none",
    });
    let fields = more.as_object().expect("an object").clone();
    body.as_object_mut().expect("an object").extend(fields);
    body
}

/// A tool whose argument `s` is a string and `n` a number.
pub(crate) fn tool(name: &str) -> Value {
    let properties = json!({"s": {"type": "string"}, "n": {"type": "integer"}});
    json!({"type": "function", "function": {
        "name": name, "parameters": {"type": "object", "properties": properties},
    }})
}

/// State without an engine.
pub(crate) fn state(change: impl FnOnce(&mut Options)) -> App {
    let mut options = Options::for_checkpoint(&GenerationConfig::default());
    change(&mut options);
    let model = ServedModel {
        id: "laguna-nano".to_owned(),
        aliases: vec!["nano".to_owned()],
        context: 2048,
        trained_context: 2048,
        stop_ids: Arc::new([2, 24]),
    };
    App::new(model, tokenizer(), Template::load(&nano()).expect("bundled"), options)
}

pub(crate) fn nano() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/nano")
}

fn tokenizer() -> TextTokenizer {
    TextTokenizer::load(&nano()).expect("bundled")
}

/// Ids of `text`, control tokens as single ids.
pub(crate) fn ids(text: &str) -> Vec<u32> {
    static TOKENIZER: LazyLock<TextTokenizer> = LazyLock::new(tokenizer);
    TOKENIZER.encode_rendered(text).expect("encodes")
}

/// Waits until `done`, for half a minute at most: machines are slow when they build.
pub(crate) async fn wait_for(mut done: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("it never happened");
}

pub(crate) async fn read(response: Response<Body>) -> Answer {
    let (parts, body) = response.into_parts();
    let bytes = axum::body::to_bytes(body, usize::MAX).await.expect("a body");
    let text = String::from_utf8(bytes.to_vec()).expect("UTF-8");
    Answer { status: parts.status, headers: parts.headers, text }
}
