//! Synthetic checkpoints as the coordinator's library sees them.

use std::path::Path;

use clap::Parser;
use laguna_coordinator::cli::{args::Args, cluster, loading::unwatched};
use laguna_coordinator::engine::generation::{Request, generate};
use laguna_coordinator::engine::sampler::{Sampler, Sampling};
use laguna_shared::compute::ActivationType;
use laguna_shared::config::ConfigOptions;
use laguna_worker::model::OpenModel;

use super::noise::Noise;
use super::tensors::{Fill, tensors};
use super::*;
use crate::nano;

fn written(layout: Layout, shape: &Shape) -> (tempfile::TempDir, Written) {
    let dir = tempfile::tempdir().unwrap();
    let mut told = 0;
    let written = write(dir.path(), shape, layout, 7, &nano(), &mut |bytes| told += bytes).unwrap();
    assert_eq!(told, written.bytes);
    (dir, written)
}

fn four_tokens(dir: &Path) -> Vec<u32> {
    let dir = dir.to_str().unwrap();
    let args =
        Args::parse_from(["laguna-coord", "--loopback=2", "--bank", "reference", "--chunk", "3", "-m", dir]);
    let mut cluster = cluster::open(&args.cluster, ActivationType::F32, None, &unwatched).unwrap();
    let request =
        Request { prompt: &[2, 25, 26, 27, 28], max_tokens: 4, chunk: cluster.chunk, stop_ids: &[] };
    let mut ids = Vec::new();
    let mut sampler = Sampler::new(Sampling::greedy(), 0, request.prompt);
    generate(&cluster.model, &mut cluster.experts, &request, &mut sampler, |id| {
        ids.push(id);
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    // Argmax of NaN is 0, and 0 four times over would be a rare chance.
    assert!(ids.iter().any(|id| *id != 0), "{ids:?}");
    ids
}

#[test]
fn both_layouts_open_resolve_and_run() {
    let shape = Shape::of(Preset::Tiny);
    for layout in [Layout::Compressed, Layout::Stacked] {
        let (dir, written) = written(layout, &shape);
        let model = OpenModel::open(dir.path(), &ConfigOptions::default()).unwrap();
        assert_eq!(model.config.num_experts, shape.experts);
        assert_eq!(model.config.sparse_layers().count(), shape.layers - shape.dense_layers);
        let sparse = model.inventory.layers.len() - shape.dense_layers;
        // Per expert: two dimensions of codes and scales; the compressed layout adds a global scale a projection.
        let scales = if layout == Layout::Compressed { 3 * 4 * shape.experts * sparse } else { 0 };
        let experts = shape.expert_bytes() * shape.experts * sparse + scales;
        assert!(written.bytes > experts as u64);
        assert_eq!(four_tokens(dir.path()), four_tokens(dir.path()));
    }
}

#[test]
fn experts_alone_are_a_model_too() {
    let shape = Shape { hidden: 64, expert_width: 32, top_k: 3, ..Shape::experts_only(4) };
    let (dir, _) = written(Layout::Stacked, &shape);
    four_tokens(dir.path());
}

#[test]
fn same_seed_same_bytes() {
    let (a, b) = (
        written(Layout::Compressed, &Shape::of(Preset::Tiny)).0,
        written(Layout::Compressed, &Shape::of(Preset::Tiny)).0,
    );
    let mut files = 0;
    for file in std::fs::read_dir(a.path()).unwrap() {
        let name = file.unwrap().file_name();
        let read = |dir: &tempfile::TempDir| std::fs::read(dir.path().join(&name)).unwrap();
        assert_eq!(read(&a), read(&b), "{name:?}");
        files += 1;
    }
    assert_eq!(files, 4 + 2 + 4);
}

#[test]
fn weights_have_the_size_they_should() {
    let shape = Shape { hidden: 1024, expert_width: 512, ..Shape::of(Preset::Tiny) };
    for layout in [Layout::Compressed, Layout::Stacked] {
        for tensor in tensors(&shape, layout).iter().flatten() {
            let mut bytes = vec![0; tensor.bytes().min(1 << 16) as usize];
            tensor.fill.fill(&mut Noise::new(1, &tensor.name), &mut bytes);
            if let Fill::Bf16 { mean, std } = tensor.fill
                && bytes.len() > 4096
            {
                let values: Vec<f32> = bytes
                    .as_chunks::<2>()
                    .0
                    .iter()
                    .map(|raw| half::bf16::from_le_bytes(*raw).to_f32())
                    .collect();
                let count = values.len() as f32;
                let found = values.iter().sum::<f32>() / count;
                let spread = (values.iter().map(|x| (x - found).powi(2)).sum::<f32>() / count).sqrt();
                assert!((found - mean).abs() < 0.1 * std, "{}: mean {found}", tensor.name);
                assert!((spread / std - 1.0).abs() < 0.1, "{}: {spread} for {std}", tensor.name);
            }
            if let Fill::Scales { low, count } = tensor.fill {
                assert!(bytes.iter().all(|byte| (low..low + count).contains(byte)), "{}", tensor.name);
            }
        }
    }
}

#[test]
fn shapes_that_cannot_be_are_refused() {
    let tiny = Shape::of(Preset::Tiny);
    for shape in [
        Shape { hidden: 40, ..tiny.clone() },
        Shape { top_k: 9, ..tiny.clone() },
        Shape { heads_full: 3, ..tiny.clone() },
        Shape { dense_layers: 4, ..tiny.clone() },
        Shape { vocab: 9, ..tiny.clone() },
    ] {
        assert!(shape.fault().is_some(), "{shape:?}");
    }
    for preset in [Preset::S, Preset::Xs, Preset::Tiny] {
        assert_eq!(Shape::of(preset).fault(), None);
    }
    assert_eq!(Shape::of(Preset::S).expert_bytes(), 5_308_416);
}

#[test]
fn chosen_numbers_differ() {
    let mut noise = Noise::new(3, "choose");
    for _ in 0..50 {
        let mut chosen = noise.choose(10, 12);
        chosen.sort_unstable();
        chosen.dedup();
        assert!(chosen.len() == 10 && chosen.iter().all(|n| *n < 12));
    }
}
