//! Flags of `laguna-bench products`.

use std::num::NonZeroUsize;
use std::time::Duration;

use clap::Args;

use super::measure::Plan;
use super::weights::Format;

/// Which formats, with how many rows and threads.
#[derive(Debug, Args)]
pub struct ProductsArgs {
    /// Weight formats
    #[arg(long, value_delimiter = ',', default_value = "bf16,affine8,affine4,affine4-mlx,nvfp4")]
    formats: Vec<Format>,
    /// Rows per product
    #[arg(long, value_delimiter = ',', default_value = "1")]
    rows: Vec<NonZeroUsize>,
    /// Threads of the product and of the bandwidth probe
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    threads: Vec<NonZeroUsize>,
    /// Instruction sets by name, as `avx2` [default: this processor's fastest]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    isa: Vec<String>,
    /// Input features
    #[arg(long, default_value = "2048")]
    cols: NonZeroUsize,
    /// Megabytes of a matrix: far more than the caches hold
    #[arg(long, default_value_t = 256)]
    megabytes: usize,
    /// Seconds for a format with a number of rows
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Megabytes that fit the caches, and few calls: shows that it works, and no more
    #[arg(long)]
    quick: bool,
}

impl ProductsArgs {
    /// What to measure.
    pub fn plan(self) -> Plan {
        let numbers = |all: Vec<NonZeroUsize>| all.into_iter().map(NonZeroUsize::get).collect();
        Plan {
            formats: self.formats,
            rows: numbers(self.rows),
            threads: numbers(self.threads),
            isas: self.isa,
            cols: self.cols.get(),
            bytes: if self.quick { 1 } else { self.megabytes.clamp(1, 1 << 14) } * 1_000_000,
            time: Duration::try_from_secs_f64(if self.quick { 0.0 } else { self.seconds.clamp(0.0, 3600.0) })
                .unwrap_or_default(),
        }
    }
}
