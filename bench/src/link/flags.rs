//! Flags of `laguna-bench link`.

use std::num::NonZeroUsize;

use clap::Args;
use laguna_tests::relay::Preset;

use super::measure::Plan;

/// Which links, and how often.
#[derive(Debug, Args)]
pub struct LinkArgs {
    /// Links: thunderbolt, 10gbe, wifi
    #[arg(long, value_delimiter = ',', default_value = "thunderbolt,10gbe,wifi")]
    links: Vec<Preset>,
    /// Round trips of each link and payload
    #[arg(long, default_value = "2000")]
    calls: NonZeroUsize,
    /// A few round trips: shows that it works, and no more
    #[arg(long)]
    quick: bool,
}

impl LinkArgs {
    /// As asked.
    pub fn plan(self) -> Plan {
        Plan { links: self.links, calls: if self.quick { 20 } else { self.calls.get() } }
    }
}
