//! How long the exchange of a sparse layer takes, from dispatch to the last partial sum, and each shard's part in it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use laguna_shared::wire::WorkerTimes;

use super::histogram::{Counts, Histogram};

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

/// What one shard's calls took.
#[derive(Debug, Default)]
pub struct ShardTimes {
    /// Calls answered so far, never reset.
    pub calls: u64,
    recent: u32,
    round_trip: Duration,
    compute: Duration,
    /// What the last [`ShardTimes::take`] that had replies returned.
    last: Option<(f32, f32)>,
    /// All of them by size, for any thread to read.
    pub by_size: Arc<CallTimes>,
    percentiles: Vec<Recent>,
}

/// The calls of one shard by size: how many rows they carried, and what their time went to.
#[derive(Debug, Default)]
pub struct CallTimes([[Histogram; Part::ALL.len()]; Rows::ALL.len()]);

/// Where the time of a call goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// From the send to when the engine took the reply; all of it.
    RoundTrip,
    /// Waiting for its turn at the worker.
    Queue,
    /// The worker's arithmetic, or this process's for a shard of its own.
    Compute,
    /// The rest of the round trip. For a prompt's calls also what a reply waited while the engine worked on the next
    /// micro-batch.
    Wire,
}

/// How many rows a call carries. A prompt's calls carry hundreds and take as much longer: together with those of decode
/// steps no percentile would mean anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// A step of one sequence.
    One,
    /// 2 to 16: a step of several, or the last few tokens of a prompt.
    Few,
    /// More: a chunk of a prompt.
    Many,
}

/// Percentiles of one part of a shard's calls of one size, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Percentiles {
    /// Rows of the calls.
    pub rows: Rows,
    /// What the time went to.
    pub part: Part,
    /// Calls.
    pub count: u64,
    /// Median.
    pub p50: f32,
    /// 99th percentile.
    pub p99: f32,
}

/// One histogram at the last look, and the percentiles found then.
#[derive(Debug)]
struct Recent {
    looked: Counts,
    last: Option<Percentiles>,
}

impl ShardTimes {
    /// Records one reply of a worker.
    pub fn record(&mut self, rows: usize, round_trip: Duration, times: WorkerTimes) {
        let WorkerTimes { queue, compute } = times;
        let of = |part| self.by_size.of(Rows::of(rows), part);
        of(Part::RoundTrip).record(round_trip);
        of(Part::Queue).record(queue);
        of(Part::Compute).record(compute);
        of(Part::Wire).record(round_trip.saturating_sub(queue + compute));
        self.add(round_trip, compute);
    }

    /// Records one call of the shard in this process: it neither travels nor waits.
    pub fn record_local(&mut self, rows: usize, compute: Duration) {
        self.by_size.of(Rows::of(rows), Part::Compute).record(compute);
        self.add(Duration::ZERO, compute);
    }

    /// Mean round trip and mean time of the bank, in microseconds, since the last call of this; while there is no
    /// reply, what it returned last.
    pub fn take(&mut self) -> Option<(f32, f32)> {
        let mean = |sum: Duration| sum.as_secs_f32() * 1e6 / self.recent as f32;
        let means = (self.recent > 0).then(|| (mean(self.round_trip), mean(self.compute)));
        self.last = means.or(self.last);
        (self.recent, self.round_trip, self.compute) = (0, Duration::ZERO, Duration::ZERO);
        self.last
    }

    /// Percentiles of the last hundred calls or more of each size; of fewer while there are no more. Parts and sizes
    /// without calls are left out.
    pub fn recent(&mut self) -> Vec<Percentiles> {
        let kinds = Rows::ALL.into_iter().flat_map(|rows| Part::ALL.map(|part| (rows, part)));
        if self.percentiles.is_empty() {
            let fresh = || Recent { looked: Counts::default(), last: None };
            self.percentiles.extend(kinds.clone().map(|_| fresh()));
        }
        let each = kinds.zip(&mut self.percentiles);
        each.filter_map(|((rows, part), recent)| {
            let now = self.by_size.of(rows, part).counts();
            let new = now.since(&recent.looked);
            let is_enough = new.count() >= ENOUGH;
            // As long as there never were enough, all that came are looked at.
            if is_enough || recent.looked.count() == 0 {
                recent.last = Percentiles::of(rows, part, &new).or(recent.last);
            }
            if is_enough {
                recent.looked = now;
            }
            recent.last
        })
        .collect()
    }

    fn add(&mut self, round_trip: Duration, compute: Duration) {
        self.calls += 1;
        self.recent += 1;
        self.round_trip += round_trip;
        self.compute += compute;
    }
}

impl CallTimes {
    /// What a part of calls with so many rows took.
    pub const fn of(&self, rows: Rows, part: Part) -> &Histogram {
        &self.0[rows as usize][part as usize]
    }

    /// Percentiles of every call with so many rows, part by part; parts that were never recorded are left out.
    pub fn percentiles(&self, rows: Rows) -> Vec<Percentiles> {
        let of = |part| Percentiles::of(rows, part, &self.of(rows, part).counts());
        Part::ALL.into_iter().filter_map(of).collect()
    }
}

impl Percentiles {
    fn of(rows: Rows, part: Part, counts: &Counts) -> Option<Self> {
        let (p50, p99) = (counts.percentile_us(0.50)?, counts.percentile_us(0.99)?);
        Some(Self { rows, part, count: counts.count(), p50, p99 })
    }
}

impl Part {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::RoundTrip, Self::Queue, Self::Compute, Self::Wire];

    /// As a label has it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::RoundTrip => "round_trip",
            Self::Queue => "queue",
            Self::Compute => "compute",
            Self::Wire => "wire",
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::RoundTrip { "round trip" } else { self.label() })
    }
}

impl Rows {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::One, Self::Few, Self::Many];

    /// Of a call with `rows` rows.
    pub const fn of(rows: usize) -> Self {
        match rows {
            0..=1 => Self::One,
            2..=MOST_OF_FEW => Self::Few,
            _ => Self::Many,
        }
    }

    /// As a label has it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Few => "few",
            Self::Many => "many",
        }
    }
}

/// Sequences that decode together are not more, as a rule.
const MOST_OF_FEW: usize = 16;

/// Calls that a 99th percentile rests on.
const ENOUGH: u64 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    const fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    const fn worker(queue: u64, compute: u64) -> WorkerTimes {
        WorkerTimes { queue: micros(queue), compute: micros(compute) }
    }

    #[test]
    fn means_are_of_the_time_since_the_last_look_and_stay_while_nothing_comes() {
        let mut times = ShardTimes::default();
        assert_eq!(times.take(), None);
        times.record(1, micros(100), worker(0, 40));
        times.record(1, micros(300), worker(0, 80));
        let means = |times: &mut ShardTimes| times.take().map(|(a, b)| (a.round(), b.round()));
        assert_eq!(means(&mut times), Some((200.0, 60.0)));
        assert_eq!(means(&mut times), Some((200.0, 60.0)));
        times.record(1, micros(50), worker(0, 10));
        assert_eq!(means(&mut times), Some((50.0, 10.0)));
        assert_eq!(times.calls, 3);
    }

    #[test]
    fn calls_are_kept_apart_by_rows_and_by_where_their_time_went() {
        let mut times = ShardTimes::default();
        for _ in 0..99 {
            times.record(1, micros(8), worker(1, 4));
        }
        times.record(1, micros(4096), worker(1, 4));
        times.record(16, micros(100), worker(30, 90));
        times.record(512, micros(8), worker(0, 8));
        let decode: Vec<_> = times.by_size.percentiles(Rows::One);
        let decode: Vec<_> = decode.iter().map(|it| (it.part, it.count, it.p50, it.p99)).collect();
        let expected = [
            (Part::RoundTrip, 100, 7.5, 7.5),
            (Part::Queue, 100, 0.5, 0.5),
            (Part::Compute, 100, 3.5, 3.5),
            (Part::Wire, 100, 2.5, 2.5),
        ];
        assert_eq!(decode, expected);
        let wire = |rows| times.by_size.of(rows, Part::Wire).counts();
        // What a worker says may not add up: nothing is left for the wire then.
        assert_eq!((wire(Rows::Few).count(), wire(Rows::Few).sum_us()), (1, 0.0));
        assert_eq!(wire(Rows::Many).count(), 1);

        let mut local = ShardTimes::default();
        local.record_local(1, micros(2));
        let parts: Vec<Part> = local.recent().iter().map(|percentiles| percentiles.part).collect();
        assert_eq!(parts, [Part::Compute]);
    }

    #[test]
    fn recent_percentiles_rest_on_enough_calls() {
        let mut times = ShardTimes::default();
        assert_eq!(times.recent(), []);
        let call = |times: &mut ShardTimes, count, round_trip| {
            (0..count).for_each(|_| times.record(1, micros(round_trip), worker(0, 0)));
        };
        let look = |times: &mut ShardTimes| (times.recent()[0].count, times.recent()[0].p50);
        call(&mut times, 10, 3);
        assert_eq!(look(&mut times), (10, 2.5));
        call(&mut times, 90, 3);
        assert_eq!(look(&mut times), (100, 2.5));
        call(&mut times, ENOUGH - 1, 7);
        assert_eq!(look(&mut times), (100, 2.5));
        call(&mut times, 1, 7);
        assert_eq!(look(&mut times), (ENOUGH, 6.5));
    }
}
