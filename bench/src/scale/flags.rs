//! Flags of `laguna-bench scale`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use laguna_worker::bank::BankKind;

use super::measure::{Axis, Plan};
use crate::e2e::place::{Reach, SetUp};
use crate::e2e::setup::Job;
use crate::error::BenchError;
use crate::synth::{Preset, Shape};

/// Which axes, from which base case.
#[derive(Debug, Args)]
pub struct ScaleArgs {
    /// What to change, one at a time
    #[arg(long, value_delimiter = ',', default_value = "shards,rows,prompt,experts,link")]
    axes: Vec<Axis>,
    /// Shape of the synthetic checkpoint
    #[arg(long, default_value = "xs")]
    shape: Preset,
    /// Its layers, the first of them dense
    #[arg(long, default_value_t = 4)]
    layers: usize,
    /// Its routed experts per layer
    #[arg(long, default_value_t = 64)]
    experts: usize,
    /// Its vocabulary
    #[arg(long, default_value_t = 4096)]
    vocab: usize,
    /// Worker processes of the base case
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=16))]
    shards: u16,
    /// Arithmetic of the experts [default: mlx on a Mac, cpu elsewhere]
    #[arg(long, value_enum, default_value_t, hide_default_value = true)]
    bank: BankKind,
    /// Bits of a trunk weight: 16, 8 or 4
    #[arg(long, default_value = "16")]
    trunk_bits: String,
    /// Tokens of the prompt
    #[arg(long, default_value = "64")]
    prompt: NonZeroUsize,
    /// Tokens to make
    #[arg(long, short = 'n', default_value = "24")]
    tokens: NonZeroUsize,
    /// Runs of each case, taken in turn
    #[arg(long, default_value = "3")]
    repeats: NonZeroUsize,
    /// A tiny model and two values of each axis: shows that it works, and no more
    #[arg(long)]
    quick: bool,
}

impl ScaleArgs {
    /// As asked.
    ///
    /// # Errors
    /// If the shape cannot be.
    pub fn plan(self) -> Result<Plan, BenchError> {
        let shape = if self.quick {
            Shape::of(Preset::Tiny)
        } else {
            Shape { layers: self.layers, experts: self.experts, vocab: self.vocab, ..Shape::of(self.shape) }
        };
        if let Some(fault) = shape.fault() {
            return Err(BenchError::Usage(fault));
        }
        let bank = self.bank.to_possible_value().map(|value| value.get_name().to_owned());
        Ok(Plan {
            axes: self.axes,
            shape,
            job: Job {
                set_up: SetUp { reach: Reach::Processes, shards: self.shards },
                link: None,
                model: PathBuf::new(),
                bank: bank.unwrap_or_default(),
                trunk_bits: self.trunk_bits,
                sequences: 1,
                prompt: if self.quick { 8 } else { self.prompt.get() },
                tokens: if self.quick { 3 } else { self.tokens.get() },
                chunk: CHUNK,
                recorder: false,
            },
            repeats: if self.quick { 1 } else { self.repeats.get() },
            quick: self.quick,
        })
    }
}

/// Prompt tokens a micro-batch.
const CHUNK: NonZeroUsize = NonZeroUsize::new(512).expect("512 is not 0");
