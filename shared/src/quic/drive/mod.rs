//! QUIC over one UDP socket, on the thread that calls: `quinn-proto` for the protocol, `quinn-udp` for the system calls.
//!
//! Read in this order:
//!
//! - [`socket`]: datagrams in and out, in batches; sleeps in a read when asked to
//! - [`conn`]: one connection with its one stream, as bytes
//! - [`endpoint`]: [`Drive`]: the connections of a socket, their datagrams and their timers
//! - [`wait`]: what a thread does while nothing has arrived: spin, then sleep
//!
//! # Why not quinn's own driver
//!
//! It makes three tasks of a round trip, and a runtime parks between them: 12 to 15 µs more at each end than the same
//! protocol driven by hand, and no way to spin. quinn itself is what these ends are tested against.
//!
//! # How to drive
//!
//! A turn is [`Drive::advance`], then whatever the owner does with its connections, then [`Drive::flush`]. Between two
//! turns [`Drive::sleep`] until [`Drive::due`], or with several drives sleep on all of them and then look. Datagrams come
//! before timers: a thread that computed for a second must not take for lost what lies in its socket.
//!
//! # Copies
//!
//! A message's bytes are copied six times on the way from one session to the other: into the frame, into the packet
//! (encrypted there), into the kernel and out of it, out of the read's buffer (decrypted there), into the aligned frame
//! that the bank or the engine reads. Two of them are the kernel's, and the fifth buys memory that is used again.

pub(crate) mod conn;
pub(crate) mod endpoint;
pub(crate) mod socket;
pub(crate) mod wait;

pub(crate) use conn::{Conn, Read, StreamError};
pub(crate) use endpoint::{ConnId, Drive};

#[cfg(test)]
mod tests;
