//! Percentiles of one run, and medians over runs.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Middle and tail of one run, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
}

impl Spread {
    /// Of one run's samples; zeros if there are none.
    pub fn of(samples: &[Duration]) -> Self {
        let mut micros: Vec<f64> = samples.iter().map(|sample| sample.as_secs_f64() * 1e6).collect();
        micros.sort_unstable_by(f64::total_cmp);
        Self { p50: percentile(&micros, 0.50), p99: percentile(&micros, 0.99) }
    }

    /// Median of the runs' medians, and of their tails: one disturbed run does not show.
    pub fn of_runs(runs: &[Self]) -> Self {
        Self { p50: median(runs.iter().map(|run| run.p50)), p99: median(runs.iter().map(|run| run.p99)) }
    }
}

/// Median; the mean of the middle two of an even number, 0 of none.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    let (above, below) = (values.len() / 2, values.len().saturating_sub(1) / 2);
    match (values.get(below), values.get(above)) {
        (Some(below), Some(above)) => f64::midpoint(*below, *above),
        _ => 0.0,
    }
}

/// Nearest-rank percentile of ascending values, `q` in `0..=1`; 0 of none.
pub fn percentile(ascending: &[f64], q: f64) -> f64 {
    let rank = (ascending.len() as f64 * q).ceil() as usize;
    ascending.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

/// `part / whole`; 0 where there is no whole.
pub fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&hundred, 0.50), 50.0);
        assert_eq!(percentile(&hundred, 0.99), 99.0);
        assert_eq!(percentile(&hundred, 1.0), 100.0);
        assert_eq!(percentile(&hundred, 0.0), 1.0);
        assert_eq!(percentile(&[7.0], 0.99), 7.0);
        assert_eq!(percentile(&[], 0.5), 0.0);
    }

    #[test]
    fn medians_of_odd_even_and_none() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median([5.0]), 5.0);
        assert_eq!(median([]), 0.0);
    }

    #[test]
    fn a_run_in_microseconds_in_any_order() {
        let samples: Vec<Duration> = (1..=200).rev().map(Duration::from_micros).collect();
        let spread = Spread::of(&samples);
        assert!((spread.p50 - 100.0).abs() < 1e-6 && (spread.p99 - 198.0).abs() < 1e-6, "{spread:?}");
        assert_eq!(Spread::of(&[]), Spread::default());
    }

    #[test]
    fn one_disturbed_run_does_not_show() {
        let run = |p50, p99| Spread { p50, p99 };
        let runs = [run(10.0, 30.0), run(11.0, 900.0), run(500.0, 31.0)];
        assert_eq!(Spread::of_runs(&runs), run(11.0, 31.0));
    }

    #[test]
    fn ratios_without_a_whole_are_nothing() {
        assert_eq!((ratio(3.0, 2.0), ratio(3.0, 0.0)), (1.5, 0.0));
    }
}
