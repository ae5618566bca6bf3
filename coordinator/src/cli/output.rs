//! The only place of this crate that writes to stdout and stderr by itself.
#![allow(clippy::print_stderr)]

use std::io::Write;

use super::failure::Failure;

/// Tells a person something, on stderr.
pub fn say(line: impl std::fmt::Display) {
    eprintln!("{line}");
}

/// Shows text on stderr as it is, without a line's end.
pub fn show(text: &str) {
    eprint!("{text}");
}

/// Writes data to stdout and flushes it, so that a reader sees it at once.
///
/// # Errors
/// If stdout is gone.
pub fn data(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(|e| Failure::stdout(&e))
}
