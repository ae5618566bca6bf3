//! How a worker is told to stop: from another thread, or from a signal, whether it computes, spins or sleeps.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags};

/// Tells one worker to stop.
#[derive(Clone, Debug)]
pub struct Stopper {
    is_wanted: Arc<AtomicBool>,
    waker: Arc<UnixStream>,
}

impl Stopper {
    /// Asks the worker to finish its running call, tell every coordinator, and return.
    pub fn stop(&self) {
        self.is_wanted.store(true, Ordering::Release);
        // Fails where bytes lie there already: then it is awake.
        let _ = (&*self.waker).write(&[0]);
    }

    /// What is set to true before the worker is woken. For signal handlers, which may do no more than that.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.is_wanted.clone()
    }

    /// A byte written here wakes the worker if it sleeps. For signal handlers, after the flag.
    pub fn waker(&self) -> io::Result<UnixStream> {
        self.waker.try_clone()
    }
}

/// The worker's end of it.
#[derive(Debug)]
pub(super) struct Stop {
    stopper: Stopper,
    wake: UnixStream,
}

impl Stop {
    pub(super) fn new() -> io::Result<Self> {
        let (wake, waker) = UnixStream::pair()?;
        waker.set_nonblocking(true)?;
        Ok(Self { stopper: Stopper { is_wanted: Arc::default(), waker: Arc::new(waker) }, wake })
    }

    pub(super) fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.stopper.is_wanted.load(Ordering::Acquire)
    }

    /// What to sleep on until a stop is wanted. From then on it stays ready.
    pub(super) fn poll_fd(&self) -> PollFd<'_> {
        PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN)
    }
}
