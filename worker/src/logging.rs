//! What a process says on stderr: log lines, filtered by LAGUNA_LOG, and its last words.
#![allow(clippy::print_stderr)]

use std::fmt::Display;
use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Sends log lines to stderr: `info` and above, or what the environment variable LAGUNA_LOG says (`warn`,
/// `laguna_shared=debug`, …). Colours only on a terminal, and not where NO_COLOR is set.
pub fn init() {
    let filter = EnvFilter::try_from_env("LAGUNA_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(color())
        .with_target(false)
        .without_time()
        .init();
}

/// Tells a person why the process ends.
pub fn error(error: &dyn Display) {
    let (red, plain) = if color() { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
    eprintln!("{red}error:{plain} {error}");
}

fn color() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}
