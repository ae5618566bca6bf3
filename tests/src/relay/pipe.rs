//! One direction of a relay: datagrams wait until they are due, and a thread lets them out to the microsecond.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::link::{Fate, Link, Wire};

/// What has become of a direction's datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Let out.
    pub carried: u64,
    /// Lost at random.
    pub lost: u64,
    /// Dropped, the queue being full.
    pub overflowed: u64,
    /// Dropped, being larger than the MTU.
    pub too_large: u64,
    /// Swallowed while the link was cut.
    pub cut: u64,
}

/// Where a datagram leaves.
#[derive(Clone, Debug)]
pub(super) struct Exit {
    pub(super) socket: Arc<UdpSocket>,
    /// To whom; the socket's own peer if `None`.
    pub(super) to: Option<SocketAddr>,
}

#[derive(Debug)]
pub(super) struct Pipe {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    cut: AtomicBool,
    counts: Counts,
}

#[derive(Debug)]
struct State {
    wire: Wire,
    flights: BinaryHeap<Reverse<Flight>>,
    entered: u64,
    ended: bool,
}

#[derive(Debug, Default)]
struct Counts {
    carried: AtomicU64,
    lost: AtomicU64,
    overflowed: AtomicU64,
    too_large: AtomicU64,
    cut: AtomicU64,
}

/// A datagram on its way.
#[derive(Debug)]
struct Flight {
    due: Instant,
    /// Those that are due together leave as they came.
    number: u64,
    bytes: Vec<u8>,
    exit: Exit,
}

impl Pipe {
    pub(super) fn new(link: &Link, seed: u64) -> Self {
        let state =
            State { wire: Wire::new(link, seed), flights: BinaryHeap::new(), entered: 0, ended: false };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            cut: AtomicBool::new(false),
            counts: Counts::default(),
        });
        let own = shared.clone();
        Self { shared, thread: Some(thread::spawn(move || own.let_out())) }
    }

    /// A datagram enters.
    pub(super) fn send(&self, bytes: &[u8], exit: Exit) {
        let counts = &self.shared.counts;
        if self.shared.cut.load(Ordering::Relaxed) {
            counts.cut.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut state = self.shared.state();
        let now = Instant::now();
        let due = match state.wire.enter(bytes.len(), now) {
            Ok(due) => due,
            Err(fate) => {
                let count = match fate {
                    Fate::Lost => &counts.lost,
                    Fate::Overflowed => &counts.overflowed,
                    Fate::TooLarge => &counts.too_large,
                };
                count.fetch_add(1, Ordering::Relaxed);
                return;
            }
        };
        if due <= now && state.flights.is_empty() {
            // Held until it is out, so that none overtakes it.
            self.shared.leave(bytes, &exit);
            return;
        }
        state.entered += 1;
        let flight = Flight { due, number: state.entered, bytes: bytes.to_vec(), exit };
        let first = state.flights.peek().is_none_or(|Reverse(first)| flight < *first);
        state.flights.push(Reverse(flight));
        drop(state);
        if first {
            self.shared.changed.notify_one();
        }
    }

    pub(super) fn cut(&self, cut: bool) {
        self.shared.cut.store(cut, Ordering::Relaxed);
    }

    pub(super) fn traffic(&self) -> Traffic {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { carried, lost, overflowed, too_large, cut } = &self.shared.counts;
        Traffic {
            carried: of(carried),
            lost: of(lost),
            overflowed: of(overflowed),
            too_large: of(too_large),
            cut: of(cut),
        }
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.shared.state().ended = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // Its panic was reported where it happened.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread's life: sleeps until shortly before the next one is due, then looks again and again.
    fn let_out(&self) {
        let mut state = self.state();
        while !state.ended {
            let now = Instant::now();
            match state.flights.peek().map(|Reverse(first)| first.due) {
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(due) if due <= now => {
                    if let Some(Reverse(flight)) = state.flights.pop() {
                        self.leave(&flight.bytes, &flight.exit);
                    }
                }
                Some(due) if due - now > AWAKE => {
                    let sleep = self.changed.wait_timeout(state, due - now - AWAKE);
                    state = sleep.unwrap_or_else(PoisonError::into_inner).0;
                }
                // Let go in between: what enters may be due earlier.
                Some(_) => {
                    drop(state);
                    (0..SPINS).for_each(|_| std::hint::spin_loop());
                    state = self.state();
                }
            }
        }
    }

    fn leave(&self, bytes: &[u8], exit: &Exit) {
        if self.cut.load(Ordering::Relaxed) {
            self.counts.cut.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let sent = match exit.to {
            Some(to) => exit.socket.send_to(bytes, to),
            None => exit.socket.send(bytes),
        };
        // A refusal is of an earlier datagram: nobody listens there. This one was not sent then.
        let sent = match (sent, exit.to) {
            (Err(_), None) => exit.socket.send(bytes),
            (sent, _) => sent,
        };
        if sent.is_ok() {
            self.counts.carried.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl PartialEq for Flight {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Flight {}

impl PartialOrd for Flight {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Flight {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}

/// Awake for the last of the wait: the kernel's timers are late by some 50 µs, and so may the processor be.
const AWAKE: Duration = Duration::from_micros(100);

/// Between two looks while awake.
const SPINS: u32 = 32;
