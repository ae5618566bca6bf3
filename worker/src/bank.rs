//! Which arithmetic a shard is computed with, on how many threads, and filling it from a checkpoint.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::available_parallelism;

use clap::ValueEnum;
use laguna_shared::compute::cpu::{CpuBank, Pool};
use laguna_shared::compute::mlx::MlxBank;
use laguna_shared::compute::reference::ReferenceBank;
use laguna_shared::compute::{BankLoadError, ExpertBank};
use laguna_shared::ids::ExpertRange;
use sysinfo::System;

use crate::model::OpenModel;

/// Implementations of the routed experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BankKind {
    /// Plain f32 Rust: the oracle. Right, and slow.
    Reference,
    /// MLX: Metal on a Mac, its CPU backend on Linux.
    Mlx,
    /// SIMD on all cores, over the mapped checkpoint: AVX-512, AVX2 or NEON, as the processor has.
    Cpu,
}

impl Default for BankKind {
    /// The fastest on this system: `mlx` on a Mac, `cpu` elsewhere.
    fn default() -> Self {
        if cfg!(target_os = "macos") { Self::Mlx } else { Self::Cpu }
    }
}

/// The threads that this process computes with: as many as asked for, or one for each physical core that it may use.
pub fn pool(threads: Option<NonZeroUsize>) -> Arc<Pool> {
    let allowed = available_parallelism().map_or(1, NonZeroUsize::get);
    let cores = || System::physical_core_count().unwrap_or(allowed).min(allowed);
    Pool::new(threads.map_or_else(cores, NonZeroUsize::get))
}

impl BankKind {
    /// Threads that are busy while it computes, of the host's: a GPU's work has one that waits for it.
    pub fn threads(self, pool: &Pool) -> usize {
        match self {
            Self::Cpu => pool.threads(),
            Self::Reference | Self::Mlx => 1,
        }
    }
}

/// Fills a bank with the experts of `range`. `progress` is told bytes as they are read. Only the `cpu` bank uses `pool`.
///
/// # Errors
/// See [`BankLoadError`].
pub fn load_bank(
    kind: BankKind,
    model: &OpenModel,
    range: ExpertRange,
    pool: &Arc<Pool>,
    progress: &mut dyn FnMut(u64),
) -> Result<Box<dyn ExpertBank>, BankLoadError> {
    let OpenModel { checkpoint, inventory, config, .. } = model;
    Ok(match kind {
        BankKind::Reference => Box::new(ReferenceBank::load(checkpoint, inventory, config, range, progress)?),
        BankKind::Mlx => Box::new(MlxBank::load(checkpoint, inventory, range, progress)?),
        BankKind::Cpu => Box::new(CpuBank::load(checkpoint, inventory, range, Arc::clone(pool), progress)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_cpu_bank_keeps_the_pool_busy() {
        let pool = pool(NonZeroUsize::new(3));
        let threads = [BankKind::Reference, BankKind::Mlx, BankKind::Cpu].map(|kind| kind.threads(&pool));
        assert_eq!(threads, [1, 1, 3]);
    }
}
