//! Server-sent events: headers before the first prompt token is run, a sign of life whenever the stream was silent for
//! too long by the wall clock, and the end of the request when the client goes away.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::Response;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::error::Fault;
use super::state::{App, SharedApp};
use super::turn::{Admitted, Turn, TurnEvent};

/// A dialect's way of telling a turn in events. Each method appends to `out`.
pub trait Narrator: Send + 'static {
    /// What comes before anything is known but that the request was admitted.
    fn open(&mut self, app: &App, out: &mut Frames);
    /// Tells one event; [`TurnEvent::End`] is the last.
    fn tell(&mut self, app: &App, event: TurnEvent, out: &mut Frames);
    /// Breaks a silence.
    fn keep_alive(&mut self, app: &App, out: &mut Frames);
    /// Tells a failure. The stream is closed after it.
    fn fail(&mut self, fault: &Fault, out: &mut Frames);
}

/// Events ready to be sent.
#[derive(Debug, Default)]
pub struct Frames(String);

impl Frames {
    /// An event that is data only.
    pub fn data(&mut self, data: &Value) {
        self.push(&["data: ", &data.to_string(), "\n\n"]);
    }

    /// A named event.
    pub fn event(&mut self, name: &str, data: &Value) {
        self.push(&["event: ", name, "\ndata: ", &data.to_string(), "\n\n"]);
    }

    /// The end of an OpenAI stream.
    pub fn done(&mut self) {
        self.push(&["data: [DONE]\n\n"]);
    }

    /// A comment, which event parsers drop.
    pub fn comment(&mut self, text: &str) {
        self.push(&[": ", text, "\n\n"]);
    }

    fn push(&mut self, parts: &[&str]) {
        parts.iter().for_each(|part| self.0.push_str(part));
    }

    fn take(&mut self) -> Bytes {
        Bytes::from(std::mem::take(&mut self.0))
    }
}

/// The response that tells an admitted request's turn.
pub fn respond(app: SharedApp, admitted: Admitted, narrator: impl Narrator) -> Response {
    let (sender, receiver) = mpsc::channel(FRAMES_AHEAD);
    tokio::spawn(run(app, admitted, narrator, sender));
    response(receiver)
}

/// A response that tells a failure as an event, for clients that look for some faults nowhere else.
pub fn failed(mut narrator: impl Narrator, app: &App, fault: &Fault) -> Response {
    let mut out = Frames::default();
    narrator.open(app, &mut out);
    narrator.fail(fault, &mut out);
    with_headers(Body::from(out.take()))
}

async fn run(app: SharedApp, admitted: Admitted, mut narrator: impl Narrator, sender: mpsc::Sender<Bytes>) {
    let every = app.options.keep_alive.every;
    let mut turn = Turn::new(&app, admitted);
    let mut out = Frames::default();
    narrator.open(&app, &mut out);
    let (mut last, mut open) = (Instant::now(), true);
    loop {
        if !out.0.is_empty() {
            // A client that went away wants no more; dropping the turn ends the request.
            if sender.send(out.take()).await.is_err() {
                return;
            }
            last = Instant::now();
        }
        if !open {
            return;
        }
        tokio::select! {
            biased;
            () = sender.closed() => return,
            event = turn.next() => match event {
                Ok(Some(event)) => narrator.tell(&app, event, &mut out),
                Ok(None) => return,
                Err(fault) => {
                    narrator.fail(&fault, &mut out);
                    open = false;
                }
            },
            () = sleep_until(last + every) => narrator.keep_alive(&app, &mut out),
        }
    }
}

fn response(receiver: mpsc::Receiver<Bytes>) -> Response {
    let stream = futures_util::stream::unfold(receiver, async |mut receiver| {
        receiver.recv().await.map(|frames| (Ok::<_, Infallible>(frames), receiver))
    });
    with_headers(Body::from_stream(stream))
}

fn with_headers(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Batches of frames that may wait for a slow client; the engine is never held up.
const FRAMES_AHEAD: usize = 16;
