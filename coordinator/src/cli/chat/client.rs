//! The API from its other side: a client over plain HTTP/1.1 that reads streams as they come. Whatever the server
//! sends is bounded, in size and in silence.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio::time::timeout;

use super::stream::Stream;

/// A server.
pub struct Client {
    http: HttpClient<HttpConnector, Full<Bytes>>,
    /// `http://host:port`.
    base: String,
    key: Option<HeaderValue>,
}

/// What went wrong between this client and the server.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Not an address of a server.
    #[error("--url {0}: expected http://HOST:PORT; TLS is not spoken here")]
    BadUrl(String),
    /// Not a key that a header can carry.
    #[error("the API key has characters that no key has")]
    BadKey,
    /// Nobody answers.
    #[error(
        "nothing answers at {0} ({1}); start the server with `laguna-coord --topology FILE`, or with `laguna-coord \
         --loopback --model DIR`, or say where it is: --url http://HOST:PORT"
    )]
    NotThere(String, String),
    /// The server refuses.
    #[error("{message}{}", advice(*status))]
    Refused {
        /// HTTP status; 200 where the error came inside a stream.
        status: StatusCode,
        /// In its words.
        message: String,
    },
    /// The connection broke, or nothing came for too long.
    #[error("the connection to {0} was lost in the middle of the answer: {1}")]
    Lost(String, String),
    /// What came is not what this API sends.
    #[error("{0} does not answer as this API does: {1}")]
    Strange(String, String),
}

impl ClientError {
    /// What an error body says.
    pub fn refused(status: StatusCode, body: &Value) -> Self {
        let message = body["error"]["message"].as_str();
        let message = message.map_or_else(|| format!("the server answered {status}"), str::to_owned);
        Self::Refused { status, message }
    }
}

impl Client {
    /// A client of the server at `url`.
    ///
    /// # Errors
    /// [`ClientError::BadUrl`] and [`ClientError::BadKey`].
    pub fn new(url: &str, key: Option<&str>) -> Result<Self, ClientError> {
        let bad = || ClientError::BadUrl(url.to_owned());
        let whole = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let uri: Uri = whole.parse().map_err(|_| bad())?;
        // Base URLs are often given as OpenAI's clients want them.
        let plain = matches!(uri.path().trim_end_matches('/'), "" | "/v1");
        let authority =
            uri.authority().filter(|_| plain && uri.scheme_str() == Some("http")).ok_or_else(bad)?;
        let bearer = |key| {
            let mut value =
                HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| ClientError::BadKey)?;
            value.set_sensitive(true);
            Ok(value)
        };
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT));
        connector.set_nodelay(true);
        Ok(Self {
            http: HttpClient::builder(TokioExecutor::new()).build(connector),
            base: format!("http://{authority}"),
            key: key.map(bearer).transpose()?,
        })
    }

    /// `http://host:port`.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Status and JSON body of a `GET`.
    ///
    /// # Errors
    /// If there is no such answer.
    pub async fn get(&self, path: &str) -> Result<(StatusCode, Value), ClientError> {
        let response = timeout(ANSWER, self.send(Method::GET, path, Bytes::new())).await;
        let response = response.unwrap_or_else(|_| Err(self.not_there(&"no answer in time")))?;
        let status = response.status();
        Ok((status, self.body(response).await?))
    }

    /// Begins a streamed chat completion. Dropping it ends the request on the server, too.
    ///
    /// # Errors
    /// If the server is not there or refuses.
    pub async fn chat(&self, body: &Value) -> Result<Stream, ClientError> {
        let response = self.send(Method::POST, "/v1/chat/completions", body.to_string().into()).await?;
        let status = response.status();
        if status != StatusCode::OK {
            let body = self.body(response).await?;
            return Err(ClientError::refused(status, &body));
        }
        Ok(Stream::new(self.base.clone(), response.into_body()))
    }

    async fn send(&self, method: Method, path: &str, body: Bytes) -> Result<Response<Body>, ClientError> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key);
        }
        let request = request.header(CONTENT_TYPE, "application/json").body(Full::new(body));
        let request = request.map_err(|error| self.not_there(&error))?;
        let response = self.http.request(request).await;
        response.map(|response| response.map(Body::new)).map_err(|error| self.not_there(&root_cause(&error)))
    }

    async fn body(&self, response: Response<Body>) -> Result<Value, ClientError> {
        let strange = |reason: String| ClientError::Strange(self.base.clone(), reason);
        let status = response.status();
        let body = timeout(ANSWER, Limited::new(response.into_body(), BODY_LIMIT).collect()).await;
        let body = body.map_err(|_| strange("its answer does not end".to_owned()))?;
        let body = body.map_err(|error| strange(error.to_string()))?.to_bytes();
        serde_json::from_slice(&body).map_err(|_| strange(format!("status {status} without JSON")))
    }

    fn not_there(&self, reason: &dyn ToString) -> ClientError {
        ClientError::NotThere(self.base.clone(), reason.to_string())
    }
}

/// What to do about a refusal, where the server's words are not enough here.
fn advice(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "; give the key in LAGUNA_API_KEY, or its file with --api-key-file FILE",
        _ => "",
    }
}

/// The innermost reason: the outer ones say only that a request failed.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// To find out that nobody is there.
const CONNECT: Duration = Duration::from_secs(5);

/// For answers that need no model.
const ANSWER: Duration = Duration::from_secs(10);

/// Bytes of an answer in one piece.
const BODY_LIMIT: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_as_people_write_them() {
        for url in ["http://a:1", "a:1", "http://a:1/", "http://a:1/v1", "http://a:1/v1/"] {
            assert_eq!(Client::new(url, None).ok().map(|c| c.base), Some("http://a:1".to_owned()), "{url}");
        }
        for url in ["https://a:1", "http://a:1/x", "", "http://", "ftp://a", "a b"] {
            let error = Client::new(url, None).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains("http://HOST:PORT"), "{url}: {error}");
        }
        assert!(matches!(Client::new("a:1", Some("a\nb")), Err(ClientError::BadKey)));
    }
}
