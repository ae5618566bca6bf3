//! What a worker answers when it cannot give rows. The connection stays usable.

use std::fmt;

use bytes::{BufMut, BytesMut};
use serde::{Deserialize, Serialize};

use super::frame::begin_frame;
use super::{CallId, FrameKind, WireError, codec};

/// Why a worker did not compute a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FailureCode {
    /// The layer has no routed experts in the worker's model.
    UnknownLayer,
    /// An expert outside the worker's range.
    ForeignExpert,
    /// Sizes or types that contradict each other or the model.
    BadShape,
    /// More calls in flight than [`super::MAX_CALLS_IN_FLIGHT`].
    Overloaded,
    /// The worker ends; another holder of the shard may answer.
    Draining,
    /// The arithmetic library failed.
    Backend,
}

impl FailureCode {
    /// Whether the same call may succeed at another holder, or later.
    pub const fn may_retry(self) -> bool {
        matches!(self, Self::Overloaded | Self::Draining | Self::Backend)
    }
}

impl fmt::Display for FailureCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownLayer => "unknown layer",
            Self::ForeignExpert => "foreign expert",
            Self::BadShape => "bad shape",
            Self::Overloaded => "overloaded",
            Self::Draining => "draining",
            Self::Backend => "backend failure",
        })
    }
}

/// A typed answer in place of a reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The call it answers.
    pub call: CallId,
    /// What went wrong.
    pub code: FailureCode,
    /// Details for a person, at most [`MESSAGE_LIMIT`] bytes.
    pub message: String,
}

impl Failure {
    /// A failure whose message is cut to the limit.
    pub fn new(call: CallId, code: FailureCode, message: impl fmt::Display) -> Self {
        let mut message = message.to_string();
        if message.len() > MESSAGE_LIMIT {
            let end = (0..=MESSAGE_LIMIT).rev().find(|at| message.is_char_boundary(*at)).unwrap_or(0);
            message.truncate(end);
        }
        Self { call, code, message }
    }

    /// Appends the frame.
    pub fn encode(&self, out: &mut BytesMut) -> Result<(), WireError> {
        let bytes = codec::encode("failure", self)?;
        begin_frame(out, FrameKind::Failure, bytes.len())?;
        out.put_slice(&bytes);
        Ok(())
    }

    /// Parses a frame's payload.
    pub fn decode(payload: &[u8]) -> Result<Self, WireError> {
        let failure: Self = codec::decode("failure", payload)?;
        if failure.message.len() > MESSAGE_LIMIT {
            let (value, limit) = (failure.message.len() as u64, MESSAGE_LIMIT as u64);
            return Err(WireError::OutOfRange { what: "message length", value, limit });
        }
        Ok(failure)
    }
}

/// Bytes of a failure's message.
pub const MESSAGE_LIMIT: usize = 1024;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::frame::FRAME_HEADER;

    #[test]
    fn round_trips_and_cuts_at_a_character() {
        let failure = Failure::new(CallId(9), FailureCode::Backend, "ä".repeat(MESSAGE_LIMIT));
        assert_eq!(failure.message.len(), MESSAGE_LIMIT);
        let mut out = BytesMut::new();
        failure.encode(&mut out).unwrap();
        assert_eq!(Failure::decode(&out[FRAME_HEADER..]), Ok(failure));
        out.put_u8(0);
        let error = Failure::decode(&out[FRAME_HEADER..]).unwrap_err();
        assert_eq!(error, WireError::Trailing { message: "failure", extra: 1 });
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = Failure::decode(&bytes);
        }
    }
}
