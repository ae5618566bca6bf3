//! The bank against the oracle in every bundled layout, on every instruction set of this machine.

use std::path::Path;

use super::*;
use crate::compute::reference::ReferenceBank;
use crate::compute::{ActivationType, BankError, BankLoadError, ExpertBank, ExpertBatch};
use crate::config::{ConfigOptions, ModelConfig};
use crate::ids::{ExpertId, ExpertRange, LayerId};
use crate::weights::forge::{EXPERTS, Forge, HIDDEN, MLP, PROJECTIONS};
use crate::weights::{Checkpoint, Inventory};

const LAYOUTS: [&str; 5] = ["bf16", "nvfp4_ct", "mlx_nvfp4", "mlx_affine4", "mlx_fused_nvfp4"];

struct Model {
    checkpoint: Checkpoint,
    inventory: Inventory,
    config: ModelConfig,
}

impl Model {
    fn open(dir: &Path) -> Self {
        let config = ModelConfig::from_dir(dir, &ConfigOptions::default()).unwrap();
        let checkpoint = Checkpoint::open(dir).unwrap();
        let inventory = Inventory::resolve(&checkpoint, &config).unwrap();
        Self { checkpoint, inventory, config }
    }

    fn fixture(name: &str) -> Self {
        Self::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name))
    }

    fn bank(&self, isa: Isa, threads: usize, range: ExpertRange) -> CpuBank {
        let pool = Pool::new(threads);
        CpuBank::load_on(isa, &self.checkpoint, &self.inventory, range, pool, &mut |_| ()).unwrap()
    }

    fn oracle(&self, range: ExpertRange) -> ReferenceBank {
        ReferenceBank::load(&self.checkpoint, &self.inventory, &self.config, range, &mut |_| ()).unwrap()
    }
}

/// Rows with 1 to 4 experts each, all within `range`, in no order, and values that look like noise.
struct Rows {
    layer: LayerId,
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
            let picked = (0..count).map(|n| range.start + ((first + n * 7) % range.len()) as u16);
            experts.extend(picked.map(ExpertId));
            weights.extend((0..count).map(|_| next() as f32 / u32::MAX as f32));
            counts.push(count as u16);
        }
        let values = (0..rows * hidden).map(|_| next() as f32 / u32::MAX as f32 * 4.0 - 2.0).collect();
        Self { layer: LayerId(2), counts, experts, weights, values, hidden }
    }

    fn batch(&self) -> ExpertBatch<'_> {
        ExpertBatch {
            layer: self.layer,
            activation: ActivationType::F32,
            hidden: self.hidden,
            counts: &self.counts,
            experts: &self.experts,
            weights: &self.weights,
            rows: bytemuck::cast_slice(&self.values),
        }
    }
}

fn run(bank: &mut dyn ExpertBank, rows: &Rows) -> Vec<f32> {
    let mut out = vec![f32::NAN; 3];
    bank.run(&rows.batch(), &mut out).unwrap();
    out
}

/// Each row's error against its own size, at most `1e-6` in the root mean square.
#[track_caller]
fn assert_close(found: &[f32], exact: &[f32], hidden: usize, what: &str) {
    assert_eq!(found.len(), exact.len());
    for (found, exact) in found.chunks(hidden).zip(exact.chunks(hidden)) {
        let square = |x: f32| f64::from(x).powi(2);
        let off: f64 = found.iter().zip(exact).map(|(a, b)| square(a - b)).sum();
        let rms = (off / exact.iter().map(|x| square(*x)).sum::<f64>()).sqrt();
        assert!(rms <= 1e-6, "{what}: {rms:e}");
    }
}

#[test]
fn agrees_with_the_oracle_in_every_layout_for_one_row_and_for_many() {
    for layout in LAYOUTS {
        let model = Model::fixture(layout);
        for range in [ExpertRange::new(0, 16), ExpertRange::new(5, 12)] {
            let mut oracle = model.oracle(range);
            for isa in Isa::available() {
                let mut bank = model.bank(isa, 2, range);
                // Experts with one row, with few, and with more than a tile.
                for rows in [1, 2, 15, 200] {
                    let rows = Rows::new(rows, model.config.hidden_size, range);
                    let (ours, exact) = (run(&mut bank, &rows), run(&mut oracle, &rows));
                    assert_close(&ours, &exact, rows.hidden, &format!("{layout} {range} {isa:?}"));
                }
            }
        }
    }
}

#[test]
fn experts_of_one_layer_may_have_different_formats() {
    let mut forge = Forge::bf16();
    for (expert, (name, rows, cols)) in [1, 2].into_iter().flat_map(|e| PROJECTIONS.map(|p| (e, p))) {
        let stem = format!("{MLP}.experts.{expert}.{name}");
        if expert == 1 {
            forge.remove(&format!("{stem}.weight"));
            forge.compress(&stem, rows, cols);
        } else {
            forge.quantize(&stem, &[rows], cols, 8, 32);
        }
    }
    let written = forge.write();
    let model = Model::open(&written.path());
    let range = ExpertRange::new(0, EXPERTS as u16);
    for isa in Isa::available() {
        for rows in [1, 30] {
            let rows = Rows { layer: LayerId(1), ..Rows::new(rows, HIDDEN, range) };
            let (ours, exact) =
                (run(&mut model.bank(isa, 2, range), &rows), run(&mut model.oracle(range), &rows));
            assert_close(&ours, &exact, HIDDEN, &format!("{isa:?}"));
        }
    }
}

#[test]
fn same_batch_same_bits_on_any_number_of_threads() {
    let range = ExpertRange::new(0, 16);
    for layout in LAYOUTS {
        let model = Model::fixture(layout);
        for isa in Isa::available() {
            let mut bank = model.bank(isa, 3, range);
            for rows in [1, 40] {
                let rows = Rows::new(rows, model.config.hidden_size, range);
                let first = run(&mut bank, &rows);
                // Other calls in between leave nothing behind.
                run(&mut bank, &Rows::new(7, rows.hidden, range));
                assert_eq!(run(&mut bank, &rows), first, "{layout} {isa:?}");
                assert_eq!(run(&mut model.bank(isa, 1, range), &rows), first, "{layout} {isa:?}");
            }
        }
    }
}

#[test]
fn bf16_rows_are_the_same_numbers() {
    let (model, range) = (Model::fixture("nvfp4_ct"), ExpertRange::new(0, 16));
    let mut bank = model.bank(Isa::best(), 2, range);
    let mut rows = Rows::new(9, model.config.hidden_size, range);
    let narrow: Vec<half::bf16> = rows.values.iter().map(|x| half::bf16::from_f32(*x)).collect();
    rows.values = narrow.iter().map(|x| x.to_f32()).collect();
    let wide = run(&mut bank, &rows);
    let batch =
        ExpertBatch { activation: ActivationType::Bf16, rows: bytemuck::cast_slice(&narrow), ..rows.batch() };
    let mut out = Vec::new();
    bank.run(&batch, &mut out).unwrap();
    assert_eq!(out, wide);
}

#[test]
fn one_bad_row_spoils_itself_only() {
    let (model, range) = (Model::fixture("nvfp4_ct"), ExpertRange::new(0, 16));
    for isa in Isa::available() {
        let mut bank = model.bank(isa, 2, range);
        for count in [3, 60] {
            let mut rows = Rows::new(count, model.config.hidden_size, range);
            let good = run(&mut bank, &rows);
            rows.values[rows.hidden + 5] = f32::NAN;
            let out = run(&mut bank, &rows);
            for (row, (out, good)) in out.chunks(rows.hidden).zip(good.chunks(rows.hidden)).enumerate() {
                if row == 1 {
                    assert!(out.iter().all(|y| y.is_nan()), "{isa:?}");
                } else {
                    assert_eq!(out, good, "{isa:?}");
                }
            }
        }
    }
}

#[test]
fn loading_tells_every_byte_and_what_it_runs_on() {
    let (model, range) = (Model::fixture("nvfp4_ct"), ExpertRange::new(5, 12));
    let mut told = 0;
    let Model { checkpoint, inventory, .. } = &model;
    let bank = CpuBank::load(checkpoint, inventory, range, Pool::new(2), &mut |bytes| told += bytes).unwrap();
    assert_eq!(bank.resident_bytes(), model.oracle(range).resident_bytes());
    assert_eq!((told, bank.range()), (bank.resident_bytes(), range));
    assert_eq!(bank.backend(), format!("cpu ({}, 2 threads)", Isa::best().name()));
    let outside = ExpertRange::new(10, 17);
    let outside = CpuBank::load(checkpoint, inventory, outside, Pool::new(2), &mut |_| ());
    assert!(matches!(outside, Err(BankLoadError::BadRange { experts: 16, .. })), "{outside:?}");
}

#[test]
fn what_it_does_not_hold_is_refused_by_name() {
    let (model, range) = (Model::fixture("nvfp4_ct"), ExpertRange::new(5, 12));
    let mut bank = model.bank(Isa::best(), 1, range);
    let mut rows = Rows::new(3, model.config.hidden_size, range);
    let mut out = Vec::new();
    rows.experts[0] = ExpertId(12);
    let foreign = bank.run(&rows.batch(), &mut out);
    assert!(matches!(foreign, Err(BankError::ForeignExpert { expert: ExpertId(12), .. })), "{foreign:?}");
    rows.experts[0] = ExpertId(5);
    for layer in [0, 99, u16::MAX].map(LayerId) {
        let unknown = bank.run(&ExpertBatch { layer, ..rows.batch() }, &mut out);
        assert!(matches!(unknown, Err(BankError::UnknownLayer { .. })), "{unknown:?}");
    }
    let short = bank.run(&ExpertBatch { weights: &rows.weights[1..], ..rows.batch() }, &mut out);
    assert!(matches!(short, Err(BankError::Malformed(_))), "{short:?}");
    let none = ExpertBatch { counts: &[], experts: &[], weights: &[], rows: &[], ..rows.batch() };
    bank.run(&none, &mut out).unwrap();
    assert!(out.is_empty(), "no rows in, none out");
}
