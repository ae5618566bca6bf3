//! What went wrong, as a person is told: one message, one exit code.

use std::fmt::{self, Display};

/// A command's failure.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
    broken_pipe: bool,
    /// Nothing needs to be said about it.
    quiet: bool,
}

impl Failure {
    /// The command ran and failed: exit code 1.
    pub fn failed(message: impl Display) -> Self {
        Self { code: 1, message: message.to_string(), broken_pipe: false, quiet: false }
    }

    /// The user stopped it, and needs no telling: exit code 130, as shells have it.
    pub fn interrupted() -> Self {
        Self { code: 130, message: "interrupted".to_owned(), broken_pipe: false, quiet: true }
    }

    /// What was asked cannot be done as asked (flags, paths, files): exit code 2.
    pub fn usage(message: impl Display) -> Self {
        Self { code: 2, message: message.to_string(), broken_pipe: false, quiet: false }
    }

    /// A failed write to stdout. A reader that went away is no failure.
    pub fn stdout(error: &std::io::Error) -> Self {
        let broken_pipe = error.kind() == std::io::ErrorKind::BrokenPipe;
        Self { code: 1, message: format!("stdout: {error}"), broken_pipe, quiet: false }
    }

    /// Exit code.
    pub const fn code(&self) -> u8 {
        self.code
    }

    /// Whether nothing needs to be said about it.
    pub const fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Whether stdout's reader went away.
    pub const fn is_broken_pipe(&self) -> bool {
        self.broken_pipe
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
