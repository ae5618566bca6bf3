//! What goes wrong, once, and how each dialect words it.
//!
//! A handler returns a [`Fault`]; the outermost layer ([`word`]) writes the body in the dialect of the path, so that
//! auth, guard, routing and handlers need not know who asked.

use std::time::Duration;

use axum::extract::Request;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::journal::Served;
use crate::chat::{MessageError, TemplateError};
use crate::engine::request::{AdmissionError, EngineError};
use crate::text::TextError;

/// Why a request is refused or has failed. Display is what a person is told.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Fault {
    /// The body is not what this route takes.
    #[error("{message}")]
    BadRequest {
        /// Place and reason.
        message: String,
        /// Path of the field, `messages[3].content`.
        param: Option<String>,
    },
    /// Understood, but not built: it would change the result, so it is not ignored.
    #[error("{param}: {reason}")]
    Unsupported {
        /// Path of the field.
        param: String,
        /// What is missing, and what to do instead.
        reason: String,
    },
    /// Prompt and completion do not fit the context.
    #[error(
        "This model's maximum context length is {context} tokens. However, you requested {} tokens ({prompt} in the \
         messages, {completion} in the completion).",
        prompt + completion
    )]
    TooLong {
        /// Prompt tokens.
        prompt: usize,
        /// Completion tokens asked for, at least one.
        completion: usize,
        /// Tokens of the served context.
        context: usize,
    },
    /// No key, or a wrong one.
    #[error("{0}")]
    Unauthenticated(&'static str),
    /// A foreign `Host` or `Origin`; the message names the flag that allows it.
    #[error("{0}")]
    Forbidden(String),
    /// No such route or model.
    #[error("{0}")]
    NotFound(String),
    /// The route exists, with another method.
    #[error("{0}")]
    MethodNotAllowed(String),
    /// The body is over the limit.
    #[error("the request body is larger than {limit} bytes")]
    BodyTooLarge {
        /// Bytes taken.
        limit: usize,
    },
    /// The queue is full.
    #[error("{message}")]
    QueueFull {
        /// How many wait, and when to try again.
        message: String,
        /// When to try again.
        retry_after: Duration,
    },
    /// Loading, draining, or a shard is missing.
    #[error("{message}")]
    Unavailable {
        /// Which.
        message: String,
        /// `loading`, `shutting_down`, `cancelled` or `shard_unavailable`.
        code: &'static str,
    },
    /// A worker failed while the request ran.
    #[error("{0}")]
    WorkerLost(String),
    /// The request took longer than it may.
    #[error("{0}")]
    Deadline(String),
    /// The server's fault.
    #[error("{0}")]
    Internal(String),
}

/// Whose error bodies a path has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `{"error": {message, type, param, code}}`.
    OpenAi,
    /// `{"type": "error", "error": {type, message}}`.
    Anthropic,
}

impl Dialect {
    /// The dialect of `path`.
    pub fn of(path: &str) -> Self {
        let own = path == MESSAGES || path.strip_prefix(MESSAGES).is_some_and(|rest| rest.starts_with('/'));
        if own { Self::Anthropic } else { Self::OpenAi }
    }
}

impl Fault {
    /// A field that is not what it should be: `path: expected …, got …`.
    pub fn field(path: &str, reason: impl std::fmt::Display) -> Self {
        Self::BadRequest { message: format!("{path}: {reason}"), param: Some(path.to_owned()) }
    }

    /// A field whose value is understood and not supported.
    pub fn unsupported(param: &str, reason: &str) -> Self {
        Self::Unsupported { param: param.to_owned(), reason: reason.to_owned() }
    }

    /// Status of a response that has not begun.
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::BadRequest { .. } | Self::Unsupported { .. } | Self::TooLong { .. } => {
                StatusCode::BAD_REQUEST
            }
            Self::Unauthenticated(_) => StatusCode::UNAUTHORIZED,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::QueueFull { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Unavailable { .. } | Self::WorkerLost(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Deadline(_) => StatusCode::GATEWAY_TIMEOUT,
            Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// OpenAI's `type`.
    const fn kind(&self) -> &'static str {
        match self {
            Self::BadRequest { .. }
            | Self::Unsupported { .. }
            | Self::TooLong { .. }
            | Self::MethodNotAllowed(_)
            | Self::BodyTooLarge { .. } => "invalid_request_error",
            Self::Unauthenticated(_) => "authentication_error",
            Self::Forbidden(_) => "permission_error",
            Self::NotFound(_) => "not_found_error",
            Self::QueueFull { .. } => "rate_limit_error",
            Self::Unavailable { .. } | Self::WorkerLost(_) | Self::Deadline(_) | Self::Internal(_) => {
                "server_error"
            }
        }
    }

    /// OpenAI's `code`; programs compare it.
    pub const fn code(&self) -> Option<&'static str> {
        match self {
            Self::Unsupported { .. } => Some("unsupported_parameter"),
            Self::TooLong { .. } => Some("context_length_exceeded"),
            Self::Unauthenticated(_) => Some("invalid_api_key"),
            Self::BodyTooLarge { .. } => Some("request_too_large"),
            Self::QueueFull { .. } => Some("queue_full"),
            Self::Unavailable { code, .. } => Some(code),
            Self::WorkerLost(_) => Some("worker_lost"),
            Self::Deadline(_) => Some("deadline_exceeded"),
            _ => None,
        }
    }

    /// For logs: what went wrong, without anything that the client wrote.
    pub fn brief(&self) -> String {
        let code = self.code().unwrap_or_else(|| self.kind());
        match self {
            Self::BadRequest { .. } | Self::Unsupported { .. } => code.to_owned(),
            Self::Forbidden(_) | Self::NotFound(_) | Self::MethodNotAllowed(_) => code.to_owned(),
            _ => format!("{code}: {self}"),
        }
    }

    fn param(&self) -> Option<&str> {
        match self {
            Self::BadRequest { param, .. } => param.as_deref(),
            Self::Unsupported { param, .. } => Some(param),
            Self::TooLong { .. } => Some("messages"),
            _ => None,
        }
    }

    /// When to try again, for faults that pass.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::QueueFull { retry_after, .. } => Some(*retry_after),
            Self::Unavailable { .. } | Self::WorkerLost(_) => Some(RETRY_UNAVAILABLE),
            _ => None,
        }
    }

    /// The body in OpenAI's dialect, also the `data:` of an error inside a stream.
    pub fn openai(&self) -> Value {
        json!({"error": {
            "message": self.to_string(),
            "type": self.kind(),
            "param": self.param(),
            "code": self.code(),
        }})
    }

    /// The body in Anthropic's dialect, also the `data:` of an error inside a stream.
    pub fn anthropic(&self) -> Value {
        let kind = match self {
            Self::BodyTooLarge { .. } => "request_too_large",
            Self::Unavailable { .. } => "overloaded_error",
            Self::Deadline(_) => "timeout_error",
            Self::WorkerLost(_) | Self::Internal(_) => "api_error",
            _ => self.kind(),
        };
        let message = match self {
            Self::TooLong { prompt, context, .. } if prompt > context => {
                format!("prompt is too long: {prompt} tokens > {context} maximum")
            }
            // One more token has to fit behind the prompt.
            Self::TooLong { prompt, context, .. } => {
                format!("prompt is too long: {} tokens > {context} maximum", prompt + 1)
            }
            _ => self.to_string(),
        };
        json!({"type": "error", "error": {"type": kind, "message": message}})
    }

    /// The body in `dialect`.
    pub fn body(&self, dialect: Dialect) -> Value {
        match dialect {
            Dialect::OpenAi => self.openai(),
            Dialect::Anthropic => self.anthropic(),
        }
    }
}

impl IntoResponse for Fault {
    /// A response without a body; [`word`] writes it.
    fn into_response(self) -> Response {
        let mut response = self.status().into_response();
        if let Some(after) = self.retry_after() {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(after.as_secs().max(1)));
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// The layer around all that answer: gives every [`Fault`] its body.
pub async fn word(request: Request, next: Next) -> Response {
    let dialect = Dialect::of(request.uri().path());
    let served = request.extensions().get::<Served>().cloned();
    let mut response = next.run(request).await;
    if let Some(fault) = response.extensions_mut().remove::<Fault>() {
        if let Some(served) = served {
            served.failed(&fault);
        }
        let headers = response.headers_mut();
        headers.remove(axum::http::header::CONTENT_LENGTH);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        *response.body_mut() = fault.body(dialect).to_string().into();
    }
    response
}

impl From<MessageError> for Fault {
    fn from(error: MessageError) -> Self {
        Self::BadRequest { message: error.to_string(), param: Some(error.path) }
    }
}

impl From<TemplateError> for Fault {
    fn from(error: TemplateError) -> Self {
        if error.is_request_fault() {
            Self::BadRequest { message: error.to_string(), param: Some("messages".to_owned()) }
        } else {
            Self::Internal(error.to_string())
        }
    }
}

impl From<TextError> for Fault {
    fn from(error: TextError) -> Self {
        Self::Internal(error.to_string())
    }
}

impl From<AdmissionError> for Fault {
    fn from(error: AdmissionError) -> Self {
        let message = error.to_string();
        match error {
            AdmissionError::QueueFull { retry_after, .. } => Self::QueueFull { message, retry_after },
            AdmissionError::TooLong { prompt, context } => Self::TooLong { prompt, completion: 1, context },
            AdmissionError::TooLarge { .. } | AdmissionError::BadPrompt(_) => {
                Self::BadRequest { message, param: None }
            }
            AdmissionError::Draining => Self::Unavailable { message, code: "shutting_down" },
        }
    }
}

impl From<EngineError> for Fault {
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        match error {
            EngineError::WorkerLost(_) => Self::WorkerLost(message),
            EngineError::Deadline(_) => Self::Deadline(message),
            EngineError::Failed(_) => Self::Internal(message),
        }
    }
}

/// Anthropic's route; what lies below it speaks the same dialect.
const MESSAGES: &str = "/v1/messages";

/// Shards reconnect and models load in seconds, not in milliseconds.
const RETRY_UNAVAILABLE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_is_worded_as_each_client_looks_for_it() {
        let fault = Fault::TooLong { prompt: 136_017, completion: 4_096, context: 131_072 };
        let body = fault.openai();
        assert_eq!(
            body["error"]["message"],
            "This model's maximum context length is 131072 tokens. However, you requested 140113 tokens (136017 in \
             the messages, 4096 in the completion)."
        );
        assert_eq!(body["error"]["code"], "context_length_exceeded");
        assert_eq!(
            fault.anthropic()["error"]["message"],
            "prompt is too long: 136017 tokens > 131072 maximum"
        );
    }

    #[test]
    fn dialects_follow_the_path() {
        assert_eq!(Dialect::of("/v1/messages"), Dialect::Anthropic);
        assert_eq!(Dialect::of("/v1/messages/count_tokens"), Dialect::Anthropic);
        assert_eq!(Dialect::of("/v1/messagesx"), Dialect::OpenAi);
    }
}
