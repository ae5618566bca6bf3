//! Expert calls and replies: a fixed header, then raw numbers. Written straight into the outgoing buffer, read in place.
//!
//! ```text
//! call    id u64, layer u16, activation u8, flags u8 = 0, rows u32, hidden u32, slots u32        24 bytes
//!         weights f32[slots], counts u16[rows], experts u16[slots], zeros up to a multiple of 8
//!         rows [rows, hidden], bf16 or f32
//! reply   id u64, layer u16, microseconds in the queue u16, rows u32, hidden u32,
//!         microseconds of compute u32                                                            24 bytes
//!         rows [rows, hidden], f32
//! ```
//!
//! A frame's payload lies at an address divisible by 8, so the rows do too, and are never copied again.

use std::fmt;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use serde::{Deserialize, Serialize};

use super::frame::{FRAME_HEADER, FrameBuffer, begin_frame};
use super::{FrameKind, WireError};
use crate::compute::{ActivationType, ExpertBatch};
use crate::ids::{ExpertId, LayerId};

/// Number of a call, unique among the calls of one coordinator's run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CallId(pub u64);

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call {}", self.0)
    }
}

/// Appends a call's frame, in one pass, after checking that the batch agrees with itself.
pub fn encode_call(out: &mut BytesMut, id: CallId, batch: &ExpertBatch<'_>) -> Result<(), WireError> {
    let sizes = Sizes::of(batch)?;
    check_slots(batch.counts, batch.weights, sizes.slots)?;
    begin_frame(out, FrameKind::Call, sizes.payload)?;
    out.put_u64_le(id.0);
    out.put_u16_le(batch.layer.0);
    out.put_u8(activation_code(batch.activation));
    out.put_u8(0);
    out.put_u32_le(sizes.rows);
    out.put_u32_le(sizes.hidden);
    out.put_u32_le(sizes.slots);
    out.put_slice(bytemuck::cast_slice(batch.weights));
    out.put_slice(bytemuck::cast_slice(batch.counts));
    for expert in batch.experts {
        out.put_u16_le(expert.0);
    }
    out.put_bytes(0, sizes.padding);
    out.put_slice(batch.rows);
    Ok(())
}

/// Where a call's time went at the worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerTimes {
    /// From the call's arrival to its turn. On the wire up to 65,535 µs; longer waits read as that.
    pub queue: Duration,
    /// What the bank took. On the wire to the microsecond.
    pub compute: Duration,
}

/// Bytes of the frame that [`encode_call`] would append, at most.
pub fn call_bytes(batch: &ExpertBatch<'_>) -> usize {
    let before_rows = size_of_val(batch.weights) + size_of_val(batch.counts) + size_of_val(batch.experts);
    FRAME_HEADER + HEADER + before_rows + ALIGNMENT as usize + batch.rows.len()
}

/// Bytes of the frame that [`encode_reply`] would append.
pub fn reply_bytes(sums: &[f32]) -> usize {
    FRAME_HEADER + HEADER + size_of_val(sums)
}

/// Appends a reply's frame: `sums` is `[rows, hidden]` for the call's rows.
pub fn encode_reply(
    out: &mut BytesMut,
    id: CallId,
    layer: LayerId,
    hidden: usize,
    sums: &[f32],
    times: WorkerTimes,
) -> Result<(), WireError> {
    let rows = sums.len().checked_div(hidden).filter(|rows| rows * hidden == sums.len());
    let rows = rows.ok_or(WireError::Empty("reply width"))?;
    begin_frame(out, FrameKind::Reply, HEADER + size_of_val(sums))?;
    out.put_u64_le(id.0);
    out.put_u16_le(layer.0);
    out.put_u16_le(u16::try_from(times.queue.as_micros()).unwrap_or(u16::MAX));
    out.put_u32_le(fit("rows", rows)?);
    out.put_u32_le(fit("hidden", hidden)?);
    out.put_u32_le(u32::try_from(times.compute.as_micros()).unwrap_or(u32::MAX));
    out.put_slice(bytemuck::cast_slice(sums));
    Ok(())
}

/// A received call. Owns its frame; keeps its memory for the next one.
#[derive(Clone, Debug)]
pub struct ExpertCall {
    frame: FrameBuffer,
    id: CallId,
    layer: LayerId,
    activation: ActivationType,
    hidden: usize,
    counts: Vec<u16>,
    experts: Vec<ExpertId>,
    weights: Vec<f32>,
    rows_at: usize,
}

impl ExpertCall {
    /// Where a decoder puts the next frame.
    pub fn frame_mut(&mut self) -> &mut FrameBuffer {
        &mut self.frame
    }

    /// Id that the frame claims, if it has one at all: enough to answer a malformed call.
    pub fn claimed_id(&self) -> Option<CallId> {
        self.frame.as_bytes().first_chunk().map(|bytes| CallId(u64::from_le_bytes(*bytes)))
    }

    /// Reads the frame. After an error the call holds nothing.
    pub fn parse(&mut self) -> Result<(), WireError> {
        let payload = self.frame.as_bytes();
        let mut header = Reader::header("call", payload)?;
        self.id = CallId(u64::from_le_bytes(header.take()));
        self.layer = LayerId(u16::from_le_bytes(header.take()));
        let [code, flags] = header.take();
        self.activation = activation_of(code)?;
        if flags != 0 {
            return Err(WireError::NotZero("call flags"));
        }
        let (rows, hidden, slots) = (header.take_u32(), header.take_u32(), header.take_u32());
        let sizes = Sizes::new(self.activation, rows, hidden, slots)?;
        if sizes.payload != payload.len() {
            let (needed, got) = (sizes.payload as u64, payload.len() as u64);
            return Err(WireError::Length { message: "call", needed, got });
        }
        let body = &payload[HEADER..];
        let (weights, body) = body.split_at(slots as usize * size_of::<f32>());
        let (counts, body) = body.split_at(rows as usize * size_of::<u16>());
        let (experts, body) = body.split_at(slots as usize * size_of::<u16>());
        if body[..sizes.padding].iter().any(|byte| *byte != 0) {
            return Err(WireError::NotZero("call padding"));
        }
        refill(&mut self.weights, weights, f32::from_le_bytes);
        refill(&mut self.counts, counts, u16::from_le_bytes);
        refill(&mut self.experts, experts, |bytes| ExpertId(u16::from_le_bytes(bytes)));
        check_slots(&self.counts, &self.weights, slots)?;
        self.hidden = hidden as usize;
        self.rows_at = HEADER + sizes.before_rows;
        Ok(())
    }

    /// Number of the call.
    pub fn id(&self) -> CallId {
        self.id
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.counts.len()
    }

    /// The batch, as the coordinator gave it. Rows are aligned to 8 bytes.
    pub fn batch(&self) -> ExpertBatch<'_> {
        ExpertBatch {
            layer: self.layer,
            activation: self.activation,
            hidden: self.hidden,
            counts: &self.counts,
            experts: &self.experts,
            weights: &self.weights,
            rows: self.frame.as_bytes().get(self.rows_at..).unwrap_or_default(),
        }
    }
}

impl Default for ExpertCall {
    fn default() -> Self {
        Self {
            frame: FrameBuffer::default(),
            id: CallId::default(),
            layer: LayerId::default(),
            activation: ActivationType::F32,
            hidden: 0,
            counts: Vec::new(),
            experts: Vec::new(),
            weights: Vec::new(),
            rows_at: 0,
        }
    }
}

/// A received reply. Owns its frame; keeps its memory for the next one.
#[derive(Clone, Debug, Default)]
pub struct ExpertReply {
    frame: FrameBuffer,
    id: CallId,
    layer: LayerId,
    rows: usize,
    hidden: usize,
    times: WorkerTimes,
}

impl ExpertReply {
    /// Where a decoder puts the next frame.
    pub fn frame_mut(&mut self) -> &mut FrameBuffer {
        &mut self.frame
    }

    /// Reads the frame.
    pub fn parse(&mut self) -> Result<(), WireError> {
        let payload = self.frame.as_bytes();
        let mut header = Reader::header("reply", payload)?;
        self.id = CallId(u64::from_le_bytes(header.take()));
        self.layer = LayerId(u16::from_le_bytes(header.take()));
        self.times.queue = Duration::from_micros(u16::from_le_bytes(header.take()).into());
        let (rows, hidden) = (header.take_u32(), header.take_u32());
        self.times.compute = Duration::from_micros(header.take_u32().into());
        let needed = u64::from(rows) * u64::from(hidden);
        let needed = needed.checked_mul(size_of::<f32>() as u64).and_then(|n| n.checked_add(HEADER as u64));
        let got = payload.len() as u64;
        if needed != Some(got) {
            return Err(WireError::Length { message: "reply", needed: needed.unwrap_or(u64::MAX), got });
        }
        (self.rows, self.hidden) = (rows as usize, hidden as usize);
        Ok(())
    }

    /// Number of the call it answers.
    pub fn id(&self) -> CallId {
        self.id
    }

    /// Layer of the call it answers.
    pub fn layer(&self) -> LayerId {
        self.layer
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements per row.
    pub fn hidden(&self) -> usize {
        self.hidden
    }

    /// Where its time went at the worker.
    pub fn times(&self) -> WorkerTimes {
        self.times
    }

    /// `[rows, hidden]`, row-major: `Σ weightᵢ · expertᵢ(x)` over the shard's experts. May hold NaN or infinity.
    pub fn sums(&self) -> &[f32] {
        let bytes = self.frame.as_bytes().get(HEADER..).unwrap_or_default();
        // Cannot fail: the frame starts at an 8-byte boundary and `parse` checked the length.
        bytemuck::try_cast_slice(bytes).unwrap_or_default()
    }
}

/// Sizes of a call's parts, free of overflow, within the limit of a frame.
struct Sizes {
    rows: u32,
    hidden: u32,
    slots: u32,
    /// Bytes of weights, counts, experts and padding.
    before_rows: usize,
    padding: usize,
    payload: usize,
}

impl Sizes {
    fn of(batch: &ExpertBatch<'_>) -> Result<Self, WireError> {
        let slots = fit("slots", batch.experts.len())?;
        if batch.weights.len() != batch.experts.len() {
            return Err(WireError::CountSum { sum: batch.weights.len() as u64, slots: slots.into() });
        }
        let sizes = Self::new(
            batch.activation,
            fit("rows", batch.counts.len())?,
            fit("hidden", batch.hidden)?,
            slots,
        )?;
        let needed = sizes.payload - HEADER - sizes.before_rows;
        if needed != batch.rows.len() {
            let (needed, got) = (needed as u64, batch.rows.len() as u64);
            return Err(WireError::Length { message: "rows of a call", needed, got });
        }
        Ok(sizes)
    }

    fn new(activation: ActivationType, rows: u32, hidden: u32, slots: u32) -> Result<Self, WireError> {
        if rows == 0 || hidden == 0 || slots == 0 {
            let what = if rows == 0 {
                "rows"
            } else if hidden == 0 {
                "hidden"
            } else {
                "slots"
            };
            return Err(WireError::Empty(what));
        }
        // u32 * u32 * 4 could pass u64: three factors below 2^32, 2^32 and 2^2.
        let row_bytes = u128::from(rows) * u128::from(hidden) * activation.size() as u128;
        let numbers = u64::from(slots) * (size_of::<f32>() + size_of::<u16>()) as u64
            + u64::from(rows) * size_of::<u16>() as u64;
        let before_rows = numbers.next_multiple_of(ALIGNMENT);
        let payload = HEADER as u128 + u128::from(before_rows) + row_bytes;
        let limit = FrameKind::Call.limit();
        if payload > limit as u128 {
            let length = u64::try_from(payload).unwrap_or(u64::MAX);
            return Err(WireError::TooLong { kind: "call", length, limit: limit as u64 });
        }
        Ok(Self {
            rows,
            hidden,
            slots,
            before_rows: before_rows as usize,
            padding: (before_rows - numbers) as usize,
            payload: payload as usize,
        })
    }
}

fn check_slots(counts: &[u16], weights: &[f32], slots: u32) -> Result<(), WireError> {
    if let Some(row) = counts.iter().position(|count| *count == 0) {
        return Err(WireError::NoExperts { row });
    }
    let sum: u64 = counts.iter().map(|count| u64::from(*count)).sum();
    if sum != u64::from(slots) {
        return Err(WireError::CountSum { sum, slots: slots.into() });
    }
    match weights.iter().position(|weight| !weight.is_finite()) {
        Some(slot) => Err(WireError::WeightNotFinite { slot }),
        None => Ok(()),
    }
}

const fn activation_code(activation: ActivationType) -> u8 {
    match activation {
        ActivationType::Bf16 => 1,
        ActivationType::F32 => 2,
    }
}

const fn activation_of(code: u8) -> Result<ActivationType, WireError> {
    match code {
        1 => Ok(ActivationType::Bf16),
        2 => Ok(ActivationType::F32),
        other => Err(WireError::UnknownActivation(other)),
    }
}

fn fit(what: &'static str, value: usize) -> Result<u32, WireError> {
    let limit = u32::MAX.into();
    u32::try_from(value).map_err(|_| WireError::OutOfRange { what, value: value as u64, limit })
}

fn refill<const N: usize, T>(list: &mut Vec<T>, bytes: &[u8], parse: impl Fn([u8; N]) -> T) {
    list.clear();
    list.extend(bytes.as_chunks().0.iter().map(|chunk| parse(*chunk)));
}

/// The fixed header, field by field. Holds exactly `HEADER` bytes, so `take` cannot run out within a header's fields.
struct Reader([u8; HEADER], usize);

impl Reader {
    fn header(message: &'static str, payload: &[u8]) -> Result<Self, WireError> {
        let (needed, got) = (HEADER as u64, payload.len() as u64);
        payload.first_chunk().map(|header| Self(*header, 0)).ok_or(WireError::Length { message, needed, got })
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        field.copy_from_slice(&self.0[self.1..self.1 + N]);
        self.1 += N;
        field
    }

    fn take_u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }
}

/// Bytes of either header.
const HEADER: usize = 24;

/// Rows start at a multiple of this many bytes, enough for any element type.
const ALIGNMENT: u64 = 8;

#[cfg(test)]
mod tests;
