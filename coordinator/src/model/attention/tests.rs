//! What attention on the CPU does not do.
#![cfg(target_os = "linux")]

use laguna_shared::compute::cpu::Pool;
use laguna_shared::config::ConfigOptions;
use laguna_worker::model::OpenModel;
use mlx_rs::Array;

use crate::model::Segment;
use crate::model::linear::TrunkMath;
use crate::model::micro_batch::MicroBatch;
use crate::model::quantize::TrunkBits;
use crate::model::tests::{experts_of, fixture, loaded, noise};

/// How often this thread has gone to sleep, as it does for every evaluation: another thread makes it.
fn slept() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

#[test]
fn no_step_on_the_cpu_is_evaluated_by_mlx() {
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
    let [one, five] = [1, 5].map(|rows| noise(&[rows, model.config.hidden_size as i32], 1));
    sleeps_in_no_pass(|| {
        run(&mut [Segment { ids: &[0], cache: &mut a }], &one);
        run(&mut [Segment { ids: &[0; 2], cache: &mut a }, Segment { ids: &[0; 3], cache: &mut b }], &five);
    });
}

#[test]
fn nor_is_any_step_of_a_whole_pass() {
    let opened = OpenModel::open(&fixture("bf16"), &ConfigOptions::default()).unwrap();
    let mut experts = experts_of(&opened);
    let model = loaded(TrunkBits::Stored, TrunkMath::Cpu(Pool::new(1)));
    let (mut a, mut b) = (model.new_cache(), model.new_cache());
    sleeps_in_no_pass(|| {
        let one = Segment { ids: &[7], cache: &mut a };
        model.forward(&mut [one], &mut experts, None).unwrap();
        let two = [Segment { ids: &[8, 9], cache: &mut a }, Segment { ids: &[10; 3], cache: &mut b }];
        model.forward(&mut { two }, &mut experts, None).unwrap();
    });
}

/// Of some rounds the one with the fewest sleeps counts: other tests' threads hold locks now and then, while evaluations
/// would be in every round.
fn sleeps_in_no_pass(mut pass: impl FnMut()) {
    // Some weights take the activation type when they are first looked at.
    pass();
    let least = (0..ROUNDS).map(|_| {
        let before = slept();
        (0..PASSES).for_each(|_| pass());
        slept() - before
    });
    let (least, passes) = (least.min().unwrap(), 2 * PASSES);
    assert!(least < passes, "slept {least} times in {passes} passes");
}

const ROUNDS: u64 = 20;

/// In a round; each is two forward passes.
const PASSES: u64 = 10;
