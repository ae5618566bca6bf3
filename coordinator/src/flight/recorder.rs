//! Spans of the engine thread and of the shards it asks.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use laguna_shared::ids::{LayerId, ShardId};
use laguna_shared::wire::WorkerTimes;
use mlx_rs::error::Exception;
use mlx_rs::{Array, transforms};

/// What a span of time went to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// One forward pass, all of it.
    Pass,
    /// Norm, attention and the residual sum.
    Attention,
    /// A dense layer's MLP.
    Dense,
    /// Norm, router, their evaluation, and the choice of experts.
    Router,
    /// Grouping rows by shard, and handing them to the links.
    Send,
    /// The experts that this process holds.
    Local,
    /// Waiting for replies that had not come yet.
    Wait,
    /// Adding the shards' sums.
    Gather,
    /// The shared expert: what is computed of it before the sums come and, with the residual sum, behind them.
    Shared,
    /// Final norm, logits, and their way to the host.
    Head,
    /// A shard's call: from the send to the reply's arrival.
    RoundTrip,
    /// Of a shard's call: in the worker's queue.
    Queue,
    /// Of a shard's call: the worker's arithmetic.
    Compute,
    /// Of a shard's call: the rest; half of it is taken to be the way there, half the way back.
    Wire,
}

/// A stage that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// What it was.
    pub stage: Stage,
    /// Decoder layer, where it belongs to one.
    pub layer: Option<LayerId>,
    /// The shard, for what happened on one; else the engine thread.
    pub shard: Option<ShardId>,
    /// Rows that it ran for.
    pub rows: u32,
    /// Since the recorder was made.
    pub start: Duration,
    /// How long it took.
    pub took: Duration,
}

/// When a stage began; nothing while the recorder is off.
#[derive(Clone, Copy, Debug)]
#[must_use = "a stage that never ends is not recorded"]
pub struct Began(Option<Instant>);

/// One answered call of a shard.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Who answered.
    pub shard: ShardId,
    /// When the reply came.
    pub arrived: Instant,
    /// From the send to that.
    pub round_trip: Duration,
    /// How much of it was spent at the worker.
    pub times: WorkerTimes,
}

/// The recorder. Off unless made with [`Flight::on`].
#[derive(Debug, Default)]
pub struct Flight {
    log: Option<Box<Log>>,
}

#[derive(Debug)]
struct Log {
    epoch: Instant,
    layer: Option<LayerId>,
    rows: u32,
    spans: VecDeque<Span>,
}

impl Flight {
    /// A recorder that keeps the last spans, about a million.
    pub fn on() -> Self {
        let spans = VecDeque::with_capacity(CAPACITY);
        Self { log: Some(Box::new(Log { epoch: Instant::now(), layer: None, rows: 0, spans })) }
    }

    /// Whether spans are recorded.
    pub const fn is_on(&self) -> bool {
        self.log.is_some()
    }

    /// A stage begins.
    pub fn begin(&self) -> Began {
        Began(self.log.as_ref().map(|_| Instant::now()))
    }

    /// What follows belongs to this layer, or to none, and runs for this many rows.
    pub fn enter(&mut self, layer: Option<LayerId>, rows: usize) {
        if let Some(log) = &mut self.log {
            log.layer = layer;
            log.rows = u32::try_from(rows).unwrap_or(u32::MAX);
        }
    }

    /// A stage is over.
    pub fn end(&mut self, began: Began, stage: Stage) {
        if let (Some(log), Some(began)) = (&mut self.log, began.0) {
            log.push(stage, None, began, began.elapsed());
        }
    }

    /// A stage is over once `result` is evaluated; while the recorder is off, nothing is.
    ///
    /// # Errors
    /// If the evaluation fails.
    pub fn end_with(&mut self, began: Began, stage: Stage, result: &Array) -> Result<(), Exception> {
        if self.log.is_some() {
            transforms::eval([result])?;
            self.end(began, stage);
        }
        Ok(())
    }

    /// A shard has answered.
    pub fn call(&mut self, call: &Call) {
        let Some(log) = &mut self.log else { return };
        let Call { shard, arrived, round_trip, times: WorkerTimes { queue, compute } } = *call;
        let Some(sent) = arrived.checked_sub(round_trip) else { return };
        let wire = round_trip.saturating_sub(queue + compute);
        let there = sent + wire / 2;
        log.push(Stage::RoundTrip, Some(shard), sent, round_trip);
        log.push(Stage::Wire, Some(shard), sent, wire);
        log.push(Stage::Queue, Some(shard), there, queue);
        log.push(Stage::Compute, Some(shard), there + queue, compute);
    }

    /// Spans in the order in which they ended, oldest first.
    pub fn spans(&self) -> impl Iterator<Item = &Span> {
        self.log.iter().flat_map(|log| &log.spans)
    }
}

impl Log {
    fn push(&mut self, stage: Stage, shard: Option<ShardId>, began: Instant, took: Duration) {
        if self.spans.len() >= CAPACITY {
            self.spans.pop_front();
        }
        let start = began.saturating_duration_since(self.epoch);
        let Self { layer, rows, .. } = *self;
        let layer = if matches!(stage, Stage::Pass | Stage::Head) { None } else { layer };
        self.spans.push_back(Span { stage, layer, shard, rows, start, took });
    }
}

/// Some 2000 tokens of 48 layers and two shards; 64 MB.
const CAPACITY: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_recorded_while_it_is_off() {
        let mut flight = Flight::default();
        let began = flight.begin();
        flight.enter(Some(LayerId(1)), 1);
        flight.end(began, Stage::Gather);
        let lazy = Array::from_f32(1.0);
        flight.end_with(began, Stage::Router, &lazy).unwrap();
        assert_eq!(flight.spans().count(), 0);
    }

    #[test]
    fn a_call_is_split_into_wire_queue_and_compute() {
        let mut flight = Flight::on();
        flight.enter(Some(LayerId(3)), 2);
        std::thread::sleep(Duration::from_millis(2));
        let micros = Duration::from_micros;
        let call = Call {
            shard: ShardId(1),
            arrived: Instant::now(),
            round_trip: micros(1000),
            times: WorkerTimes { queue: micros(100), compute: micros(500) },
        };
        flight.call(&call);
        let spans: Vec<Span> = flight.spans().copied().collect();
        let took: Vec<_> = spans.iter().map(|span| (span.stage, span.took)).collect();
        let expected = [
            (Stage::RoundTrip, micros(1000)),
            (Stage::Wire, micros(400)),
            (Stage::Queue, micros(100)),
            (Stage::Compute, micros(500)),
        ];
        assert_eq!(took, expected);
        let sent = spans[0].start;
        assert_eq!((spans[2].start - sent, spans[3].start - sent), (micros(200), micros(300)));
        assert!(spans.iter().all(|span| span.layer == Some(LayerId(3)) && span.rows == 2));
        assert!(spans.iter().all(|span| span.shard == Some(ShardId(1))));
    }
}
