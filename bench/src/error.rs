//! What can go wrong, as a person is told.

use std::error::Error;
use std::fmt::Display;
use std::io;

/// Why a measurement was not made.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// What was asked cannot be done as asked.
    #[error("{0}")]
    Usage(String),
    /// A file, a socket or a process.
    #[error("{what}: {error}")]
    Io {
        /// Which.
        what: String,
        /// What the system said.
        error: io::Error,
    },
    /// A process that this one started.
    #[error("child process for {role}: {reason}")]
    Child {
        /// What it was started for.
        role: &'static str,
        /// What happened.
        reason: String,
    },
    /// What is measured failed.
    #[error("{0}")]
    Failed(String),
}

impl BenchError {
    /// For `map_err`: names what failed.
    pub fn io(what: impl Display) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io { what: what.to_string(), error }
    }

    /// For `map_err`: an error of what is measured.
    pub fn failed(error: impl Into<Box<dyn Error>>) -> Self {
        Self::Failed(error.into().to_string())
    }

    /// 2 where what was asked cannot be done as asked, 1 where it was tried and failed.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            _ => 1,
        }
    }
}
