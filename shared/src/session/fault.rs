//! What can go wrong between the two ends, grouped by who is at fault, and how to say it to a person.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::ids::{LayerId, ShardId};
use crate::wire::{CallId, CloseCode, FailureCode, FrameKind, Mismatch, Refusal, WireError};

/// A fault of one shard, as the engine gets it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{shard} ({address}): {fault}; {}", fault.advice())]
pub struct ShardError {
    /// Index of the link, `0..Links::shards().len()`.
    pub link: usize,
    /// Shard as the topology names it.
    pub shard: ShardId,
    /// Where the shard's worker was expected: `10.0.5.2:4433`, or `in memory`.
    pub address: Arc<str>,
    /// What happened.
    pub fault: Fault,
    /// Calls that will not be answered because of it. They can be repeated on any holder of the shard.
    pub calls: Vec<CallId>,
}

/// Every shard that could not be reached or did not fit, when a cluster is put together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectError(pub Vec<ShardError>);

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, error) in self.0.iter().enumerate() {
            write!(f, "{}{error}", if n == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for ConnectError {}

/// What happened to a link or a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The worker, its host or the path to it is gone.
    #[error("worker is gone: {0}")]
    PeerGone(Gone),
    /// The worker broke the protocol.
    #[error("worker broke the protocol: {0}")]
    PeerMisbehaved(Misbehaviour),
    /// The two ends do not fit together.
    #[error("incompatible {0}")]
    Incompatible(Box<Mismatch>),
    /// The worker answered a call, or the hello, with a typed refusal. The link stays up after a refused call.
    #[error("worker refused {}: {code}: {message}", call.map_or_else(|| "the hello".to_owned(), |call| call.to_string()))]
    Refused {
        /// The call; `None` for the hello.
        call: Option<CallId>,
        /// Why.
        code: FailureCode,
        /// What the worker said.
        message: String,
    },
    /// No answer within the deadline.
    #[error("no {missing} within {}", Seconds(*after))]
    TimedOut {
        /// What was waited for.
        missing: Missing,
        /// How long.
        after: Duration,
    },
    /// One end could not prove to be the one expected.
    #[error("not authenticated: {0}")]
    Unauthenticated(String),
    /// The engine asked for something that cannot be sent. The link stays up.
    #[error("call cannot be sent: {0}")]
    BadCall(WireError),
    /// As many calls are in flight as the protocol allows. The link stays up.
    #[error("{0} calls are in flight already")]
    Saturated(usize),
    /// The link failed before and was not connected again.
    #[error("the connection was lost earlier")]
    Down,
    /// A local socket or setting failed.
    #[error("{0}")]
    Local(String),
}

impl Fault {
    /// What a person can do about it: half a sentence.
    pub fn advice(&self) -> &'static str {
        match self {
            Self::PeerGone(Gone::NothingListens) => {
                "start the worker there, or correct the address in the topology"
            }
            Self::PeerGone(Gone::Unreachable(_)) => {
                "check the cable, the network and the address in the topology"
            }
            Self::PeerGone(Gone::Closed(CloseCode::Draining | CloseCode::Done)) => "start the worker again",
            Self::PeerGone(_) => "look at the worker's log, then start it again",
            Self::PeerMisbehaved(_) => {
                "run the same release on both ends, and report this if it happens again"
            }
            Self::Incompatible(_) => {
                "both ends need the same release, the same model and the same topology file"
            }
            Self::Refused { code: FailureCode::Overloaded, .. } => {
                "fewer coordinators should use this worker"
            }
            Self::Refused { code: FailureCode::Draining, .. } => "start the worker again",
            Self::Refused { .. } => "look at the worker's log",
            Self::TimedOut { missing: Missing::Connection, .. } => {
                "check that the worker runs, and that UDP reaches it through firewalls"
            }
            Self::TimedOut { .. } => {
                "see whether the worker is overloaded or asleep, or allow calls more time"
            }
            Self::Unauthenticated(_) => "give both ends the keys of the same `laguna-coord keygen`",
            Self::BadCall(_) | Self::Saturated(_) => "this is a fault in the coordinator",
            Self::Down => "it is connected again once the worker is back",
            Self::Local(_) => "look at this machine's network settings",
        }
    }

    /// Whether the link can be used on.
    pub fn leaves_link_up(&self) -> bool {
        matches!(self, Self::Refused { call: Some(_), .. } | Self::BadCall(_) | Self::Saturated(_))
    }

    /// Code to close the connection with.
    pub fn close_code(&self) -> CloseCode {
        match self {
            Self::PeerMisbehaved(_) => CloseCode::ProtocolError,
            Self::Incompatible(_) | Self::Unauthenticated(_) => CloseCode::Refused,
            Self::TimedOut { .. } => CloseCode::TimedOut,
            _ => CloseCode::Done,
        }
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Mismatch(mismatch) => Self::Incompatible(Box::new(mismatch)),
            Refusal::Draining => Self::Refused {
                call: None,
                code: FailureCode::Draining,
                message: "worker is about to end".to_owned(),
            },
            Refusal::Malformed(message) => Self::Refused { call: None, code: FailureCode::BadShape, message },
        }
    }
}

/// How a peer went away.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Gone {
    /// The host is there; no process has the port.
    #[error("nothing listens there")]
    NothingListens,
    /// The host or its network cannot be reached.
    #[error("unreachable ({0})")]
    Unreachable(String),
    /// The peer closed the connection.
    #[error("closed by worker ({0})")]
    Closed(CloseCode),
    /// Nothing was heard for so long that the connection was given up.
    #[error("silent for too long")]
    Silent,
    /// The connection ended otherwise.
    #[error("connection lost ({0})")]
    Lost(String),
}

/// How a peer broke the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misbehaviour {
    /// Bytes that are no frame or message.
    #[error("{0}")]
    Wire(#[from] WireError),
    /// A frame that has no place now.
    #[error("unexpected {} frame", .0.name())]
    Unexpected(FrameKind),
    /// An answer to a call that is unknown, finished or answered already.
    #[error("answer to {0}, which is not in flight")]
    UnknownCall(CallId),
    /// An answer that does not have the call's shape.
    #[error("reply to {call} has {what} {got} instead of {expected}")]
    Shape {
        /// The call.
        call: CallId,
        /// What differs: `layer`, `rows` or `hidden`.
        what: &'static str,
        /// As called.
        expected: usize,
        /// As answered.
        got: usize,
    },
    /// The stream ended without a close.
    #[error("stream ended inside the session")]
    StreamEnded,
}

/// What a deadline ended the wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// The transport's handshake.
    #[error("connection")]
    Connection,
    /// The greeting.
    #[error("welcome")]
    Welcome,
    /// The reply to a call.
    #[error("reply to {call} ({layer}, {rows} rows)")]
    Reply {
        /// The call.
        call: CallId,
        /// Its layer.
        layer: LayerId,
        /// Its rows.
        rows: usize,
    },
}

/// A duration as a person says it: `30 s`, `0.25 s`.
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s", self.0.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Subject;

    fn text(fault: Fault) -> String {
        ShardError { link: 0, shard: ShardId(1), address: "10.0.5.2:4433".into(), fault, calls: Vec::new() }
            .to_string()
    }

    #[test]
    fn messages_name_the_shard_the_numbers_and_what_to_do() {
        let missing = Missing::Reply { call: CallId(17), layer: LayerId(5), rows: 3 };
        let timed_out = Fault::TimedOut { missing, after: Duration::from_secs(30) };
        assert_eq!(
            text(timed_out),
            "shard 1 (10.0.5.2:4433): no reply to call 17 (layer 5, 3 rows) within 30 s; \
             see whether the worker is overloaded or asleep, or allow calls more time"
        );
        let mismatch = Mismatch {
            subject: Subject::Shard,
            coordinator: "shard 1".to_owned(),
            worker: "shard 0".to_owned(),
        };
        assert_eq!(
            text(Fault::Incompatible(Box::new(mismatch))),
            "shard 1 (10.0.5.2:4433): incompatible shard: coordinator has shard 1, worker has shard 0; \
             both ends need the same release, the same model and the same topology file"
        );
        let shape = Misbehaviour::Shape { call: CallId(2), what: "rows", expected: 3, got: 4 };
        assert!(text(Fault::PeerMisbehaved(shape)).contains("reply to call 2 has rows 4 instead of 3"));
    }
}
