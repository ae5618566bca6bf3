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

/// What one shard's calls took since the last [`ShardTimes::take`].
#[derive(Clone, Copy, Debug, Default)]
pub struct ShardTimes {
    /// Calls answered so far, never reset.
    pub calls: u64,
    recent: u32,
    round_trip: Duration,
    compute: Duration,
    /// What the last [`ShardTimes::take`] that had replies returned.
    last: Option<(f32, f32)>,
}

impl ShardTimes {
    /// Records one reply.
    pub fn record(&mut self, round_trip: Duration, compute: Duration) {
        self.calls += 1;
        self.recent += 1;
        self.round_trip += round_trip;
        self.compute += compute;
    }

    /// Mean round trip and mean time of the bank, in microseconds, since the last call of this; while there is no
    /// reply, what it returned last.
    pub fn take(&mut self) -> Option<(f32, f32)> {
        let mean = |sum: Duration| sum.as_secs_f32() * 1e6 / self.recent as f32;
        let means = (self.recent > 0).then(|| (mean(self.round_trip), mean(self.compute)));
        *self = Self { calls: self.calls, last: means.or(self.last), ..Self::default() };
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_of_the_time_since_the_last_look_and_stay_while_nothing_comes() {
        let mut times = ShardTimes::default();
        assert_eq!(times.take(), None);
        times.record(Duration::from_micros(100), Duration::from_micros(40));
        times.record(Duration::from_micros(300), Duration::from_micros(80));
        let means = |times: &mut ShardTimes| times.take().map(|(a, b)| (a.round(), b.round()));
        assert_eq!(means(&mut times), Some((200.0, 60.0)));
        assert_eq!(means(&mut times), Some((200.0, 60.0)));
        times.record(Duration::from_micros(50), Duration::from_micros(10));
        assert_eq!(means(&mut times), Some((50.0, 10.0)));
        assert_eq!(times.calls, 3);
    }
}
