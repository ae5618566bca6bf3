//! A serving coordinator from outside: its log, its page, its load, its end; and `laguna-coord chat` beside it.
// In a test a panic is the report.
#![allow(clippy::unwrap_used)]

use laguna_tests::cluster::Cluster;
use laguna_tests::http::{self, Exchange, get, post};
use laguna_tests::models;
use laguna_tests::run::{Run, Running};
use serde_json::{Value, json};

/// A server of nano on a free port, and its address.
fn serve(flags: &[&str]) -> (Running, String) {
    let run = Run::coord(["--loopback", "--listen", "127.0.0.1:0", "--model"]).arg(models::nano());
    let mut server = run.args(flags).start();
    let address = http::address(&mut server, " on http://");
    (server, address)
}

fn stop(server: Running) -> laguna_tests::run::Finished {
    server.signal("TERM");
    server.wait().succeeded()
}

/// The log's lines about requests: `METHOD PATH …`.
fn requests(stderr: &str) -> Vec<String> {
    let lines = stderr.lines().filter(|line| ["GET ", "POST "].iter().any(|method| line.contains(method)));
    lines.map(|line| line.trim().to_owned()).collect()
}

/// A chat completion that goes on until the context is full.
fn endless(stream: bool) -> String {
    let messages = json!([{"role": "user", "content": "def"}]);
    // Neither stop id can be chosen.
    let bias = json!({"2": -100, "24": -100});
    json!({"messages": messages, "temperature": 0, "logit_bias": bias, "stream": stream}).to_string()
}

#[test]
fn every_request_has_one_line_with_numbers_and_without_words() {
    let (server, address) = serve(&["--parallel", "1"]);
    let secret = "SQUEAMISH";
    let body = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": secret}], "max_tokens": 4});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body.to_string()
    };
    let path = "/v1/chat/completions";
    let whole = post(&address, &format!("{path}?key={secret}"), &body(json!({})));
    assert_eq!(whole.status, 200, "{}", whole.body);
    let id = whole.head.lines().find_map(|line| line.strip_prefix("x-request-id: ")).unwrap().to_owned();
    post(&address, path, &body(json!({"stream": true})));
    post(&address, "/v1/messages", &body(json!({})));
    assert_eq!(post(&address, path, &body(json!({"temperature": secret}))).status, 400);
    assert_eq!(post(&address, &format!("/{secret}"), "{}").status, 404);
    assert_eq!(get(&address, "/health").status, 200);
    let mut left = Exchange::begin(&address, path, &[("x-api-key", secret)], Some(&endless(true)));
    left.until("\"content\":\"");
    drop(left);
    let mut server = server;
    server.until(|server| server.stderr().contains("cancelled"));

    let stderr = stop(server).stderr;
    let lines = requests(&stderr);
    assert_eq!(lines.len(), 6, "{lines:#?}");
    let first = &lines[0];
    for part in
        ["INFO POST /v1/chat/completions 200", "finish=\"length\"", " new=4 ", "ttft_ms=", "tok_s=", &id]
    {
        assert!(first.contains(part), "{part}: {first}");
    }
    let usage: Value = serde_json::from_str(&whole.body).unwrap();
    let usage = &usage["usage"];
    assert!(first.contains(&format!("prompt={} cached=0 new=4", usage["prompt_tokens"])), "{first}");
    // The same prompt again: the cache has it, and the line says so.
    assert!(!lines[1].contains("cached=0") && lines[1].contains("200"), "{}", lines[1]);
    assert!(lines[2].contains("POST /v1/messages 200"), "{}", lines[2]);
    assert!(
        lines[3].contains("INFO POST /v1/chat/completions 400 fault=\"invalid_request_error\""),
        "{}",
        lines[3]
    );
    assert!(lines[4].contains("404 fault=\"not_found_error\""), "{}", lines[4]);
    assert!(lines[5].contains("POST /v1/chat/completions cancelled prompt="), "{}", lines[5]);
    // What stands in a path is shown, as it is no secret; a query, a key, a text and a field's value are not.
    let shown = stderr.matches(secret).count();
    assert_eq!(shown, 1, "{stderr}");
}

#[test]
fn browsers_get_the_page_and_everybody_else_a_few_lines() {
    let (server, address) = serve(&[]);
    let page = Exchange::begin(&address, "/", &[("accept", "text/html,*/*;q=0.8")], None).finish();
    assert!(page.head.contains("content-security-policy: default-src 'none'"), "{}", page.head);
    for part in page.body.split(['"', '\'']).filter(|text| text.starts_with("/page/")) {
        assert_eq!(get(&address, part).status, 200, "{part}");
    }
    assert!(page.body.contains("/page/main.js") && !page.body.contains("http"), "{}", page.body);
    assert!(get(&address, "/").body.starts_with("nano is served here"));
    assert_eq!(get(&address, "/page/secrets").status, 404);
    stop(server);
}

/// While it loads, the server says how far it is and whom it waits for; `chat` waits with it.
#[test]
fn a_load_that_waits_for_workers_names_them_and_chat_waits_too() {
    let cluster = Cluster::new(&models::nano(), 1);
    let mut server = cluster.coord(&["--listen", "127.0.0.1:0", "--wait", "100"]).start();
    let address = http::address(&mut server, "accepting requests on ");
    let waiting = format!("waiting for shard 0 ({})", cluster.address(0));
    let body = loop {
        let reply = get(&address, "/health");
        assert_eq!(reply.status, 503, "{}", reply.body);
        assert!(reply.head.contains("retry-after: "), "{}", reply.head);
        let body: Value = serde_json::from_str(&reply.body).unwrap();
        assert_eq!(body["status"], "loading");
        // Before: the trunk, with a share from 0 to 1.
        if body["loading"] == waiting {
            break body;
        }
        let share = body["progress"].as_f64();
        assert!(share.is_none_or(|share| (0.0..=1.0).contains(&share)), "{body}");
    };
    assert_eq!(body["progress"], Value::Null);
    let message = body["error"]["message"].as_str().unwrap();
    assert_eq!(message, format!("the model is loading: {waiting}"));
    let looked = get(&address, "/cluster");
    assert_eq!((looked.status, looked.body.contains(&waiting)), (200, true), "{}", looked.body);
    let page = Exchange::begin(&address, "/", &[("accept", "text/html")], None).finish();
    assert_eq!(page.status, 200);

    let mut chat = Run::coord(["chat", "-n", "3", "--url", &address]).stdin("def f(x):").start();
    chat.until(|chat| chat.stderr().contains("the server is loading: waiting for shard 0"));
    let worker = cluster.worker(0).start();
    let answered = chat.wait().succeeded();
    assert!(answered.text().len() > 1, "{:?}", answered.text());
    stop(server);
    stop(worker);
}

#[test]
fn chat_answers_a_pipe_on_stdout_alone() {
    let (server, address) = serve(&[]);
    let chat = |flags: &[&str]| {
        let run =
            Run::coord(["chat", "--temperature", "0", "-n", "24", "--url", &format!("http://{address}/v1")]);
        run.args(flags).stdin("def read_lines(path):\n").finish()
    };
    let answer = chat(&["--thinking", "off"]).succeeded();
    let messages = json!([{"role": "user", "content": "def read_lines(path):"}]);
    let body = json!({"messages": messages, "temperature": 0, "max_tokens": 24, "enable_thinking": false});
    let whole: Value =
        serde_json::from_str(&post(&address, "/v1/chat/completions", &body.to_string()).body).unwrap();
    let said = whole["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(answer.text().trim_end_matches('\n'), said.trim_end_matches('\n'));
    assert!(!answer.stderr.contains("tok/s"), "figures are for terminals: {}", answer.stderr);
    stop(server);

    let gone = chat(&[]).failed(1);
    gone.says(&["nothing answers at http://127.0.0.1:", "laguna-coord --loopback --model DIR", "--url"]);
    Run::coord(["chat", "--url", "https://a"]).stdin("x").finish().failed(2).says(&["http://HOST:PORT"]);
    Run::coord(["chat"]).stdin("\n").finish().failed(2).says(&["stdin", "laguna-coord chat"]);
}

#[test]
fn chat_brings_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "# mine\nsesame\n").unwrap();
    let keys = keys.to_str().unwrap();
    let (server, address) = serve(&["--api-key-file", keys]);
    let chat = || Run::coord(["chat", "-n", "2", "--url", &address]).stdin("x");
    chat().finish().failed(1).says(&["asks for an API key", "LAGUNA_API_KEY", "--api-key-file"]);
    chat().env("LAGUNA_API_KEY", "simsim").finish().failed(1).says(&["the API key is wrong"]);
    chat().env("LAGUNA_API_KEY", "sesame").finish().succeeded();
    chat().args(["--api-key-file", keys]).finish().succeeded();
    let stderr = stop(server).stderr;
    assert!(!stderr.contains("sesame") && !stderr.contains("simsim"), "{stderr}");
    assert!(stderr.contains("GET /v1/models 401 fault=\"invalid_api_key"), "{stderr}");
}

/// Ctrl-C ends the answer, and the server's work on it.
#[test]
fn an_interrupted_chat_ends_its_request() {
    let (mut server, address) = serve(&["--parallel", "1"]);
    // Nothing ever comes for the chat: another request has the only place.
    let mut other = Exchange::begin(&address, "/v1/chat/completions", &[], Some(&endless(true)));
    other.until("\"content\":\"");
    let chat = Run::coord(["chat", "--url", &address]).stdin("x").start();
    server.until(|_| get(&address, "/health").body.contains("\"waiting\":1"));
    chat.signal("INT");
    let ended = chat.wait();
    assert_eq!((ended.status.code(), ended.text().as_str()), (Some(130), ""), "{}", ended.stderr);
    server.until(|server| server.stderr().contains("POST /v1/chat/completions cancelled"));
    drop(other);
    stop(server);
}

#[test]
fn draining_has_an_end_that_requests_are_told() {
    let (server, address) = serve(&["--drain", "0"]);
    let mut streamed = Exchange::begin(&address, "/v1/chat/completions", &[], Some(&endless(true)));
    streamed.until("\"content\":\"");
    // The engine tells of what runs twice a second.
    let mut server = server;
    server.until(|_| get(&address, "/health").body.contains("\"running\":1"));
    server.signal("TERM");
    let told = streamed.finish();
    assert!(
        told.body.contains("\"code\":\"shutting_down\"") && !told.body.contains("[DONE]"),
        "{}",
        told.body
    );
    let ended = server.wait().succeeded();
    ended.says(&["finishing 1 request, for 0 s at most", "--drain", "fault=\"shutting_down"]);
    // With nothing to finish, nothing is said about it.
    let idle = stop(serve(&[]).0);
    assert!(!idle.stderr.contains("finishing"), "{}", idle.stderr);
}

/// A load tells each part once, and what happens inside the process is no news.
#[test]
fn a_start_says_each_thing_once() {
    for loopback in ["--loopback", "--loopback-quic"] {
        let run = Run::coord(["generate", loopback, "-p", "x", "-n", "1", "--greedy", "--model"]);
        let stderr = run.arg(models::nano()).finish().succeeded().stderr;
        for part in ["trunk", "shard 0", "shard 1"] {
            assert_eq!(stderr.matches(part).count(), 1, "{part}: {stderr}");
        }
        assert!(stderr.contains("loaded in") && !stderr.contains("coordinator"), "{stderr}");
    }
}

/// Where each shard's time goes, from outside: a generation says it, and a server's page adds up.
#[test]
fn each_shards_calls_are_told_by_size_and_part() {
    let run =
        Run::coord(["generate", "--loopback-quic", "-p", "def f(x):", "-n", "5", "--greedy", "--model"]);
    let said = run.arg(models::nano()).finish().succeeded().stderr;
    for shard in ["shard 0 (", "shard 1 ("] {
        let line = said.lines().find(|line| line.starts_with(shard) && line.contains("p50/p99"));
        let line = line.unwrap_or_else(|| panic!("{shard}: {said}"));
        for part in ["round trip ", "queue ", "compute ", "wire ", "calls with one row"] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }

    let run = Run::coord(["--loopback-quic", "--listen", "127.0.0.1:0", "--model"]).arg(models::nano());
    let mut server = run.start();
    let address = http::address(&mut server, " on http://");
    let body = json!({"prompt": "def read_lines(path):\n".repeat(4), "max_tokens": 9, "temperature": 0});
    assert_eq!(post(&address, "/v1/completions", &body.to_string()).status, 200);
    // All values of a name: their labels and what they are.
    let values = |page: &str, name: &str| -> Vec<(String, f64)> {
        let lines = page.lines().filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '));
        lines.map(|(labels, value)| (labels.to_owned(), value.parse().unwrap())).collect()
    };
    let total = |values: &[(String, f64)], label: &str| -> f64 {
        values.iter().filter(|(labels, _)| labels.contains(label)).map(|(_, value)| value).sum()
    };
    let name = "laguna_shard_call_microseconds";
    let settled = |page: &str| {
        let all = total(&values(page, "laguna_shard_calls_total{"), "shard");
        all > 0.0 && all == total(&values(page, &format!("{name}_count{{")), "part=\"round_trip\"")
    };
    server.until(|_| settled(&get(&address, "/metrics").body));
    let page = get(&address, "/metrics").body;
    let counts = values(&page, &format!("{name}_count{{"));
    let buckets = values(&page, &format!("{name}_bucket{{"));
    let recent = values(&page, "laguna_shard_call_recent_microseconds{");
    for shard in ["shard=\"0\"", "shard=\"1\""] {
        let of = |rows: &str, part: &str| format!("{shard},rows=\"{rows}\",part=\"{part}\"");
        for rows in ["one", "many"] {
            let calls = total(&counts, &of(rows, "round_trip"));
            assert!(calls > 0.0, "{page}");
            for part in ["queue", "compute", "wire"] {
                assert_eq!(total(&counts, &of(rows, part)), calls, "{part}: {page}");
            }
            let within: Vec<f64> = buckets
                .iter()
                .filter(|(labels, _)| labels.contains(&of(rows, "round_trip")))
                .map(|(_, count)| *count)
                .collect();
            assert!(within.is_sorted() && within.last() == Some(&calls), "{within:?}");
            // Two quantiles of four parts.
            let known =
                recent.iter().filter(|(labels, _)| labels.contains(&format!("{shard},rows=\"{rows}\"")));
            assert_eq!(known.count(), 8, "{page}");
        }
        // The parts of a round trip are all of it, but for rounding and what a worker rounds.
        let sums = values(&page, &format!("{name}_sum{{"));
        let parts = ["queue", "compute", "wire"].map(|part| total(&sums, &of("one", part)));
        let whole = total(&sums, &of("one", "round_trip"));
        assert!((parts.iter().sum::<f64>() - whole).abs() < 1.0, "{parts:?} {whole}");
    }
    stop(server);
}
