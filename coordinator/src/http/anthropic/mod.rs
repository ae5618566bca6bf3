//! Anthropic's dialect.
//!
//! - [`messages`]: answers `/v1/messages`
//! - [`request`]: its body, for both routes
//! - [`blocks`]: its answer, in one piece or as events
//! - [`count_tokens`]: answers `/v1/messages/count_tokens`

pub mod blocks;
pub mod count_tokens;
pub mod messages;
pub mod request;
