//! How much may be in flight: a wide window that shrinks on loss and grows back with every acknowledgement.
//!
//! Cubic is made for paths shared with strangers. Here one message at a time crosses a link of one's own, in bursts
//! with pauses: cubic's window grows only while it is the limit, so a few losses an hour would leave it small for good;
//! and quinn paces at `window / round trip`, where a round trip seems as long as the other end computed before it
//! acknowledged. A wide window keeps that pace above what the link carries.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use quinn::congestion::{Controller, ControllerFactory};

/// Builds [`LinkWindow`]s.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LinkWindowFactory;

impl ControllerFactory for LinkWindowFactory {
    fn build(self: Arc<Self>, now: Instant, _: u16) -> Box<dyn Controller> {
        Box::new(LinkWindow { window: WIDEST, reduced: now })
    }
}

/// One connection's window, in bytes.
#[derive(Clone, Debug)]
struct LinkWindow {
    window: u64,
    /// When it was last halved: losses among packets sent before then are the same event.
    reduced: Instant,
}

impl Controller for LinkWindow {
    fn on_end_acks(&mut self, _: Instant, _: u64, _: bool, _: Option<u64>) {
        self.window = (self.window + GROWTH).min(WIDEST);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent: bool, _: u64) {
        if sent <= self.reduced {
            return;
        }
        self.reduced = now;
        self.window = if is_persistent { NARROWEST } else { (self.window / 2).max(NARROWEST) };
    }

    fn on_mtu_update(&mut self, _: u16) {}

    fn window(&self) -> u64 {
        self.window
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        WIDEST
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// Bytes in flight on a clean link: a prefill chunk at once. Beyond what two 4 MiB socket buffers hold, waiting is better.
const WIDEST: u64 = 8 * 1024 * 1024;

/// Bytes in flight after losses: several datagrams of the largest size, so that a decode step never waits for it.
const NARROWEST: u64 = 256 * 1024;

/// Bytes regained per batch of acknowledgements: from narrowest to widest in some 250 decode steps, or one chunk.
const GROWTH: u64 = 32 * 1024;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_halving_a_round_and_back_again() {
        let start = Instant::now();
        let mut window = Arc::new(LinkWindowFactory).build(start, 1200);
        assert_eq!(window.window(), WIDEST);
        let at = |ms| start + Duration::from_millis(ms);
        window.on_congestion_event(at(3), at(1), false, 1200);
        window.on_congestion_event(at(4), at(2), false, 1200);
        assert_eq!(window.window(), WIDEST / 2);
        window.on_congestion_event(at(6), at(5), true, 1200);
        assert_eq!(window.window(), NARROWEST);
        (0..300).for_each(|_| window.on_end_acks(at(7), 0, true, None));
        assert_eq!(window.window(), WIDEST);
    }
}
