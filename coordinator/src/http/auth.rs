//! API keys: read from a file, compared in constant time, accepted under both names clients use.

use std::path::Path;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use super::error::Fault;
use super::page;
use super::state::SharedApp;

/// The keys that open the server. None: it is open.
#[derive(Clone, Default)]
pub struct Keys(Arc<[[u8; 32]]>);

/// Why a key file is no key file.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// It can't be read.
    #[error("{path}: {error}")]
    Unreadable {
        /// The file.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// It holds no key: a server that was meant to be closed would be open.
    #[error("{0}: no key in it; one key a line, lines that begin with # are comments")]
    Empty(String),
}

impl Keys {
    /// Keys from their text.
    pub fn new<'a>(keys: impl IntoIterator<Item = &'a str>) -> Self {
        // Digests have one length: comparing them tells nothing about a key's.
        Self(keys.into_iter().map(|key| Sha256::digest(key).into()).collect())
    }

    /// Keys from a file, one a line; blank lines and lines that begin with `#` are skipped.
    ///
    /// # Errors
    /// [`KeyFileError`].
    pub fn load(path: &Path) -> Result<Self, KeyFileError> {
        let name = path.display().to_string();
        let keys = Self::new(keys_of(&read(path)?));
        if keys.is_empty() { Err(KeyFileError::Empty(name)) } else { Ok(keys) }
    }

    /// Whether no key is asked for.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn has(&self, key: &str) -> bool {
        let digest: [u8; 32] = Sha256::digest(key).into();
        // No early end: time tells nothing about which key it was.
        self.0.iter().fold(Choice::from(0), |found, own| found | own.ct_eq(&digest)).into()
    }

    fn check(&self, headers: &HeaderMap) -> Result<(), Fault> {
        let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|value| {
            let (scheme, key) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
        });
        let given = [bearer, headers.get("x-api-key").and_then(|value| value.to_str().ok()).map(str::trim)];
        let mut given = given.into_iter().flatten().peekable();
        if given.peek().is_none() {
            let message = "this server asks for an API key: Authorization: Bearer KEY, or x-api-key: KEY";
            return Err(Fault::Unauthenticated(message));
        }
        if given.any(|key| self.has(key)) {
            Ok(())
        } else {
            Err(Fault::Unauthenticated("the API key is wrong"))
        }
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} keys", self.0.len())
    }
}

/// The first key of a file, for clients.
///
/// # Errors
/// [`KeyFileError`].
pub fn first_key(path: &Path) -> Result<String, KeyFileError> {
    let text = read(path)?;
    let first = keys_of(&text).next().map(str::to_owned);
    first.ok_or_else(|| KeyFileError::Empty(path.display().to_string()))
}

fn read(path: &Path) -> Result<String, KeyFileError> {
    let unreadable = |error| KeyFileError::Unreadable { path: path.display().to_string(), error };
    std::fs::read_to_string(path).map_err(unreadable)
}

fn keys_of(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// Lets requests with a key through, and those that need none: probes and preflights.
pub async fn check(State(app): State<SharedApp>, request: Request, next: Next) -> Response {
    let keys = &app.options.keys;
    let path = request.uri().path();
    let open = OPEN.contains(&path) || path.starts_with(page::PARTS);
    let probe = open && matches!(*request.method(), Method::GET | Method::HEAD);
    if keys.is_empty() || probe || request.method() == Method::OPTIONS {
        return next.run(request).await;
    }
    match keys.check(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(fault) => {
            let mut response = fault.into_response();
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            response
        }
    }
}

/// Paths anybody may look at, besides the page's parts: whether the server is there, and whether it is well.
const OPEN: [&str; 3] = ["/", "/health", "/cluster"];

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &'static str, value: &'static str) -> Result<(), Fault> {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_static(value));
        Keys::new(["one", "two"]).check(&headers)
    }

    #[test]
    fn both_headers_open_and_nothing_else_does() {
        for (name, value) in
            [("authorization", "Bearer one"), ("authorization", "bearer  two"), ("x-api-key", "two")]
        {
            assert_eq!(check(name, value), Ok(()), "{name}: {value}");
        }
        for (name, value) in
            [("authorization", "Bearer on"), ("authorization", "one"), ("x-api-key", ""), ("cookie", "one")]
        {
            assert!(check(name, value).is_err(), "{name}: {value}");
        }
    }

    #[test]
    fn a_file_without_keys_is_refused() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = dir.path().join("keys");
        std::fs::write(&path, "# none\n\n").expect("writes");
        assert!(matches!(Keys::load(&path), Err(KeyFileError::Empty(_))));
        std::fs::write(&path, "# mine\n one \n").expect("writes");
        assert!(Keys::load(&path).expect("has one").has("one"));
        assert_eq!(first_key(&path).expect("has one"), "one");
        assert!(matches!(Keys::load(&dir.path().join("x")), Err(KeyFileError::Unreadable { .. })));
    }
}
