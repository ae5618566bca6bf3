//! Rows grouped by shard, and partial sums added up: the engine's own part of a sparse layer.
#![allow(missing_docs)]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use laguna_bench::exchange::payload::{HIDDEN, LAYER};
use laguna_bench::synth::noise::Noise;
use laguna_coordinator::experts::RoutedRows;
use laguna_coordinator::experts::gather::Gather;
use laguna_coordinator::experts::scatter::Scatter;
use laguna_coordinator::model::router::Choices;
use laguna_shared::compute::ActivationType;
use laguna_shared::ids::ExpertId;

const EXPERTS: usize = 256;
const TOP_K: usize = 10;
const SHARDS: usize = 3;

fn layers(criterion: &mut Criterion) {
    let owners: Vec<u16> = (0..EXPERTS).map(|expert| (expert * SHARDS / EXPERTS) as u16).collect();
    let mut group = criterion.benchmark_group("scatter and gather");
    for rows in [1, 512] {
        let mut noise = Noise::new(1, "routes");
        let chosen = (0..rows).flat_map(|_| noise.choose(TOP_K, EXPERTS));
        let routed = RoutedRows {
            layer: LAYER,
            activation: ActivationType::Bf16,
            hidden: HIDDEN,
            top_k: TOP_K,
            choices: Choices {
                experts: chosen.map(|expert| ExpertId(expert as u16)).collect(),
                weights: vec![0.1; rows * TOP_K],
            },
            rows: vec![1; rows * HIDDEN * ActivationType::Bf16.size()],
        };
        let mut scatter = Scatter::default();
        group.throughput(Throughput::Elements(rows as u64));
        group.bench_function(format!("scatter {rows} rows"), |bencher| {
            bencher.iter(|| {
                let groups = scatter.group(black_box(&routed), &owners, SHARDS).expect("all owned");
                black_box(groups.len())
            });
        });
        let partial = vec![0.25; rows * HIDDEN];
        let mut gather = Gather::default();
        group.bench_function(format!("gather {rows} rows"), |bencher| {
            bencher.iter(|| {
                gather.start(rows, HIDDEN);
                for group in scatter.groups() {
                    gather.add(&group.sources, black_box(&partial[..group.sources.len() * HIDDEN]));
                }
                black_box(gather.sums().len())
            });
        });
    }
    group.finish();
}

criterion_group!(benches, layers);
criterion_main!(benches);
