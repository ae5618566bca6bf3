//! Flags of `laguna-bench load`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use laguna_worker::bank::BankKind;
use tempfile::TempDir;

use super::measure::Plan;
use super::parts::Part;
use crate::error::BenchError;
use crate::report::progress;
use crate::synth::{self, Layout, Preset, Shape};
use crate::{nano, scratch};

/// Which checkpoint, and how it is divided.
#[derive(Debug, Args)]
pub struct LoadArgs {
    /// Checkpoint folder [default: a synthetic one]
    #[arg(long, short, value_name = "DIR", conflicts_with_all = ["shape", "layers", "layout", "quick"])]
    model: Option<PathBuf>,
    /// Shape of the synthetic checkpoint
    #[arg(long, default_value = "xs")]
    shape: Preset,
    /// Its layers, the first of them dense
    #[arg(long, default_value_t = 4)]
    layers: usize,
    /// Its layout
    #[arg(long, default_value = "compressed")]
    layout: Layout,
    /// Workers that share the experts; the first one is measured, and the trunk
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    shards: Vec<u16>,
    /// Arithmetic of the experts [default: mlx on a Mac, cpu elsewhere]
    #[arg(long, value_enum, default_value_t, hide_default_value = true)]
    bank: BankKind,
    /// Bits of a trunk weight: 16, 8 or 4
    #[arg(long, default_value = "16")]
    trunk_bits: String,
    /// Runs of each case
    #[arg(long, default_value = "5")]
    repeats: NonZeroUsize,
    /// The bundled small model, once: shows that it works, and no more
    #[arg(long)]
    quick: bool,
}

impl LoadArgs {
    /// The synthetic checkpoint, where one is asked for; it is removed with this.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn synthetic(&self) -> Result<Option<TempDir>, BenchError> {
        if self.model.is_some() || self.quick {
            return Ok(None);
        }
        let dir = scratch("load")?;
        let shape = Shape { layers: self.layers, ..Shape::of(self.shape) };
        progress(&format!("writing {} layers of {:?}", shape.layers, self.shape));
        synth::write(dir.path(), &shape, self.layout, 0, &nano(), &mut |_| {})?;
        Ok(Some(dir))
    }

    /// As asked.
    pub fn plan(self, synthetic: Option<&TempDir>) -> Plan {
        let bank = self.bank.to_possible_value().map(|value| value.get_name().to_owned());
        let written = synthetic.map(|dir| dir.path().to_owned());
        let shards = self.shards.iter().map(|of| Part::Shard { of: *of });
        Plan {
            model: self.model.or(written).unwrap_or_else(nano),
            parts: std::iter::once(Part::Trunk).chain(shards).collect(),
            bank: bank.unwrap_or_default(),
            trunk_bits: self.trunk_bits,
            repeats: if self.quick { 1 } else { self.repeats.get() },
        }
    }
}
