//! A call's and a reply's bytes: written, cut into frames and read, without any transport.
#![allow(missing_docs)]

use std::hint::black_box;

use bytes::BytesMut;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use laguna_bench::exchange::payload::{HIDDEN, LAYER, Payload};
use laguna_shared::wire::dispatch::{WorkerTimes, encode_call, encode_reply};
use laguna_shared::wire::{CallId, ExpertCall, ExpertReply, FrameDecoder};

fn calls(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("call");
    for payload in [Payload::Decode, Payload::Prefill] {
        let rows = payload.rows_for(0, 1);
        let batch = rows.batch();
        let mut out = BytesMut::new();
        encode_call(&mut out, CallId(1), &batch).expect("a consistent batch");
        let frame = out.to_vec();
        group.throughput(Throughput::Bytes(frame.len() as u64));
        group.bench_function(format!("encode {payload:?}"), |bencher| {
            bencher.iter(|| {
                out.clear();
                encode_call(&mut out, CallId(1), black_box(&batch)).expect("a consistent batch");
            });
        });
        let (mut decoder, mut call) = (FrameDecoder::default(), ExpertCall::default());
        group.bench_function(format!("decode {payload:?}"), |bencher| {
            bencher.iter(|| {
                feed(&mut decoder, black_box(&frame));
                decoder.poll_frame(call.frame_mut()).expect("a whole frame");
                call.parse().expect("a call");
                black_box(call.batch().rows.len())
            });
        });
    }
    group.finish();
}

fn replies(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("reply");
    for (name, rows) in [("Decode", 1), ("Prefill", 512)] {
        let sums = vec![0.5; rows * HIDDEN];
        let mut out = BytesMut::new();
        let encode = |out: &mut BytesMut, sums: &[f32]| {
            out.clear();
            encode_reply(out, CallId(1), LAYER, HIDDEN, sums, WorkerTimes::default()).expect("whole rows");
        };
        encode(&mut out, &sums);
        let frame = out.to_vec();
        group.throughput(Throughput::Bytes(frame.len() as u64));
        group.bench_function(format!("encode {name}"), |bencher| {
            bencher.iter(|| encode(&mut out, black_box(&sums)));
        });
        let (mut decoder, mut reply) = (FrameDecoder::default(), ExpertReply::default());
        group.bench_function(format!("decode {name}"), |bencher| {
            bencher.iter(|| {
                feed(&mut decoder, black_box(&frame));
                decoder.poll_frame(reply.frame_mut()).expect("a whole frame");
                reply.parse().expect("a reply");
                black_box(reply.sums().len())
            });
        });
    }
    group.finish();
}

fn feed(decoder: &mut FrameDecoder, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let taken = decoder.handle_bytes(bytes).expect("a sound frame");
        bytes = &bytes[taken..];
    }
}

criterion_group!(benches, calls, replies);
criterion_main!(benches);
