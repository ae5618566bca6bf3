//! One log line per request, written when everything about it is over: its answer and its turn.
//!
//! ```text
//! INFO POST /v1/chat/completions 200 finish="stop" prompt=812 cached=790 new=64 ttft_ms=210 tok_s=31.4 ms=2241 id=req_…
//! INFO POST /v1/messages 400 fault="context_length_exceeded: …" ms=3 id=req_…
//! WARN POST /v1/chat/completions 200 fault="worker_lost: shard 1 (10.0.5.2:4433): …" prompt=… id=req_…
//! ```
//!
//! A client that hung up has `cancelled` for a status. Faults of the server are warnings; looks at the server itself
//! (`/`, `/page/…`, `/health`, `/cluster`, `/metrics`) are told at debug. Neither texts, nor queries, nor keys, nor what
//! a client wrote into a field get here.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::Response;

use super::error::{Dialect, Fault};
use super::turn::TurnUsage;
use super::{ids, openai, page};
use crate::chat::FinishReason;

/// A request's line in the making. Every part of the server that works for the request has a clone; the last one to go
/// writes the line.
#[derive(Clone, Debug)]
pub struct Served(Arc<Line>);

#[derive(Debug)]
struct Line {
    id: String,
    method: String,
    path: String,
    began: Instant,
    told: Mutex<Told>,
}

/// What was told of a request so far.
#[derive(Clone, Debug, Default)]
struct Told {
    status: Option<u16>,
    fault: Option<String>,
    server_fault: bool,
    turn: Option<TurnTold>,
}

/// What was told of its turn.
#[derive(Clone, Copy, Debug)]
struct TurnTold {
    submitted: Instant,
    first: Option<Instant>,
    last: Instant,
    usage: TurnUsage,
    finish: Option<FinishReason>,
}

impl Served {
    fn begin(request: &Request) -> Self {
        let path: String = request.uri().path().chars().take(PATH_SHOWN).collect();
        Self(Arc::new(Line {
            id: ids::unique("req_"),
            method: request.method().to_string(),
            path: path.escape_debug().to_string(),
            began: Instant::now(),
            told: Mutex::new(Told::default()),
        }))
    }

    /// The engine has taken the request, with so many prompt tokens.
    pub fn admitted(&self, prompt: usize) {
        let now = Instant::now();
        let usage = TurnUsage { prompt, ..TurnUsage::default() };
        self.told().turn = Some(TurnTold { submitted: now, first: None, last: now, usage, finish: None });
    }

    /// So far the turn took this; its newest token came now.
    pub fn token(&self, usage: TurnUsage) {
        if let Some(turn) = &mut self.told().turn {
            turn.last = Instant::now();
            turn.first.get_or_insert(turn.last);
            turn.usage = usage;
        }
    }

    /// The turn is over.
    pub fn finished(&self, finish: FinishReason, usage: TurnUsage) {
        if let Some(turn) = &mut self.told().turn {
            turn.finish = Some(finish);
            turn.usage = usage;
        }
    }

    /// The request is refused or has failed.
    pub fn failed(&self, fault: &Fault) {
        let mut told = self.told();
        told.fault = Some(fault.brief());
        told.server_fault = fault.status().is_server_error();
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.0.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The outermost layer: begins the line, names the request in a header, and keeps the line until the answer is out.
pub async fn write(mut request: Request, next: Next) -> Response {
    let served = Served::begin(&request);
    request.extensions_mut().insert(served.clone());
    let anthropic = Dialect::of(request.uri().path()) == Dialect::Anthropic;
    let mut response = next.run(request).await;
    served.told().status = Some(response.status().as_u16());
    if let Ok(id) = HeaderValue::from_str(&served.0.id) {
        // Each vendor's clients look for their own name.
        response.headers_mut().insert(if anthropic { "request-id" } else { "x-request-id" }, id);
    }
    response.map(|inner| Body::new(Kept { inner, _served: served }))
}

/// An answer's body that keeps the request's line.
struct Kept {
    inner: Body,
    _served: Served,
}

impl HttpBody for Kept {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let Self { id, method, path, began, told } = self;
        let told = told.get_mut().unwrap_or_else(PoisonError::into_inner);
        let cut = told.turn.is_some_and(|turn| turn.finish.is_none()) && told.fault.is_none();
        let status = match told.status {
            Some(status) if !cut => status.to_string(),
            _ => "cancelled".to_owned(),
        };
        let usage = told.turn.map(|turn| turn.usage);
        let finish = told.turn.and_then(|turn| turn.finish).map(openai::reason);
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let first = told.turn.and_then(|turn| Some(millis(turn.first? - turn.submitted)));
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    finish,
                    fault = told.fault,
                    prompt = usage.map(|usage| usage.prompt),
                    cached = usage.map(|usage| usage.cached),
                    new = usage.map(|usage| usage.completion),
                    ttft_ms = first,
                    tok_s = told.turn.and_then(|turn| turn.rate()),
                    ms = millis(began.elapsed()),
                    %id,
                    "{method} {path} {status}"
                )
            };
        }
        match (is_probe(path), told.server_fault) {
            (true, _) => line!(debug),
            (false, true) => line!(warn),
            (false, false) => line!(info),
        }
    }
}

impl TurnTold {
    /// Tokens a second once the first one was there, to a tenth.
    fn rate(&self) -> Option<f64> {
        let seconds = (self.last - self.first?).as_secs_f64();
        let tokens = self.usage.completion.saturating_sub(1);
        (tokens > 0 && seconds > 0.0).then(|| (tokens as f64 / seconds * 10.0).round() / 10.0)
    }
}

fn is_probe(path: &str) -> bool {
    PROBES.contains(&path) || path.starts_with(page::PARTS)
}

/// Paths that programs look at every second or so, whatever they answer.
const PROBES: [&str; 4] = ["/", "/health", "/cluster", "/metrics"];

/// Characters of a path that a log shows.
const PATH_SHOWN: usize = 120;
