//! Which arithmetic a shard is computed with, and filling it from a checkpoint.

use clap::ValueEnum;
use laguna_shared::compute::mlx::MlxBank;
use laguna_shared::compute::reference::ReferenceBank;
use laguna_shared::compute::{BankLoadError, ExpertBank};
use laguna_shared::ids::ExpertRange;

use crate::model::OpenModel;

/// Implementations of the routed experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum BankKind {
    /// Plain f32 Rust: the oracle. Right, and slow.
    Reference,
    /// MLX: Metal on a Mac, its CPU backend on Linux.
    #[default]
    Mlx,
}

/// Fills a bank with the experts of `range`. `progress` is told bytes as they are read.
///
/// # Errors
/// See [`BankLoadError`].
pub fn load_bank(
    kind: BankKind,
    model: &OpenModel,
    range: ExpertRange,
    progress: &mut dyn FnMut(u64),
) -> Result<Box<dyn ExpertBank>, BankLoadError> {
    let OpenModel { checkpoint, inventory, config, .. } = model;
    Ok(match kind {
        BankKind::Reference => Box::new(ReferenceBank::load(checkpoint, inventory, config, range, progress)?),
        BankKind::Mlx => Box::new(MlxBank::load(checkpoint, inventory, range, progress)?),
    })
}
