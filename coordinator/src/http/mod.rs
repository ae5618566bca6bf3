//! The HTTP API: OpenAI's and Anthropic's dialects over one source of events. Read it in this order:
//!
//! - [`state`]: what every handler shares
//! - [`turn`]: one turn: a prompt into the engine, and what the model says back, in no dialect
//! - [`sse`]: a turn told in server-sent events
//! - [`openai`], [`anthropic`]: requests in, answers out; one dialect, one file
//! - [`fields`], [`knobs`], [`thinking`], [`prompt`], [`form`]: reading requests, for all dialects
//! - [`error`](mod@error): what goes wrong, in both dialects
//! - [`guard`], [`auth`]: who is let in
//! - [`health`], [`metrics`], [`inspect`]: looking at the server, and at text as the model does
//! - [`page`]: the web page
//! - [`journal`]: one log line per request
//! - [`spelling`], [`ids`]: spellings of tokens, names of answers
//! - [`testing`]: an engine that says what it was told to
//!
//! This room knows no tensors. `README.md` beside it maps real reports about other servers to tests.

pub mod anthropic;
pub mod auth;
pub mod error;
pub mod fields;
pub mod form;
pub mod guard;
pub mod health;
pub mod ids;
pub mod inspect;
pub mod journal;
pub mod knobs;
pub mod metrics;
pub mod openai;
pub mod page;
pub mod prompt;
pub mod spelling;
pub mod sse;
pub mod state;
pub mod testing;
pub mod thinking;
pub mod turn;

#[cfg(test)]
pub(crate) mod tests;

use std::any::Any;
use std::io;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::header::CONTENT_LENGTH;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower_http::catch_panic::CatchPanicLayer;

use error::Fault;
use state::SharedApp;

/// Every route, and the layers around them: the last one added is the first to see a request.
pub fn app(state: SharedApp) -> Router {
    Router::new()
        .route("/", get(page::root))
        .route("/page/{name}", get(page::part))
        .route("/health", get(health::show))
        .route("/cluster", get(health::cluster))
        .route("/metrics", get(metrics::show))
        .route("/v1/models", get(openai::models::list))
        .route("/v1/models/{*name}", get(openai::models::show))
        .route("/v1/chat/completions", post(openai::chat::create))
        .route("/v1/completions", post(openai::completions::create))
        .route("/v1/responses", post(openai::responses::create))
        .route("/v1/messages", post(anthropic::messages::create))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens::count))
        .route("/apply-template", post(inspect::apply_template))
        .route("/tokenize", post(inspect::tokenize))
        .route("/detokenize", post(inspect::detokenize))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(state.clone(), limit_body))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(state.clone(), auth::check))
        .layer(state.options.access.cors())
        .layer(from_fn_with_state(state.clone(), guard::check))
        .layer(from_fn_with_state(state.clone(), metrics::count))
        .layer(from_fn(error::word))
        .layer(from_fn(journal::write))
        .with_state(state)
}

/// Serves on `listeners` until `stop` turns true; then takes no more connections, and returns once the last answer is
/// out.
///
/// # Errors
/// If a listener fails.
pub async fn serve(
    listeners: Vec<TcpListener>,
    state: SharedApp,
    stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let router = app(state);
    let mut servers = JoinSet::new();
    for listener in listeners {
        let mut stop = stop.clone();
        let stopped = async move {
            // Whoever could say stop is gone: that is stop, too.
            let _ = stop.wait_for(|stop| *stop).await;
        };
        let listener = listener.tap_io(|stream| {
            // Tokens are small and must not wait for each other.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!("TCP_NODELAY: {error}");
            }
        });
        let router = router.clone();
        servers.spawn(async move { axum::serve(listener, router).with_graceful_shutdown(stopped).await });
    }
    while let Some(ended) = servers.join_next().await {
        ended.map_err(io::Error::other)??;
    }
    Ok(())
}

/// Reads the body up to the limit, so that every handler gets it whole.
async fn limit_body(State(app): State<SharedApp>, request: Request, next: Next) -> Response {
    let limit = app.options.body_limit;
    let told =
        request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if told.is_some_and(|length| length > limit) {
        return Fault::BodyTooLarge { limit }.into_response();
    }
    let (parts, body) = request.into_parts();
    match axum::body::to_bytes(body, limit).await {
        Ok(bytes) => next.run(Request::from_parts(parts, bytes.into())).await,
        Err(error) if too_long(&error) => Fault::BodyTooLarge { limit }.into_response(),
        Err(error) => {
            let message = format!("the request body ended early: {error}");
            Fault::BadRequest { message, param: None }.into_response()
        }
    }
}

fn too_long(error: &axum::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if error.to_string().contains("length limit exceeded") {
            return true;
        }
        source = error.source();
    }
    false
}

async fn no_route(request: Request) -> Fault {
    let (method, path) = (request.method(), request.uri().path());
    Fault::NotFound(format!(
        "there is no {method} {path} here; base URLs end in /v1 for OpenAI's clients and in nothing for Anthropic's"
    ))
}

async fn no_method(request: Request) -> Fault {
    Fault::MethodNotAllowed(format!("{} does not take {}", request.uri().path(), request.method()))
}

fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    tracing::error!("a request handler panicked: {text}");
    Fault::Internal("this request hit a fault of the server; its log says more".to_owned()).into_response()
}
