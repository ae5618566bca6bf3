//! How long the exchange of a sparse layer takes, from dispatch to the last partial sum.

use std::time::Duration;

/// Durations of exchanges since the last [`ExchangeTimes::take`].
#[derive(Debug, Default)]
pub struct ExchangeTimes {
    micros: Vec<f32>,
}

/// Percentiles of one sparse layer's exchange, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExchangeSummary {
    /// Exchanges measured.
    pub count: usize,
    /// Median.
    pub p50: f32,
    /// 99th percentile.
    pub p99: f32,
}

impl ExchangeTimes {
    /// Records one exchange.
    pub fn record(&mut self, elapsed: Duration) {
        // A long-lived server that nobody asks keeps the recent ones only.
        if self.micros.len() >= CAPACITY {
            self.micros.drain(..CAPACITY / 2);
        }
        self.micros.push(elapsed.as_secs_f32() * 1e6);
    }

    /// Summarises what was recorded and starts afresh; `None` if nothing was.
    pub fn take(&mut self) -> Option<ExchangeSummary> {
        let mut micros = std::mem::take(&mut self.micros);
        micros.sort_by(f32::total_cmp);
        let last = micros.len().checked_sub(1)?;
        let at = |q: f64| micros[(last as f64 * q).round() as usize];
        Some(ExchangeSummary { count: micros.len(), p50: at(0.50), p99: at(0.99) })
    }
}

/// Exchanges kept: a few thousand tokens of a 47-layer model.
const CAPACITY: usize = 1 << 18;
