//! What a thread does while nothing has arrived: it spins for a while, if that is wanted, then sleeps.
//!
//! A sleeping thread costs its waker 5 µs and more, and far more on a core that went idle: with a millisecond of
//! computing between calls that wake-up is the largest part of a round trip.

use std::hint;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, Timespec, poll};

/// How long to go on looking before sleeping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spin {
    until: Option<Instant>,
}

impl Spin {
    /// From `since`, for one window, if spinning is wanted at all.
    pub(crate) fn new(is_on: bool, since: Instant) -> Self {
        Self { until: is_on.then(|| since + WINDOW) }
    }

    /// Whether to look again at once, rather than to sleep.
    pub(crate) fn goes_on(self, now: Instant) -> bool {
        let goes_on = self.until.is_some_and(|until| now < until);
        if goes_on {
            hint::spin_loop();
        }
        goes_on
    }
}

/// Sleeps until one of these is ready or time has come. Wakes early now and then: look at everything after it.
pub(crate) fn sleep(fds: &mut [PollFd<'_>], until: Option<Instant>) {
    // A time that cannot be said is as good as none.
    let timeout = until
        .map(|until| until.saturating_duration_since(Instant::now()))
        .and_then(|left| Timespec::try_from(left).ok());
    if let Err(error) = poll(fds, timeout.as_ref())
        && error != rustix::io::Errno::INTR
    {
        tracing::debug!(%error, "cannot sleep on the sockets");
        std::thread::sleep(RETRY);
    }
}

/// Longer than the time between two sparse layers, so that a spinning end is awake when the next call or reply comes.
const WINDOW: Duration = Duration::from_millis(4);

/// Where the system would not let it sleep.
const RETRY: Duration = Duration::from_millis(1);
