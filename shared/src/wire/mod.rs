//! Bytes between a coordinator and a worker. Sans-IO: no socket, no clock, no runtime.
//!
//! Read in this order:
//!
//! - [`frame`]: length-prefixed frames, their kinds and limits; a decoder that accepts any split of bytes
//! - [`hello`]: who each end is, and why they do not fit
//! - [`dispatch`]: expert calls and replies: a fixed header, then raw numbers
//! - [`failure`]: what a worker answers instead of a reply
//! - [`close`]: codes with which a connection ends
//! - `codec`: the one file that names bincode
//! - [`error`]: how bytes can be wrong
//!
//! # Protocol version 1
//!
//! Everything is little-endian. One ordered, reliable, authenticated byte stream in each direction:
//!
//! ```text
//! coordinator                              worker
//! Hello(what I expect of you)        ─►
//!                                    ◄─   Welcome(what I am)   or   Refusal(both values), then close
//! Call(id, layer, rows)              ─►
//! Call(id + 1, …)                    ─►   up to MAX_CALLS_IN_FLIGHT
//!                                    ◄─   Reply(id, one f32 row per row sent)
//!                                    ◄─   Failure(id, code, message)      the connection stays usable
//! close(code)                        ◄─►  close(code), see [`close::CloseCode`]
//! ```
//!
//! A frame is `length u32, kind u8, 3 zero bytes`, then `length` bytes. The limit of a frame follows from its kind and
//! is checked before any memory is set aside for it; memory then grows only as bytes arrive.
//!
//! The three greeting frames open with the protocol version, outside bincode, so that any two versions can name each
//! other's number. Workers keep nothing between calls: a call may be repeated on any holder of the shard.

pub mod close;
pub(crate) mod codec;
pub mod dispatch;
pub mod error;
pub mod failure;
pub mod frame;
pub mod hello;

pub use close::CloseCode;
pub use dispatch::{CallId, ExpertCall, ExpertReply, WorkerTimes};
pub use error::WireError;
pub use failure::{Failure, FailureCode};
pub use frame::{FrameBuffer, FrameDecoder, FrameKind};
pub use hello::{Hello, Mismatch, Refusal, Subject, Welcome};

#[cfg(target_endian = "big")]
compile_error!("rows travel as the little-endian memory they are computed in");

/// Version of the bytes described here. Both ends must have the same.
pub const PROTOCOL_VERSION: u32 = 1;

/// Calls that may be unanswered on one connection. A worker refuses more as overloaded.
pub const MAX_CALLS_IN_FLIGHT: usize = 8;

/// The release both ends must share: replies of another release may differ in the last bit.
pub const BUILD: &str = env!("CARGO_PKG_VERSION");
