//! Durations by size, in buckets that grow with what they hold: percentiles of any number of them, in fixed memory.
//!
//! One thread records, any number read, and nobody waits: a reader may see a duration a moment late.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Counts of durations since it was made. Up to 16 µs a bucket is a microsecond wide, above that an eighth of the power of
/// two below it, so that a percentile is within a sixteenth (or half a microsecond) of the exact one. Longer than a
/// minute reads as that.
#[derive(Debug)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    nanos: AtomicU64,
}

/// What a [`Histogram`] held at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    buckets: [u64; BUCKETS],
    nanos: u64,
}

impl Histogram {
    /// Records one. Only one thread may.
    pub fn record(&self, duration: Duration) {
        add(&self.buckets[bucket(duration)], 1);
        add(&self.nanos, nanos(duration));
    }

    /// What was recorded so far.
    pub fn counts(&self) -> Counts {
        let nanos = self.nanos.load(Relaxed);
        Counts { buckets: std::array::from_fn(|bucket| self.buckets[bucket].load(Relaxed)), nanos }
    }
}

impl Counts {
    /// How many.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// All of them together, in microseconds.
    pub fn sum_us(&self) -> f64 {
        self.nanos as f64 / 1e3
    }

    /// How many took at most `2^power` microseconds, exactly.
    pub fn within(&self, power: u32) -> u64 {
        let end = bucket_of((1_u64 << power) - 1) + 1;
        self.buckets[..end].iter().sum()
    }

    /// What came after `earlier`, which was taken of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let buckets = std::array::from_fn(|n| self.buckets[n].saturating_sub(earlier.buckets[n]));
        Self { buckets, nanos: self.nanos.saturating_sub(earlier.nanos) }
    }

    /// The middle, in microseconds, of the bucket with the duration that a share of `quantile` does not exceed; `None` if
    /// nothing was recorded.
    pub fn percentile_us(&self, quantile: f64) -> Option<f32> {
        let count = self.count();
        let rank = ((count as f64 * quantile).ceil() as u64).clamp(1, count.max(1));
        let mut below = 0;
        let found = self.buckets.iter().position(|here| {
            below += here;
            below >= rank
        })?;
        let (low, high) = limits(found);
        Some((low + high) as f32 / 2.0)
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: [const { AtomicU64::new(0) }; BUCKETS], nanos: AtomicU64::new(0) }
    }
}

impl Default for Counts {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], nanos: 0 }
    }
}

/// Cheaper than an atomic addition, and as good while one thread writes.
fn add(to: &AtomicU64, value: u64) {
    to.store(to.load(Relaxed).wrapping_add(value), Relaxed);
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A bucket has its upper end and not its lower one, as `le` in Prometheus' histograms wants it.
fn bucket(duration: Duration) -> usize {
    bucket_of(nanos(duration).div_ceil(1000).saturating_sub(1))
}

/// The bucket of a duration of more than `micros` and at most `micros + 1` microseconds.
fn bucket_of(micros: u64) -> usize {
    let power = micros.max(1).ilog2();
    if power < FINE {
        return micros as usize;
    }
    let steps = (micros >> (power - FINE)) as usize;
    (((power - FINE) as usize) * STEPS + steps).min(BUCKETS - 1)
}

/// Microseconds that a bucket begins after, and those it ends with.
fn limits(bucket: usize) -> (u64, u64) {
    let (octave, steps) = (bucket / STEPS, (bucket % STEPS) as u64);
    match octave.checked_sub(1) {
        None => (steps, steps + 1),
        Some(shift) => ((STEPS as u64 + steps) << shift, (STEPS as u64 + steps + 1) << shift),
    }
}

/// A power of two has `2^FINE` buckets.
const FINE: u32 = 3;
const STEPS: usize = 1 << FINE;

/// Up to `2^26` µs.
const BUCKETS: usize = (26 - FINE as usize + 1) * STEPS;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn recorded(micros: impl IntoIterator<Item = u64>) -> Counts {
        let histogram = Histogram::default();
        micros.into_iter().for_each(|micros| histogram.record(Duration::from_micros(micros)));
        histogram.counts()
    }

    #[test]
    fn buckets_follow_each_other_without_a_gap() {
        for bucket in 0..BUCKETS {
            let (low, high) = limits(bucket);
            assert_eq!((bucket_of(low), bucket_of(high - 1)), (bucket, bucket));
            assert!(bucket == 0 || limits(bucket - 1).1 == low);
        }
        assert_eq!(limits(BUCKETS - 1).1, 1 << 26);
        assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_of_known_durations() {
        let counts = recorded(1..=1000);
        let near = |quantile, exact: f32| {
            let found = counts.percentile_us(quantile).unwrap();
            assert!((found - exact).abs() <= exact / 16.0, "{quantile}: {found}, not {exact}");
        };
        near(0.5, 500.0);
        near(0.99, 990.0);
        near(1.0, 1000.0);
        assert_eq!(counts.percentile_us(0.0), Some(0.5));
        assert_eq!((counts.count(), counts.sum_us()), (1000, 500_500.0));
        assert_eq!(Counts::default().percentile_us(0.5), None);
        // 98 of 100 are quick: the 99th percentile is the slow one, the median is not.
        let counts = recorded(std::iter::repeat_n(40, 98).chain([9000, 9000]));
        assert_eq!((counts.percentile_us(0.5), counts.percentile_us(0.99)), (Some(38.0), Some(8704.0)));
    }

    #[test]
    fn a_bound_counts_what_equals_it() {
        let counts = recorded([0, 8, 9, 16, 17, 32]);
        assert_eq!([3, 4, 5].map(|power| counts.within(power)), [2, 4, 6]);
        let nanosecond_more = Histogram::default();
        nanosecond_more.record(Duration::from_nanos(16_001));
        assert_eq!(nanosecond_more.counts().within(4), 0);
    }

    #[test]
    fn what_came_since() {
        let histogram = Histogram::default();
        histogram.record(Duration::from_micros(4000));
        let earlier = histogram.counts();
        assert_eq!(histogram.counts().since(&earlier), Counts::default());
        histogram.record(Duration::from_micros(5));
        let later = histogram.counts().since(&earlier);
        assert_eq!((later.count(), later.sum_us(), later.percentile_us(0.99)), (1, 5.0, Some(4.5)));
    }

    proptest! {
        #[test]
        fn a_percentile_is_within_a_sixteenth(
            mut micros in prop::collection::vec(1_u64..60_000_000, 1..300),
            quantile in 0.0_f64..1.0,
        ) {
            let found = f64::from(recorded(micros.iter().copied()).percentile_us(quantile).unwrap());
            micros.sort_unstable();
            let rank = ((micros.len() as f64 * quantile).ceil() as usize).max(1);
            let exact = micros[rank - 1] as f64;
            prop_assert!((found - exact).abs() <= (exact / 16.0).max(0.5) * 1.0001, "{} for {}", found, exact);
        }
    }
}
