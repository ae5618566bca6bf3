//! The oracle against the formula in f64, and everything it refuses.

use half::bf16;

use super::*;
use crate::{
    ids::ExpertId,
    weights::{
        decode::decode_matrix,
        forge::{EXPERTS, Forge, HIDDEN, MLP, PROJECTIONS, WIDTH},
        inventory::SwigluSource,
    },
};

const LAYER: LayerId = LayerId(1);

struct Case {
    checkpoint: Checkpoint,
    inventory: Inventory,
    config: ModelConfig,
}

impl Case {
    fn new(forge: &Forge) -> Self {
        let written = forge.write();
        let (checkpoint, inventory) = written.resolve().unwrap();
        Self { checkpoint, inventory, config: written.config }
    }

    fn bank(&self, start: u16, end: u16) -> ReferenceBank {
        let range = ExpertRange::new(start, end);
        ReferenceBank::load(&self.checkpoint, &self.inventory, &self.config, range, &mut |_| ()).unwrap()
    }

    /// `Σ w · down(silu(gate x) · up x)` in f64.
    fn formula(&self, x: &[f32], slots: &[(u16, f32)]) -> Vec<f64> {
        let MlpSource::Sparse(sparse) = &self.inventory.layers[1].mlp else { panic!("layer 1 is sparse") };
        let times = |source: &MatrixSource, x: &[f64]| -> Vec<f64> {
            let weights = decode_matrix(&read_matrix(&self.checkpoint, source).unwrap());
            let rows = weights.chunks(source.cols);
            rows.map(|row| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()).collect()
        };
        let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let mut sum = vec![0.0; HIDDEN];
        for (expert, weight) in slots {
            let SwigluSource { gate, up, down } = &sparse.experts[usize::from(*expert)];
            let inner: Vec<f64> = times(gate, &x)
                .into_iter()
                .zip(times(up, &x))
                .map(|(g, u)| g / (1.0 + (-g).exp()) * u)
                .collect();
            for (sum, y) in sum.iter_mut().zip(times(down, &inner)) {
                *sum += f64::from(*weight) * y;
            }
        }
        sum
    }
}

fn rows(count: usize) -> Vec<f32> {
    // bf16 values, so that both activation types carry the same numbers.
    (0..count * HIDDEN).map(|n| bf16::from_f32((n as f32 * 0.37).sin() * 2.0).to_f32()).collect()
}

fn le_bytes(rows: &[f32]) -> Vec<u8> {
    rows.iter().flat_map(|x| x.to_le_bytes()).collect()
}

struct Batch {
    counts: Vec<u16>,
    experts: Vec<ExpertId>,
    weights: Vec<f32>,
    rows: Vec<u8>,
}

impl Batch {
    fn new(slots: &[&[(u16, f32)]], rows: &[f32]) -> Self {
        Self {
            counts: slots.iter().map(|row| row.len() as u16).collect(),
            experts: slots.iter().flat_map(|row| row.iter().map(|(e, _)| ExpertId(*e))).collect(),
            weights: slots.iter().flat_map(|row| row.iter().map(|(_, w)| *w)).collect(),
            rows: le_bytes(rows),
        }
    }

    fn view(&self) -> ExpertBatch<'_> {
        ExpertBatch {
            layer: LAYER,
            activation: ActivationType::F32,
            hidden: HIDDEN,
            counts: &self.counts,
            experts: &self.experts,
            weights: &self.weights,
            rows: &self.rows,
        }
    }
}

const SLOTS: [&[(u16, f32)]; 3] = [&[(3, 0.5), (1, 0.25)], &[(1, 1.0)], &[(0, 0.1), (3, 0.2), (2, -0.7)]];

#[test]
fn every_format_follows_the_formula() {
    let mut affine = Forge::bf16();
    affine.stack(&format!("{MLP}.switch_mlp"));
    for (name, rows, cols) in PROJECTIONS {
        affine.quantize(&format!("{MLP}.switch_mlp.{name}"), &[EXPERTS, rows], cols, 6, 32);
    }
    for forge in [Forge::bf16(), Forge::compressed(), affine] {
        let case = Case::new(&forge);
        let x = rows(3);
        let batch = Batch::new(&SLOTS, &x);
        let mut out = vec![f32::NAN; 7];
        let mut bank = case.bank(0, EXPERTS as u16);
        bank.run(&batch.view(), &mut out).unwrap();
        assert_eq!(out.len(), 3 * HIDDEN);
        let mut largest = 0.0_f64;
        for ((x, slots), out) in x.chunks(HIDDEN).zip(SLOTS).zip(out.chunks(HIDDEN)) {
            let exact = case.formula(x, slots);
            let scale = exact.iter().fold(0.0, |m: f64, y| m.max(y.abs()));
            largest = largest.max(scale);
            for (found, exact) in out.iter().zip(&exact) {
                assert!((f64::from(*found) - exact).abs() <= 1e-6 * scale, "{found} is not {exact}");
            }
        }
        assert!(largest > 0.0);

        // Same batch, same bits; as bf16 rows too.
        let mut again = Vec::new();
        bank.run(&batch.view(), &mut again).unwrap();
        assert_eq!(again, out);
        let narrow: Vec<u8> = x.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect();
        let view = ExpertBatch { activation: ActivationType::Bf16, rows: &narrow, ..batch.view() };
        bank.run(&view, &mut again).unwrap();
        assert_eq!(again, out);
    }
}

#[test]
fn shards_add_up_to_the_whole() {
    let case = Case::new(&Forge::compressed());
    let x = rows(1);
    let (mut low, mut high, mut whole) = (Vec::new(), Vec::new(), Vec::new());
    let mut bank = case.bank(0, 2);
    bank.run(&Batch::new(&[&[(1, 0.25)]], &x).view(), &mut low).unwrap();
    assert_eq!((bank.range(), bank.backend()), (ExpertRange::new(0, 2), "reference"));
    let half = bank.resident_bytes();
    case.bank(2, 4).run(&Batch::new(&[&[(3, 0.5)]], &x).view(), &mut high).unwrap();
    let mut bank = case.bank(0, 4);
    bank.run(&Batch::new(&[&[(1, 0.25), (3, 0.5)]], &x).view(), &mut whole).unwrap();
    let sum: Vec<f32> = low.iter().zip(&high).map(|(a, b)| a + b).collect();
    assert_eq!(sum, whole);
    assert_eq!(bank.resident_bytes(), 2 * half);
    // Codes and scales of two sparse layers.
    assert_eq!(half, (2 * 2 * 3 * (WIDTH * HIDDEN / 2 + WIDTH * HIDDEN / 16)) as u64);
}

#[test]
fn loading_tells_every_byte_and_knows_its_range() {
    let case = Case::new(&Forge::compressed());
    let load = |range, progress: &mut dyn FnMut(u64)| {
        ReferenceBank::load(&case.checkpoint, &case.inventory, &case.config, range, progress)
    };
    let mut told = 0;
    let bank = load(ExpertRange::new(1, 3), &mut |bytes| told += bytes).unwrap();
    assert_eq!(told, bank.resident_bytes());
    let error = load(ExpertRange::new(2, 5), &mut |_| ()).unwrap_err().to_string();
    assert_eq!(error, "experts 2..5: the model has experts 0..4");
    assert!(load(ExpertRange::new(2, 2), &mut |_| ()).is_err());
}

#[test]
fn batches_that_do_not_fit_are_refused() {
    let case = Case::new(&Forge::bf16());
    let mut bank = case.bank(1, 3);
    let x = rows(2);
    let batch = Batch::new(&[&[(1, 0.5), (2, 0.5)], &[(2, 1.0)]], &x);
    let mut out = Vec::new();
    let mut refused = |view: &ExpertBatch<'_>| bank.run(view, &mut out).unwrap_err().to_string();
    let view = batch.view();
    for layer in [0, 3, u16::MAX] {
        let view = ExpertBatch { layer: LayerId(layer), ..view };
        assert_eq!(refused(&view), format!("layer {layer} has no routed experts here"));
    }
    let foreign = Batch::new(&[&[(1, 0.5), (3, 0.5)], &[(2, 1.0)]], &x);
    assert_eq!(refused(&foreign.view()), "expert 3 is outside this shard's range 1..3");
    assert_eq!(
        refused(&ExpertBatch { hidden: 32, ..view }),
        "malformed batch: rows have 32 elements, the model 64"
    );
    assert_eq!(
        refused(&ExpertBatch { rows: &view.rows[..500], ..view }),
        "malformed batch: 500 bytes are not 2 rows of 64 F32"
    );
    assert_eq!(refused(&ExpertBatch { counts: &[3, 0], ..view }), "malformed batch: row 1 has no expert");
    assert_eq!(
        refused(&ExpertBatch { counts: &[2, 2], ..view }),
        "malformed batch: 4 slots, but 3 expert ids and 3 weights"
    );
    assert_eq!(
        refused(&ExpertBatch { weights: &[0.5, f32::NAN, 1.0], ..view }),
        "malformed batch: weight of slot 1 is NaN"
    );
    bank.run(&view, &mut out).unwrap();
    let empty = ExpertBatch { counts: &[], experts: &[], weights: &[], rows: &[], ..view };
    bank.run(&empty, &mut out).unwrap();
    assert!(out.is_empty(), "no rows in, none out");
}
