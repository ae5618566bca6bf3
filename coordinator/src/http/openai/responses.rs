//! `/v1/responses`.

use axum::http::StatusCode;

/// Not there yet.
pub async fn create() -> StatusCode {
    StatusCode::NOT_IMPLEMENTED
}
