//! The web page at `/`: a chat and a view of the cluster, in files that browsers run as they are.
//!
//! - `index.html`, `style.css`, `icon.svg`: what is there, how it looks
//! - `main.js`: the conversation: sends, shows, stops
//! - `api.js`: requests to this server, and its streams, read
//! - `message.js`: one message on the page: reasoning, text, tool calls
//! - `markdown.js`: a little Markdown, into elements; what the model says never becomes markup
//! - `cluster.js`: the shards, once a second
//!
//! The files are compiled in. Nothing is fetched from elsewhere, and the policy in [`POLICY`] lets a browser fetch
//! nothing from elsewhere. A key is asked for where the server wants one, and kept by the tab only.

use axum::extract::{Path, Request, State};
use axum::http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, VARY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{IntoResponse, Response};

use super::error::Fault;
use super::state::SharedApp;

/// `GET /` and `HEAD /`: the page for browsers, a few lines of text for everybody else.
pub async fn root(State(app): State<SharedApp>, request: Request) -> Response {
    let accepts = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    if accepts.contains("text/html") {
        return part(Path(INDEX.to_owned())).await.into_response();
    }
    let text = format!(
        "{} is served here; a browser gets a chat.\nOpenAI: /v1/chat/completions, /v1/completions, /v1/responses, \
         /v1/models\nAnthropic: /v1/messages, /v1/messages/count_tokens\nState: /health, /metrics\n",
        app.model.id
    );
    ([(VARY, "accept")], text).into_response()
}

/// `GET /page/{name}`: one of the page's files.
///
/// # Errors
/// [`Fault::NotFound`].
pub async fn part(Path(name): Path<String>) -> Result<impl IntoResponse, Fault> {
    let found = FILES.iter().find(|(own, ..)| *own == name);
    let &(_, kind, content) = found.ok_or_else(|| Fault::NotFound("the page has no such part".to_owned()))?;
    let headers = [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        // A newer server has a newer page.
        (CACHE_CONTROL, "no-cache"),
        (VARY, "accept"),
    ];
    Ok((headers, content))
}

/// Where the files are, below the root.
pub const PARTS: &str = "/page/";

/// What the page may do: run and show its own files, and talk to this server.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src \
                          'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const INDEX: &str = "index.html";

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Name, type, content.
const FILES: [(&str, &str, &str); 8] = [
    (INDEX, "text/html; charset=utf-8", include_str!("index.html")),
    ("style.css", "text/css; charset=utf-8", include_str!("style.css")),
    ("icon.svg", "image/svg+xml", include_str!("icon.svg")),
    ("main.js", SCRIPT, include_str!("main.js")),
    ("api.js", SCRIPT, include_str!("api.js")),
    ("message.js", SCRIPT, include_str!("message.js")),
    ("markdown.js", SCRIPT, include_str!("markdown.js")),
    ("cluster.js", SCRIPT, include_str!("cluster.js")),
];
