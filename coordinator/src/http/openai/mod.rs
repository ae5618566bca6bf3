//! OpenAI's dialects.
//!
//! - [`chat`]: answers `/v1/chat/completions`
//! - [`completions`]: answers `/v1/completions`
//! - [`models`]: answers `/v1/models`
//! - [`responses`]: answers `/v1/responses`

pub mod chat;
pub mod completions;
pub mod models;
pub mod responses;

use axum::http::HeaderValue;
use axum::http::header::WARNING;
use axum::response::Response;
use serde_json::{Value, json};

use super::turn::TurnUsage;
use crate::chat::FinishReason;

/// OpenAI's name of a reason.
pub(super) const fn reason(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
    }
}

/// `usage` of chat and text completions.
fn usage(usage: TurnUsage) -> Value {
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    })
}

/// Adds a `warning` header for each of `warnings`.
pub(super) fn warn(mut response: Response, warnings: &[String]) -> Response {
    for warning in warnings {
        let printable: String =
            warning.chars().map(|c| if matches!(c, ' '..='~') && c != '"' { c } else { '?' }).collect();
        if let Ok(value) = HeaderValue::from_str(&format!("299 laguna-coord \"{printable}\"")) {
            response.headers_mut().append(WARNING, value);
        }
    }
    response
}
