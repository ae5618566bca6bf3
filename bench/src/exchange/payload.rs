//! What goes out and comes back in one sparse layer of S 2.1, exactly as large as the project's own frames.

use bytes::BytesMut;
use clap::ValueEnum;
use half::bf16;
use laguna_shared::compute::{ActivationType, ExpertBatch};
use laguna_shared::ids::{ExpertId, ExpertRange, LayerId};
use laguna_shared::wire::CallId;
use laguna_shared::wire::dispatch::{WorkerTimes, encode_call, encode_reply};
use serde::{Deserialize, Serialize};

use crate::error::BenchError;

/// Rows of S 2.1 (hidden size 3072, ten experts a row); replies are f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Payload {
    /// One bf16 row: 6.2 KB out, 12.3 KB back
    Decode,
    /// 256 f32 rows: 3 MiB each way
    #[value(name = "3mib")]
    #[serde(rename = "3mib")]
    Bulk,
    /// 512 bf16 rows, a prefill chunk: 3 MiB out, 6 MiB back
    Prefill,
}

/// Bytes of one request and one reply, frame headers included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// Coordinator to worker.
    pub request: usize,
    /// Worker to coordinator.
    pub reply: usize,
}

/// One worker's rows, owned.
#[derive(Clone, Debug)]
pub struct Rows {
    activation: ActivationType,
    counts: Vec<u16>,
    experts: Vec<ExpertId>,
    weights: Vec<f32>,
    bytes: Vec<u8>,
}

impl Payload {
    const fn rows(self) -> usize {
        match self {
            Self::Decode => 1,
            Self::Bulk => 256,
            Self::Prefill => 512,
        }
    }

    /// Element type of the request's rows.
    pub const fn activation(self) -> ActivationType {
        match self {
            Self::Decode | Self::Prefill => ActivationType::Bf16,
            Self::Bulk => ActivationType::F32,
        }
    }

    /// Calls in a run that takes about as long as one of another payload.
    pub const fn calls(self) -> usize {
        match self {
            Self::Decode => 1500,
            Self::Bulk => 30,
            Self::Prefill => 20,
        }
    }

    /// What worker `index` of `workers` gets: every row, and its part of each row's slots.
    pub fn rows_for(self, index: usize, workers: usize) -> Rows {
        let slots = (TOP_K / workers).max(1);
        let first = range_of(index, workers).start;
        let experts = (0..self.rows()).flat_map(|_| (first..).take(slots).map(ExpertId)).collect();
        let values = (0..self.rows() * HIDDEN).map(|n| (n % 251) as f32 / 256.0);
        let bytes = match self.activation() {
            ActivationType::Bf16 => values.flat_map(|x| bf16::from_f32(x).to_le_bytes()).collect(),
            ActivationType::F32 => values.flat_map(f32::to_le_bytes).collect(),
        };
        Rows {
            activation: self.activation(),
            counts: vec![slots as u16; self.rows()],
            experts,
            weights: vec![0.1; slots * self.rows()],
            bytes,
        }
    }

    /// Bytes of one worker's frames.
    ///
    /// # Errors
    /// If a frame cannot be encoded.
    pub fn sizes(self, workers: usize) -> Result<Sizes, BenchError> {
        let mut out = BytesMut::new();
        encode_call(&mut out, CallId(1), &self.rows_for(0, workers).batch()).map_err(BenchError::failed)?;
        let request = out.len();
        out.clear();
        let sums = vec![0.0; self.rows() * HIDDEN];
        encode_reply(&mut out, CallId(1), LAYER, HIDDEN, &sums, WorkerTimes::default())
            .map_err(BenchError::failed)?;
        Ok(Sizes { request, reply: out.len() })
    }
}

impl Rows {
    /// As a link takes it.
    pub fn batch(&self) -> ExpertBatch<'_> {
        ExpertBatch {
            layer: LAYER,
            activation: self.activation,
            hidden: HIDDEN,
            counts: &self.counts,
            experts: &self.experts,
            weights: &self.weights,
            rows: &self.bytes,
        }
    }
}

/// Experts of worker `index` of `workers`.
pub fn range_of(index: usize, workers: usize) -> ExpertRange {
    let at = |index: usize| (index * EXPERTS / workers) as u16;
    ExpertRange::new(at(index), at(index + 1))
}

/// S 2.1.
pub const HIDDEN: usize = 3072;
const EXPERTS: usize = 256;
const TOP_K: usize = 10;

/// Any sparse layer.
pub const LAYER: LayerId = LayerId(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_s_2_1() {
        let decode = Payload::Decode.sizes(1).unwrap();
        assert!(
            (6200..6300).contains(&decode.request) && (12_300..12_400).contains(&decode.reply),
            "{decode:?}"
        );
        let bulk = Payload::Bulk.sizes(1).unwrap();
        let three_mib = 3 * 1024 * 1024;
        assert!((three_mib..three_mib + 20_000).contains(&bulk.request), "{bulk:?}");
        assert!((three_mib..three_mib + 100).contains(&bulk.reply), "{bulk:?}");
    }

    #[test]
    fn every_worker_gets_its_own_experts() {
        for workers in [1, 2, 4, 8] {
            for index in 0..workers {
                let rows = Payload::Decode.rows_for(index, workers);
                let range = range_of(index, workers);
                rows.batch().check(HIDDEN).unwrap();
                assert!(rows.batch().experts.iter().all(|expert| range.contains(*expert)));
            }
        }
    }
}
