//! Calls and replies: round trips, alignment, every refusal, garbage.

use proptest::prelude::*;

use super::*;
use crate::wire::FrameDecoder;
use crate::wire::frame::FRAME_HEADER;

/// Three rows of four bf16 elements with 1, 2 and 1 experts.
const BATCH: ExpertBatch<'static> = ExpertBatch {
    layer: LayerId(5),
    activation: ActivationType::Bf16,
    hidden: 4,
    counts: &[1, 2, 1],
    experts: &[ExpertId(3), ExpertId(4), ExpertId(9), ExpertId(3)],
    weights: &[0.5, 0.25, 0.75, 1.0],
    rows: &[7; 24],
};

fn framed(bytes: &[u8], frame: &mut FrameBuffer) -> FrameKind {
    let mut decoder = FrameDecoder::default();
    assert_eq!(decoder.handle_bytes(bytes), Ok(bytes.len()));
    decoder.poll_frame(frame).unwrap()
}

fn encoded(batch: &ExpertBatch<'_>) -> Vec<u8> {
    let mut out = BytesMut::new();
    encode_call(&mut out, CallId(77), batch).unwrap();
    out.to_vec()
}

fn parse(bytes: &[u8]) -> Result<ExpertCall, WireError> {
    let mut call = ExpertCall::default();
    assert_eq!(framed(bytes, call.frame_mut()), FrameKind::Call);
    call.parse().map(|()| call)
}

#[test]
fn a_call_round_trips_with_aligned_rows() {
    let call = parse(&encoded(&BATCH)).unwrap();
    let batch = call.batch();
    assert_eq!((call.id(), call.rows(), batch.layer), (CallId(77), 3, LayerId(5)));
    assert_eq!((batch.counts, batch.experts, batch.weights), (BATCH.counts, BATCH.experts, BATCH.weights));
    assert_eq!((batch.rows, batch.hidden, batch.activation), (BATCH.rows, 4, ActivationType::Bf16));
    assert_eq!(batch.rows.as_ptr() as usize % 8, 0);
}

#[test]
fn a_reply_round_trips_and_passes_non_finite_sums_on() {
    let sums = [1.0, f32::INFINITY, -0.0, 3.5, f32::MIN_POSITIVE, 9.0];
    let mut out = BytesMut::new();
    let times = WorkerTimes { queue: Duration::from_micros(45), compute: Duration::from_micros(321) };
    encode_reply(&mut out, CallId(3), LayerId(2), 3, &sums, times).unwrap();
    let mut reply = ExpertReply::default();
    assert_eq!(framed(&out, reply.frame_mut()), FrameKind::Reply);
    reply.parse().unwrap();
    assert_eq!((reply.id(), reply.layer(), reply.rows(), reply.hidden()), (CallId(3), LayerId(2), 2, 3));
    assert_eq!(reply.sums(), sums);
    assert_eq!(reply.times(), times);
}

#[test]
fn a_batch_that_contradicts_itself_is_not_sent() {
    let mut out = BytesMut::new();
    let mut refuse = |batch: ExpertBatch<'_>| encode_call(&mut out, CallId(0), &batch).unwrap_err();
    assert_eq!(refuse(ExpertBatch { counts: &[1, 0, 3], ..BATCH }), WireError::NoExperts { row: 1 });
    assert_eq!(refuse(ExpertBatch { counts: &[1, 1, 1], ..BATCH }), WireError::CountSum { sum: 3, slots: 4 });
    assert_eq!(refuse(ExpertBatch { counts: &[], ..BATCH }), WireError::Empty("rows"));
    assert_eq!(refuse(ExpertBatch { hidden: 0, ..BATCH }), WireError::Empty("hidden"));
    assert!(matches!(
        refuse(ExpertBatch { rows: &[7; 23], ..BATCH }),
        WireError::Length { needed: 24, got: 23, .. }
    ));
    let weights = [0.5, f32::NAN, 0.1, 0.1];
    assert_eq!(refuse(ExpertBatch { weights: &weights, ..BATCH }), WireError::WeightNotFinite { slot: 1 });
    assert!(matches!(
        refuse(ExpertBatch { weights: &[0.5], ..BATCH }),
        WireError::CountSum { sum: 1, slots: 4 }
    ));
    assert!(out.is_empty());
}

#[test]
fn a_call_that_contradicts_itself_is_refused() {
    let good = encoded(&BATCH);
    let changed = |at: usize, bytes: &[u8]| {
        let mut call = good.clone();
        call[FRAME_HEADER + at..FRAME_HEADER + at + bytes.len()].copy_from_slice(bytes);
        parse(&call).unwrap_err()
    };
    assert_eq!(changed(10, &[3]), WireError::UnknownActivation(3));
    assert_eq!(changed(11, &[1]), WireError::NotZero("call flags"));
    assert!(matches!(changed(12, &[4]), WireError::Length { .. }));
    assert!(matches!(changed(12, &[255; 12]), WireError::TooLong { .. }));
    assert_eq!(changed(20, &[0]), WireError::Empty("slots"));
    assert_eq!(changed(24, &f32::INFINITY.to_le_bytes()), WireError::WeightNotFinite { slot: 0 });
    assert_eq!(changed(40, &[0]), WireError::NoExperts { row: 0 });
    assert_eq!(changed(40, &[9]), WireError::CountSum { sum: 12, slots: 4 });
    assert_eq!(changed(55, &[1]), WireError::NotZero("call padding"));
}

#[test]
fn a_reply_whose_sizes_overflow_is_refused() {
    let mut out = BytesMut::new();
    encode_reply(&mut out, CallId(3), LayerId(2), 2, &[1.0, 2.0], WorkerTimes::default()).unwrap();
    let mut bytes = out.to_vec();
    bytes[FRAME_HEADER + 12..FRAME_HEADER + 20].fill(255);
    let mut reply = ExpertReply::default();
    framed(&bytes, reply.frame_mut());
    assert!(matches!(reply.parse(), Err(WireError::Length { message: "reply", .. })));
    assert!(encode_reply(&mut out, CallId(3), LayerId(2), 0, &[], WorkerTimes::default()).is_err());
    assert!(encode_reply(&mut out, CallId(3), LayerId(2), 2, &[1.0], WorkerTimes::default()).is_err());
}

prop_compose! {
    fn rows_of_experts()(
        counts in prop::collection::vec(1_u16..6, 1..9),
        hidden in 1_usize..20,
        seed in any::<u16>(),
    ) -> (Vec<u16>, usize, Vec<ExpertId>, Vec<f32>, Vec<u8>) {
        let slots: usize = counts.iter().map(|count| usize::from(*count)).sum();
        let experts = (0..slots).map(|n| ExpertId(seed.wrapping_mul(n as u16))).collect();
        let weights = (0..slots).map(|n| n as f32 * 0.1 - 1.0).collect();
        let rows = (0..counts.len() * hidden * 4).map(|n| n as u8).collect();
        (counts, hidden, experts, weights, rows)
    }
}

proptest! {
    #[test]
    fn calls_round_trip((counts, hidden, experts, weights, rows) in rows_of_experts()) {
        let batch = ExpertBatch {
            layer: LayerId(1),
            activation: ActivationType::F32,
            hidden,
            counts: &counts,
            experts: &experts,
            weights: &weights,
            rows: &rows,
        };
        let call = parse(&encoded(&batch)).unwrap();
        let found = call.batch();
        prop_assert_eq!(found.rows, batch.rows);
        prop_assert_eq!(found.experts, batch.experts);
        prop_assert_eq!(found.weights, batch.weights);
        prop_assert_eq!(found.counts, batch.counts);
    }

    #[test]
    fn a_changed_byte_never_panics(at in 0_usize..88, value in any::<u8>()) {
        let mut bytes = encoded(&BATCH);
        let at = FRAME_HEADER + at % (bytes.len() - FRAME_HEADER);
        bytes[at] = value;
        let _ = parse(&bytes);
        bytes[4] = FrameKind::Reply as u8;
        let mut reply = ExpertReply::default();
        framed(&bytes, reply.frame_mut());
        let _ = reply.parse();
        let _ = reply.sums();
    }
}
