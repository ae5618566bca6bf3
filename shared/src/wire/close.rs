//! Codes with which either end closes a connection. Transport-neutral: QUIC carries them as application codes.

use std::fmt;

/// Why a connection was closed by the one who closed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CloseCode {
    /// The work is done, or the program ends normally.
    Done,
    /// The other end broke the protocol.
    ProtocolError,
    /// The hello was refused; the reason went ahead as a frame.
    Refused,
    /// The worker finishes and takes no more calls.
    Draining,
    /// The other end stayed silent past a deadline.
    TimedOut,
    /// The worker has as many coordinators as it admits, and this connection was the one idle longest.
    Crowded,
    /// A code that this version does not know.
    Other(u64),
}

impl CloseCode {
    /// The number on the wire.
    pub const fn number(self) -> u64 {
        match self {
            Self::Done => 0,
            Self::ProtocolError => 1,
            Self::Refused => 2,
            Self::Draining => 3,
            Self::TimedOut => 4,
            Self::Crowded => 5,
            Self::Other(number) => number,
        }
    }

    /// The code with this number.
    pub const fn from_number(number: u64) -> Self {
        match number {
            0 => Self::Done,
            1 => Self::ProtocolError,
            2 => Self::Refused,
            3 => Self::Draining,
            4 => Self::TimedOut,
            5 => Self::Crowded,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::ProtocolError => f.write_str("protocol error"),
            Self::Refused => f.write_str("refused"),
            Self::Draining => f.write_str("draining"),
            Self::TimedOut => f.write_str("timed out"),
            Self::Crowded => f.write_str("too many coordinators"),
            Self::Other(number) => write!(f, "code {number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip() {
        for number in 0..10 {
            assert_eq!(CloseCode::from_number(number).number(), number);
        }
    }
}
