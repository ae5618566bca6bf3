//! A `laguna-coord` that serves, and requests to it as a client's HTTP library makes them.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use serde_json::Value;
use ureq::http::StatusCode;
use ureq::{Agent, Body, BodyReader};

use crate::run::{Finished, Run, Running};

/// A serving coordinator. Killed when dropped.
#[derive(Debug)]
pub struct ApiServer {
    process: Running,
    /// `http://127.0.0.1:PORT`
    base: String,
    agent: Agent,
}

impl ApiServer {
    /// Serves on a free port of 127.0.0.1 and waits until the model is loaded. `run` is `laguna-coord` with everything
    /// but the address.
    ///
    /// # Panics
    /// If it ends before it serves.
    #[track_caller]
    pub fn start(run: Run) -> Self {
        let mut process = run.args(["--listen", "127.0.0.1:0"]).start();
        process.until(|process| process.stderr().contains("Claude Code:"));
        let said = process.stderr();
        let address = said.split("listening on ").nth(1).and_then(|rest| rest.split([',', ')']).next());
        let base = format!("http://{}", address.unwrap_or_else(|| panic!("no address in\n{said}")));
        let config = Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE));
        Self { process, base, agent: config.build().into() }
    }

    /// The process.
    pub fn process(&self) -> &Running {
        &self.process
    }

    /// Sends SIGTERM and waits for its end.
    pub fn stop(self) -> Finished {
        self.process.signal("TERM");
        self.process.wait()
    }

    /// A GET's body.
    ///
    /// # Panics
    /// If there is no answer.
    #[track_caller]
    pub fn get(&self, path: &str) -> String {
        let mut response = self.agent.get(format!("{}{path}", self.base)).call().expect("an answer");
        response.body_mut().read_to_string().expect("a text")
    }

    /// One value of `/metrics`, by its name and labels as they stand there.
    ///
    /// # Panics
    /// If it is not there.
    #[track_caller]
    pub fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics");
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in\n{page}"))
    }

    /// A POST: status and body.
    ///
    /// # Panics
    /// If there is no answer, or one that is not JSON.
    #[track_caller]
    pub fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        let mut response = self.send(path, body);
        let text = response.body_mut().read_to_string().expect("a text");
        let parsed = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        (response.status(), parsed)
    }

    /// A POST whose answer is a stream of events.
    ///
    /// # Panics
    /// If the answer is another one.
    #[track_caller]
    pub fn stream(&self, path: &str, body: &Value) -> Events {
        let mut response = self.send(path, body);
        let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok());
        if kind != Some("text/event-stream") {
            panic!("{}: {:?}", response.status(), response.body_mut().read_to_string());
        }
        Events { lines: BufReader::new(response.into_body().into_reader()) }
    }

    fn send(&self, path: &str, body: &Value) -> ureq::http::Response<Body> {
        let request = self.agent.post(format!("{}{path}", self.base)).content_type("application/json");
        request.send(body.to_string()).expect("an answer")
    }
}

/// What a stream says. Dropping it hangs up.
pub struct Events {
    lines: BufReader<BodyReader<'static>>,
}

impl Iterator for Events {
    /// The data of one event; comments and event names are passed over.
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        loop {
            let mut line = String::new();
            let read = self.lines.read_line(&mut line).expect("the stream goes on");
            match line.trim_end().strip_prefix("data: ") {
                Some("[DONE]") => {}
                Some(data) => return Some(serde_json::from_str(data).expect("events are JSON")),
                None if read == 0 => return None,
                None => {}
            }
        }
    }
}

/// For one request, on a laden machine.
const PATIENCE: Duration = Duration::from_secs(120);
