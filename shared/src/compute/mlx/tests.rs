//! The MLX bank against the plain-Rust oracle, in every layout that is bundled.

use std::path::{Path, PathBuf};

use super::MlxBank;
use super::array::looked;
use crate::compute::reference::ReferenceBank;
use crate::compute::{ActivationType, BankError, BankLoadError, ExpertBank, ExpertBatch};
use crate::config::{ConfigOptions, ModelConfig};
use crate::ids::{ExpertId, ExpertRange, LayerId};
use crate::weights::{Checkpoint, Inventory};

const LAYOUTS: [&str; 5] = ["bf16", "nvfp4_ct", "mlx_nvfp4", "mlx_affine4", "mlx_fused_nvfp4"];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

fn banks(name: &str, range: ExpertRange) -> (ModelConfig, MlxBank, ReferenceBank) {
    let dir = fixture(name);
    let config = ModelConfig::from_dir(&dir, &ConfigOptions::default()).unwrap();
    let checkpoint = Checkpoint::open(&dir).unwrap();
    let inventory = Inventory::resolve(&checkpoint, &config).unwrap();
    let mlx = MlxBank::load(&checkpoint, &inventory, range, &mut |_| ()).unwrap();
    let reference = ReferenceBank::load(&checkpoint, &inventory, &config, range, &mut |_| ()).unwrap();
    (config, mlx, reference)
}

/// Rows with 1 to 4 experts each, all within `range`, and values that look like noise.
struct Rows {
    counts: Vec<u16>,
    experts: Vec<ExpertId>,
    weights: Vec<f32>,
    values: Vec<f32>,
    hidden: usize,
}

impl Rows {
    fn new(rows: usize, hidden: usize, range: ExpertRange) -> Self {
        let mut state = 0x9e37_79b9_u32;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state
        };
        let (mut counts, mut experts, mut weights) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rows {
            let count = 1 + next() as usize % 4.min(range.len());
            let first = next() as usize % range.len();
            // Distinct, in no particular order.
            let picked = (0..count).map(|n| range.start + ((first + n * 7) % range.len()) as u16);
            experts.extend(picked.map(ExpertId));
            weights.extend((0..count).map(|_| next() as f32 / u32::MAX as f32));
            counts.push(count as u16);
        }
        let values = (0..rows * hidden).map(|_| next() as f32 / u32::MAX as f32 * 4.0 - 2.0).collect();
        Self { counts, experts, weights, values, hidden }
    }

    fn batch(&self) -> ExpertBatch<'_> {
        ExpertBatch {
            layer: LayerId(2),
            activation: ActivationType::F32,
            hidden: self.hidden,
            counts: &self.counts,
            experts: &self.experts,
            weights: &self.weights,
            rows: bytemuck::cast_slice(&self.values),
        }
    }
}

#[test]
fn agrees_with_the_oracle_in_every_layout_for_one_row_and_for_many() {
    for layout in LAYOUTS {
        for range in [ExpertRange::new(0, 16), ExpertRange::new(5, 12)] {
            let (config, mut mlx, mut reference) = banks(layout, range);
            // One slot order for few slots, another for many; and rows with different numbers of slots.
            for rows in [1, 2, 15, 60] {
                let rows = Rows::new(rows, config.hidden_size, range);
                let (mut ours, mut theirs) = (Vec::new(), Vec::new());
                mlx.run(&rows.batch(), &mut ours).unwrap();
                reference.run(&rows.batch(), &mut theirs).unwrap();
                assert_eq!(ours.len(), rows.counts.len() * config.hidden_size);
                let scale = theirs.iter().fold(0.0_f32, |max, v| max.max(v.abs()));
                for (ours, theirs) in ours.iter().zip(&theirs) {
                    assert!((ours - theirs).abs() <= 2e-5 * scale, "{layout} {range}: {ours} {theirs}");
                }
            }
        }
    }
}

#[test]
fn same_batch_same_bits() {
    let range = ExpertRange::new(0, 16);
    let (config, mut mlx, _) = banks("nvfp4_ct", range);
    let rows = Rows::new(40, config.hidden_size, range);
    let (mut first, mut second) = (Vec::new(), vec![1.0; 3]);
    mlx.run(&rows.batch(), &mut first).unwrap();
    mlx.run(&Rows::new(3, config.hidden_size, range).batch(), &mut second).unwrap();
    mlx.run(&rows.batch(), &mut second).unwrap();
    assert_eq!(first, second);
}

#[test]
fn what_it_does_not_hold_is_refused_by_name() {
    let range = ExpertRange::new(5, 12);
    let (config, mut mlx, _) = banks("nvfp4_ct", range);
    let mut rows = Rows::new(3, config.hidden_size, range);
    rows.experts[0] = ExpertId(12);
    let mut out = Vec::new();
    let foreign = mlx.run(&rows.batch(), &mut out);
    assert!(matches!(foreign, Err(BankError::ForeignExpert { expert: ExpertId(12), .. })), "{foreign:?}");
    rows.experts[0] = ExpertId(5);
    let dense = mlx.run(&ExpertBatch { layer: LayerId(0), ..rows.batch() }, &mut out);
    assert!(matches!(dense, Err(BankError::UnknownLayer { layer: LayerId(0) })), "{dense:?}");
    let short = mlx.run(&ExpertBatch { weights: &rows.weights[1..], ..rows.batch() }, &mut out);
    assert!(matches!(short, Err(BankError::Malformed(_))), "{short:?}");

    let dir = fixture("nvfp4_ct");
    let checkpoint = Checkpoint::open(&dir).unwrap();
    let inventory = Inventory::resolve(&checkpoint, &config).unwrap();
    let outside = MlxBank::load(&checkpoint, &inventory, ExpertRange::new(10, 17), &mut |_| ());
    assert!(matches!(outside, Err(BankLoadError::BadRange { experts: 16, .. })), "{outside:?}");
}

/// A call is one graph, evaluated once, however many rows it has. The numbers are those of a machine that multiplies in
/// the type of its rows.
#[test]
fn a_call_is_one_evaluation_of_few_operations() {
    let range = ExpertRange::new(0, 16);
    // Rows that have as many slots each, in order, are summed where they lie; others are gathered first.
    let expected = [
        ("bf16", [17, 21]),
        ("nvfp4_ct", [20, 24]),
        ("mlx_nvfp4", [14, 18]),
        ("mlx_affine4", [14, 18]),
        ("mlx_fused_nvfp4", [14, 18]),
    ];
    for (layout, expected) in expected {
        let (config, mlx, _) = banks(layout, range);
        let mut mlx = mlx.computing_in(ActivationType::F32);
        for (rows, expected) in [1, 60].into_iter().zip(expected) {
            let rows = Rows::new(rows, config.hidden_size, range);
            looked::take();
            mlx.run(&rows.batch(), &mut Vec::new()).unwrap();
            let graphs = looked::take();
            assert_eq!(graphs.len(), 1, "{layout}: {graphs:#?}");
            assert_eq!(graphs[0].len(), expected, "{layout}: {graphs:#?}");
        }
    }
}
