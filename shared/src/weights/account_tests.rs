//! Sums that can be checked by hand.

use super::{
    Account,
    account::Part,
    forge::{EXPERTS, Forge, HIDDEN, MLP, WIDTH},
};
use crate::ids::{ExpertRange, LayerId};

#[test]
fn parameters_and_bytes_by_part() {
    let mut forge = Forge::compressed();
    forge.stack(&format!("{MLP}.switch_mlp"));
    let (checkpoint, inventory) = forge.write().resolve().unwrap();
    let account = Account::of(&checkpoint, &inventory);

    let matrix = (WIDTH * HIDDEN) as u64;
    // Codes, a scale byte per 16, a global scale: three times.
    let expert = 3 * (matrix / 2 + matrix / 16 + 4);
    let routed = account.parts[&Part::RoutedExperts];
    assert_eq!(routed.parameters, 2 * EXPERTS as u64 * 3 * matrix);
    assert_eq!(routed.bytes, 2 * EXPERTS as u64 * expert);
    assert_eq!(account.formats["nvfp4"], routed);
    assert_eq!(account.shard_bytes(ExpertRange::new(1, 3)), 2 * 2 * expert);
    assert_eq!(account.experts[0].largest(), expert);
    assert_eq!(account.parts[&Part::Router].bytes, 2 * (EXPERTS * HIDDEN * 2 + EXPERTS * 4) as u64);
    assert_eq!(account.parts[&Part::Norms].parameters, (7 * HIDDEN + 3 * 2 * 16) as u64);
    assert_eq!(account.trunk_bytes() + routed.bytes, account.total().bytes);

    let stored: u64 = checkpoint.tensors().map(|(_, info)| info.slice.len).sum();
    assert_eq!(account.unused_bytes, 2 * EXPERTS as u64 * 3 * 4, "input_global_scale");
    assert_eq!(account.total().bytes + account.unused_bytes, stored);
    assert_eq!(account.layouts["nvfp4, stacked"], [LayerId(1)]);
    assert_eq!(account.layouts["nvfp4, one by one"], [LayerId(2)]);
}
