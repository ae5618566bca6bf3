//! Many clients for a while: nothing leaks, nobody gets another's text.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use laguna_tests::api::ApiServer;
use laguna_tests::cluster::Cluster;
use laguna_tests::models::nano;
use laguna_tests::run::Run;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

/// A question and the whole text that the model answers it with when it is alone.
struct Question {
    path: &'static str,
    body: Value,
    answer: String,
}

/// How a request ended, as its client saw it.
enum End {
    Whole,
    HungUp,
}

#[test]
fn two_hundred_requests_over_eight_streams_leave_nothing_behind() {
    let run = Run::coord(["--loopback=2", "--model"]).arg(nano());
    // Room for about four of the longest: some wait, some are sent back, and kept prefixes are driven out.
    let server = ApiServer::start(run.args(["--parallel", "6", "--kv-memory", KV_MEMORY]));
    soak(&server, 200, 1);
    server.stop().succeeded();
}

#[test]
fn worker_processes_keep_up_with_cancelled_requests() {
    let cluster = Cluster::new(&nano(), 2);
    let workers = cluster.start_all(&[]);
    let server = ApiServer::start(cluster.coord(&["--parallel", "8"]));
    soak(&server, 64, 2);
    server.stop().succeeded();
    for worker in workers {
        worker.signal("TERM");
        worker.wait().succeeded();
    }
}

fn soak(server: &ApiServer, requests: usize, seed: u64) {
    let questions: Vec<Question> = questions(server);
    let alone = questions.len() as f64;
    let jobs: Mutex<Vec<u64>> = Mutex::new((0..requests as u64).collect());
    let take = || jobs.lock().expect("no client panics while it holds the list").pop();
    let ends: Vec<End> = std::thread::scope(|scope| {
        let client = || {
            std::iter::from_fn(take)
                .map(|job| {
                    let mut rng = ChaCha8Rng::seed_from_u64(seed << 32 | job);
                    let question = questions.choose(&mut rng).expect("there are questions");
                    ask(server, question, &mut rng)
                })
                .collect::<Vec<End>>()
        };
        let clients: Vec<_> = (0..STREAMS).map(|_| scope.spawn(client)).collect();
        clients.into_iter().flat_map(|client| client.join().expect("no client fails")).collect()
    });
    assert_eq!(ends.len(), requests);
    let whole = ends.iter().filter(|end| matches!(end, End::Whole)).count() as f64;
    assert!(whole > 0.3 * requests as f64 && whole < 0.8 * requests as f64, "{whole} of {requests}");

    // A hang-up is seen when the next byte cannot be sent.
    let deadline = Instant::now() + Duration::from_secs(20);
    let idle = |name| server.metric(name) == 0.0;
    while !(idle("laguna_kv_active_bytes") && idle("laguna_requests_running")) {
        assert!(Instant::now() < deadline, "{}", server.get("/metrics"));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(idle("laguna_requests_waiting"), "{}", server.get("/metrics"));
    assert!(server.metric("laguna_kv_cached_bytes") <= server.metric("laguna_kv_budget_bytes"));
    let outcome = |name: &str| server.metric(&format!("laguna_requests_total{{outcome=\"{name}\"}}"));
    assert_eq!(outcome("failed"), 0.0);
    // Who hangs up after the last token has cancelled nothing; who does so before the engine heard, was never there.
    assert!(outcome("finished") >= whole + alone, "{}", server.get("/metrics"));
    assert!(outcome("cancelled") > 0.0, "{}", server.get("/metrics"));
    // After all that the texts are still the same.
    for question in &questions {
        assert_eq!(answer(server, question.path, &question.body), question.answer);
    }
}

/// Asks for some of the text, and may hang up at any moment.
fn ask(server: &ApiServer, question: &Question, rng: &mut ChaCha8Rng) -> End {
    let mut body = question.body.clone();
    let budget = rng.random_range(1..=MOST);
    body["max_tokens"] = budget.into();
    body["stream"] = true.into();
    // Events that the client waits for. There is about one a token.
    let patience = if rng.random_bool(0.5) { usize::MAX } else { rng.random_range(0..MOST) };
    let mut said = String::new();
    let mut events = server.stream(question.path, &body);
    for _ in 0..patience {
        let Some(event) = events.next() else {
            assert!(budget < MOST || said == question.answer, "{said:?} is not {:?}", question.answer);
            return End::Whole;
        };
        assert!(event.get("error").is_none(), "{event}");
        said.push_str(&text_of(&event));
        assert!(question.answer.starts_with(&said), "{said:?} is not of {:?}", question.answer);
    }
    End::HungUp
}

/// The new text of an event, in any of the dialects asked here.
fn text_of(event: &Value) -> String {
    let choice = &event["choices"][0];
    let places = [&choice["text"], &choice["delta"]["content"], &event["delta"]["text"]];
    places.iter().filter_map(|place| place.as_str()).collect()
}

/// Short and long prompts in three dialects, with the answer of each.
fn questions(server: &ApiServer) -> Vec<Question> {
    let code = "def read_lines(path):\n    with open(path) as file:\n        return file.read().split()\n\n";
    let long = code.repeat(24);
    let mut questions = Vec::new();
    for text in ["def read_lines(path):\n", "class Stack:\n    \"\"\"A last-in first-out", "import os", &long]
    {
        questions.push(("/v1/completions", json!({ "prompt": text })));
    }
    for text in ["Write a stack in Python.", "What does os.path.join do?", &long] {
        let messages = json!([{ "role": "user", "content": text }]);
        questions.push(("/v1/chat/completions", json!({ "messages": messages })));
        questions.push(("/v1/messages", json!({ "messages": messages, "system": "Be brief." })));
    }
    let mut question = |(path, mut body): (&'static str, Value)| {
        body["temperature"] = 0.into();
        body["max_tokens"] = MOST.into();
        Question { path, answer: answer(server, path, &body), body }
    };
    questions.into_iter().map(&mut question).collect()
}

/// The answer in one piece.
fn answer(server: &ApiServer, path: &str, body: &Value) -> String {
    let (status, reply) = server.post(path, body);
    assert_eq!(status, 200, "{reply}");
    let choice = &reply["choices"][0];
    let places = [&choice["text"], &choice["message"]["content"], &reply["content"][0]["text"]];
    places.iter().filter_map(|place| place.as_str()).collect()
}

/// Clients at once.
const STREAMS: usize = 8;

/// New tokens of the longest answers.
const MOST: usize = 40;

/// A long prompt takes about 0.8 MB of keys and values.
const KV_MEMORY: &str = "2MB";
