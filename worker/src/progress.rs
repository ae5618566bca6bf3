//! Loading, shown on stderr: a bar for eyes, a line now and then for logs.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use laguna_topology::Bytes;
use tracing::info;

/// Progress of one load.
#[derive(Debug)]
pub struct Progress {
    label: String,
    total: u64,
    done: u64,
    started: Instant,
    said: Instant,
    bar: ProgressBar,
}

impl Progress {
    /// Begins: `total` bytes are to be loaded.
    pub fn new(label: impl Into<String>, total: u64) -> Self {
        let label = label.into();
        let target = if std::io::stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(total), target).with_message(label.clone());
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style.progress_chars("━╸─"));
        }
        let now = Instant::now();
        Self { label, total, done: 0, started: now, said: now, bar }
    }

    /// `bytes` more are loaded.
    pub fn add(&mut self, bytes: u64) {
        self.done += bytes;
        self.bar.set_position(self.done);
        if self.bar.is_hidden() && self.said.elapsed() > SILENCE {
            self.said = Instant::now();
            info!("{}: {} of {}", self.label, Bytes(self.done), Bytes(self.total));
        }
    }

    /// Ends: the bar goes. Returns the time it took, for the line that says what was loaded.
    pub fn finish(self) -> Duration {
        self.bar.finish_and_clear();
        self.started.elapsed()
    }
}

const TEMPLATE: &str = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";

/// How often a log hears of a load that goes on.
const SILENCE: Duration = Duration::from_secs(5);
