//! What is measured: the banks of the programs, and slower ways to run them.

use std::sync::Arc;

use clap::ValueEnum;
use laguna_shared::compute::cpu::{CpuBank, Isa, Pool};
use laguna_shared::compute::mlx::MlxBank;
use laguna_shared::compute::{ActivationType, ExpertBank};
use laguna_shared::ids::ExpertRange;
use laguna_worker::bank::{BankKind, load_bank};
use laguna_worker::model::OpenModel;

use crate::error::BenchError;

/// A bank, and how it is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Variant {
    /// The bank `cpu`
    Cpu,
    /// The bank `cpu`, with AVX2 and no more
    CpuAvx2,
    /// The bank `cpu`, without vector instructions of its own
    CpuPortable,
    /// The bank `mlx`: f32 products on Linux
    Mlx,
    /// MLX with products of bf16 rows, as MLX's users have it; up to four rows, since it takes seconds
    MlxBf16,
    /// The bank `reference`
    Reference,
}

impl Variant {
    /// Loads the experts of `range`.
    ///
    /// # Errors
    /// If they cannot be loaded, or this processor lacks the instructions.
    pub fn load(
        self,
        model: &OpenModel,
        range: ExpertRange,
        pool: &Arc<Pool>,
    ) -> Result<Box<dyn ExpertBank>, BenchError> {
        let OpenModel { checkpoint, inventory, .. } = model;
        let bank = |kind| load_bank(kind, model, range, pool, &mut |_| {}).map_err(BenchError::failed);
        let cpu = |name: &str| -> Result<Box<dyn ExpertBank>, BenchError> {
            let isa = Isa::available().into_iter().find(|isa| isa.name() == name);
            let isa = isa.ok_or_else(|| BenchError::Usage(format!("this processor has no {name}")))?;
            let bank = CpuBank::load_on(isa, checkpoint, inventory, range, Arc::clone(pool), &mut |_| {});
            Ok(Box::new(bank.map_err(BenchError::failed)?))
        };
        match self {
            Self::Cpu => bank(BankKind::Cpu),
            Self::CpuAvx2 => cpu("avx2"),
            Self::CpuPortable => cpu("portable"),
            Self::Mlx => bank(BankKind::Mlx),
            Self::MlxBf16 => {
                let bank = MlxBank::load(checkpoint, inventory, range, &mut |_| {});
                Ok(Box::new(bank.map_err(BenchError::failed)?.computing_in(ActivationType::Bf16)))
            }
            Self::Reference => bank(BankKind::Reference),
        }
    }

    /// Whether a number of rows is worth the time.
    pub const fn measures(self, rows: usize) -> bool {
        !matches!(self, Self::MlxBf16) || rows <= 4
    }

    /// As the command line has it.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}
