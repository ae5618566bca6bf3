//! The stages of a recording: how often, how long, and their share of all passes.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use laguna_shared::ids::ShardId;

use super::recorder::{Span, Stage};

/// One stage of the engine thread, or of one shard.
#[derive(Clone, Debug, PartialEq)]
pub struct StageTimes {
    /// What.
    pub stage: Stage,
    /// Where; the engine thread, if `None`.
    pub shard: Option<ShardId>,
    /// Spans.
    pub count: usize,
    /// Median, in microseconds.
    pub p50_us: f64,
    /// 99th percentile, in microseconds.
    pub p99_us: f64,
    /// All spans together over all passes together, `0..=1`. Those of the shards run beside the engine thread's.
    pub share: f64,
}

/// Every stage of a recording, the engine thread's first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary(pub Vec<StageTimes>);

impl Summary {
    /// Of these spans.
    pub fn of<'s>(spans: impl Iterator<Item = &'s Span>) -> Self {
        let mut times: BTreeMap<(Option<ShardId>, Stage), Vec<Duration>> = BTreeMap::new();
        for span in spans {
            times.entry((span.shard, span.stage)).or_default().push(span.took);
        }
        // Logits are made after their pass.
        let of = |stage| times.get(&(None, stage)).map_or(Duration::ZERO, |took| took.iter().sum());
        let whole = of(Stage::Pass) + of(Stage::Head);
        let stages = times.into_iter().map(|((shard, stage), mut took)| {
            took.sort_unstable();
            let at = |q: f64| took[((took.len() - 1) as f64 * q).round() as usize].as_secs_f64() * 1e6;
            let sum: Duration = took.iter().sum();
            let share = sum.as_secs_f64() / whole.as_secs_f64().max(f64::MIN_POSITIVE);
            StageTimes { stage, shard, count: took.len(), p50_us: at(0.50), p99_us: at(0.99), share }
        });
        Self(stages.collect())
    }
}

/// A table, a line a stage.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<24} {:>8} {:>10} {:>10} {:>7}", "stage", "spans", "p50 µs", "p99 µs", "share")?;
        for StageTimes { stage, shard, count, p50_us, p99_us, share } in &self.0 {
            let name = match shard {
                Some(shard) => format!("{shard}: {stage}"),
                None => stage.to_string(),
            };
            let share = share * 100.0;
            write!(f, "\n{name:<24} {count:>8} {p50_us:>10.0} {p99_us:>10.0} {share:>6.1}%")?;
        }
        Ok(())
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pass => "pass",
            Self::Attention => "attention",
            Self::Dense => "dense MLP",
            Self::Router => "router",
            Self::Send => "send",
            Self::Local => "local experts",
            Self::Wait => "wait",
            Self::Gather => "gather",
            Self::Shared => "shared expert",
            Self::Head => "head",
            Self::RoundTrip => "round trip",
            Self::Queue => "worker queue",
            Self::Compute => "worker compute",
            Self::Wire => "wire",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_passes_and_their_heads() {
        let span = |stage, micros| Span {
            stage,
            layer: None,
            shard: None,
            rows: 1,
            start: Duration::ZERO,
            took: Duration::from_micros(micros),
        };
        let spans = [
            span(Stage::Attention, 10),
            span(Stage::Attention, 30),
            span(Stage::Attention, 20),
            span(Stage::Pass, 90),
            span(Stage::Head, 10),
        ];
        let summary = Summary::of(spans.iter());
        let attention = summary.0.iter().find(|times| times.stage == Stage::Attention).unwrap();
        assert_eq!((attention.count, attention.p50_us.round(), attention.p99_us.round()), (3, 20.0, 30.0));
        assert!((attention.share - 0.6).abs() < 1e-9);
        assert!(Summary::default().to_string().lines().count() == 1);
        assert!(summary.to_string().contains("attention"));
    }
}
