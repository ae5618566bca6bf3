//! One row of NVFP4 codes to f32: what the reference bank and every exact path pay per row of weights.
#![allow(missing_docs)]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use laguna_bench::synth::noise::Noise;
use laguna_shared::weights::nvfp4::{GROUP, decode_row};

fn rows(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("nvfp4");
    for cols in [1024, 3072] {
        let mut noise = Noise::new(1, "codes");
        let codes: Vec<u8> = (0..cols / 2).map(|_| noise.below(256) as u8).collect();
        let scales = vec![0x38; cols / GROUP];
        let mut out = vec![0.0; cols];
        // Packed bytes, as they come from memory.
        group.throughput(Throughput::Bytes((codes.len() + scales.len()) as u64));
        group.bench_function(format!("decode a row of {cols}"), |bencher| {
            bencher.iter(|| decode_row(black_box(&codes), black_box(&scales), black_box(&mut out)));
        });
    }
    group.finish();
}

criterion_group!(benches, rows);
criterion_main!(benches);
