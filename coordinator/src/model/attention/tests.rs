//! What attention on the CPU does not do.

use laguna_shared::compute::cpu::Pool;
use mlx_rs::Array;

use crate::model::Segment;
use crate::model::linear::TrunkMath;
use crate::model::micro_batch::MicroBatch;
use crate::model::quantize::TrunkBits;
use crate::model::tests::{loaded, noise};

/// How often this thread has gone to sleep, as it does for every evaluation: another thread makes it.
fn slept() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

#[test]
fn no_step_on_the_cpu_is_evaluated_by_mlx() {
    const PASSES: u64 = 100;
    let model = loaded(TrunkBits::Stored, TrunkMath::Cpu(Pool::new(1)));
    let (mut a, mut b) = (model.new_cache(), model.new_cache());
    let run = |segments: &mut [Segment<'_>], x: &Array| {
        let pieces = MicroBatch::cut(segments, 1).remove(0).pieces;
        for (index, layer) in model.layers.iter().enumerate() {
            let normed = layer.input_norm.forward(x).unwrap();
            layer.attention.forward(index, &normed, &pieces, segments).unwrap();
        }
        segments.iter_mut().for_each(|segment| segment.cache.advance(segment.ids.len()));
    };
    // One token, and several segments of several.
    let (one, five) =
        ([noise(&[1, model.config.hidden_size as i32], 1)], noise(&[5, model.config.hidden_size as i32], 2));
    let mut pass = || {
        run(&mut [Segment { ids: &[0], cache: &mut a }], &one[0]);
        run(&mut [Segment { ids: &[0; 2], cache: &mut a }, Segment { ids: &[0; 3], cache: &mut b }], &five);
    };
    // Weights of norms are evaluated once.
    pass();
    let before = slept();
    (0..PASSES).for_each(|_| pass());
    let passes = slept() - before;
    let before = slept();
    (0..PASSES).for_each(|_| five.add(&five).unwrap().eval().unwrap());
    let evaluations = slept() - before;
    assert!(
        passes < PASSES / 2,
        "slept {passes} times in {PASSES} passes, {evaluations} in as many evaluations"
    );
}
