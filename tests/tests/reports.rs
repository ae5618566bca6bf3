//! A served cluster from a client's seat: sessions that are reused, hang-ups that reach the workers, workers that die
//! and come back, memory that is refused in numbers. Tests named `report_NN` stand for complaints about other servers:
//! README.md has the table.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use laguna_tests::api::ApiServer;
use laguna_tests::cluster::Cluster;
use laguna_tests::models::nano;
use laguna_tests::run::Run;
use serde_json::{Value, json};

fn serve(args: &[&str]) -> ApiServer {
    ApiServer::start(Run::coord(["--loopback=2", "--model"]).arg(nano()).args(args))
}

/// A message of about ten tokens for each line.
fn lines(count: usize) -> String {
    (0..count).map(|line| format!("def function_{line}(path, number):\n")).collect()
}

/// Token ids of a conversation's prompt, as the server itself renders and encodes it.
fn prompt_ids(server: &ApiServer, messages: &Value) -> Vec<Value> {
    let (_, rendered) = server.post("/apply-template", &json!({ "messages": messages }));
    let (_, tokens) =
        server.post("/tokenize", &json!({ "content": rendered["prompt"], "add_special": false }));
    tokens["tokens"].as_array().expect("tokens are a list").clone()
}

/// Adds one turn: the assistant's answer and the user's next message. Returns the usage.
fn turn(server: &ApiServer, messages: &mut Value, next: &str) -> Value {
    let body = json!({ "messages": messages, "max_tokens": 12, "temperature": 0 });
    let (status, reply) = server.post("/v1/chat/completions", &body);
    assert_eq!(status, 200, "{reply}");
    let list = messages.as_array_mut().expect("messages are a list");
    list.push(json!({ "role": "assistant", "content": reply["choices"][0]["message"]["content"] }));
    list.push(json!({ "role": "user", "content": next }));
    reply["usage"].clone()
}

fn number(usage: &Value, path: &str) -> usize {
    let value = usage.pointer(path).and_then(Value::as_u64);
    value.unwrap_or_else(|| panic!("no {path} in {usage}")) as usize
}

/// Tokens of a request's prompt that were run, not taken from the cache.
fn run_of(usage: &Value) -> usize {
    number(usage, "/prompt_tokens") - number(usage, "/prompt_tokens_details/cached_tokens")
}

#[test]
fn report_43_a_second_turn_runs_only_its_own_tokens_though_layers_slide() {
    let server = serve(&[]);
    let mut messages = json!([{ "role": "user", "content": lines(120) }]);
    let before = prompt_ids(&server, &messages);
    // Many times the sliding window of 64: those layers have wrapped.
    assert!(before.len() > 1000, "{}", before.len());
    let first = turn(&server, &mut messages, "And now?");
    assert_eq!(run_of(&first), before.len());
    let after = prompt_ids(&server, &messages);
    let shared = before.iter().zip(&after).take_while(|(a, b)| a == b).count();
    let second = turn(&server, &mut messages, "");
    assert_eq!(number(&second, "/prompt_tokens"), after.len());
    // What the answer added is cached too, unless the template writes it in other tokens than the model made.
    assert!(run_of(&second) <= after.len() - shared, "{second}: {shared} of {} shared", after.len());
    server.stop().succeeded();
}

#[test]
fn report_44_side_requests_do_not_drive_out_the_long_session() {
    // Room for the long session and some three short ones.
    let server = serve(&["--kv-memory", "2500KB"]);
    let mut messages = json!([{ "role": "user", "content": lines(100) }]);
    turn(&server, &mut messages, "Go on.");
    for side in 0..12 {
        let title = json!([
            { "role": "system", "content": format!("Title number {side}, in few words.") },
            { "role": "user", "content": lines(12) },
        ]);
        turn(&server, &mut title.clone(), "");
    }
    let second = turn(&server, &mut messages, "");
    assert!(run_of(&second) < 60, "{second}");
    server.stop().succeeded();
}

/// Calls that each worker has answered, in all.
fn calls(server: &ApiServer) -> f64 {
    let page = server.get("/metrics");
    let lines = page.lines().filter(|line| line.starts_with("laguna_shard_calls_total{"));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// Whether an event of a completion brings a token; the first one may only say that there is a stream.
fn has_text(event: &Value) -> bool {
    event["choices"][0]["text"].as_str().is_some_and(|text| !text.is_empty())
}

#[test]
fn report_45_a_hang_up_stops_the_workers() {
    let cluster = Cluster::new(&nano(), 2);
    let _workers = cluster.start_all(&[]);
    let server = ApiServer::start(cluster.coord(&[]));
    let body = json!({ "prompt": "def main():\n", "max_tokens": 1900, "temperature": 0, "stream": true });
    let mut events = server.stream("/v1/completions", &body);
    assert!(events.any(|event| has_text(&event)));
    drop(events);
    until(&server, "the request ends", || server.metric("laguna_requests_running") == 0.0);
    until(&server, "calls are published", || calls(&server) > 0.0);
    // The status is published about once a second; after that nothing may be added.
    std::thread::sleep(Duration::from_millis(1500));
    let settled = calls(&server);
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(calls(&server), settled);
    assert_eq!(server.metric("laguna_requests_total{outcome=\"cancelled\"}"), 1.0);
    assert_eq!(server.metric("laguna_kv_active_bytes"), 0.0);
    server.stop().succeeded();
}

#[test]
fn report_46_a_worker_that_dies_fails_its_request_and_is_taken_back() {
    let cluster = Cluster::new(&nano(), 2);
    let mut workers = cluster.start_all(&[]);
    let server = ApiServer::start(cluster.coord(&[]));
    let short = json!({ "prompt": "def main():\n", "max_tokens": 16, "temperature": 0 });
    let text = |reply: &Value| reply["choices"][0]["text"].as_str().unwrap_or_default().to_owned();
    let (_, whole) = server.post("/v1/completions", &short);
    let mut long = short.clone();
    long["max_tokens"] = 1900.into();
    long["stream"] = true.into();

    let mut events = server.stream("/v1/completions", &long);
    assert!(events.any(|event| has_text(&event)));
    workers[1].signal("KILL");
    let last = events.last().expect("the stream says why it ends");
    assert_eq!(last["error"]["code"], "worker_lost", "{last}");
    let named = cluster.address(1);
    assert!(last.to_string().contains(&named), "{last}");

    let (status, refused) = server.post("/v1/completions", &short);
    assert_eq!(status, 503, "{refused}");
    assert!(refused.to_string().contains(&named), "{refused}");
    assert!(server.get("/health").contains(&named));

    workers[1] = cluster.start(1);
    let deadline = Instant::now() + PATIENCE;
    let again = loop {
        let (status, reply) = server.post("/v1/completions", &short);
        if status == 200 {
            break reply;
        }
        assert!(Instant::now() < deadline, "{reply}");
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(text(&again), text(&whole));
    server.stop().succeeded();
}

#[test]
fn report_47_keys_and_values_have_a_budget_and_are_refused_in_numbers() {
    let server = serve(&["--kv-memory", "600KB"]);
    let models: Value = serde_json::from_str(&server.get("/v1/models")).expect("JSON");
    let context = number(&models, "/data/0/max_model_len");
    // The checkpoint has 2048; what is served is what there is memory for.
    assert!(context < 2048, "{models}");
    let (status, refused) = server.post("/v1/completions", &json!({ "prompt": lines(100), "max_tokens": 8 }));
    assert_eq!(status, 400, "{refused}");
    assert_eq!(refused["error"]["code"], "context_length_exceeded");
    assert!(refused.to_string().contains(&format!("{context} tokens")), "{refused}");
    // Up to that length everything is kept within the budget, whoever asks at once.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let body = json!({ "prompt": lines(8), "max_tokens": 100, "temperature": 0 });
                let (status, reply) = server.post("/v1/completions", &body);
                assert_eq!(status, 200, "{reply}");
            });
        }
    });
    let held = server.metric("laguna_kv_active_bytes") + server.metric("laguna_kv_cached_bytes");
    assert!(held <= server.metric("laguna_kv_budget_bytes"), "{held}");
    server.stop().succeeded();
}

#[test]
fn report_48_both_loopback_addresses_answer_by_default() {
    let default: [SocketAddr; 2] = [([127, 0, 0, 1], 8080).into(), ([0, 0, 0, 0, 0, 0, 0, 1], 8080).into()];
    let blocker = TcpListener::bind(default[0]);
    let run = Run::coord(["--loopback=1", "--model"]).arg(nano());
    if blocker.is_ok() {
        // A port that is taken is named, with the way out.
        Run::coord(["--loopback=1", "--model"])
            .arg(nano())
            .finish()
            .failed(1)
            .says(&["127.0.0.1:8080", "--listen"]);
    }
    let ours = blocker.is_ok();
    drop(blocker);
    if !ours {
        // Somebody else's server is there, and stays.
        run.finish().failed(1).says(&["127.0.0.1:8080", "--listen"]);
        return;
    }
    let mut process = run.start();
    process.until(|process| process.stderr().contains("Claude Code:"));
    for address in default {
        // A machine without IPv6 says so when it starts.
        let there = TcpStream::connect_timeout(&address, Duration::from_secs(5)).is_ok();
        assert!(there || process.stderr().contains(&format!("not serving on {address}")), "{address}");
    }
    process.signal("TERM");
    process.wait().succeeded();
}

#[track_caller]
fn until(server: &ApiServer, what: &str, reached: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !reached() {
        assert!(Instant::now() < deadline, "{what}: never\n{}", server.get("/metrics"));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// For what takes a moment, on a laden machine.
const PATIENCE: Duration = Duration::from_secs(30);
