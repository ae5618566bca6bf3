//! Bytes with a readable form, and what one node will hold against what it may hold.
//!
//! Knows nothing of files or models: callers bring the numbers.

use std::fmt;
use std::iter::Sum;
use std::str::FromStr;

use crate::ids::ExpertRange;
use crate::node::NodeName;

/// A number of bytes. Displayed with one decimal in powers of 1000 (`47.5 GB`); exact inside.
///
/// Parsed from `"48 GB"`, `"47.5 GiB"` or `"48000000000"`; units are `B`, `kB` `MB` `GB` `TB` (powers of 1000) and
/// `KiB` `MiB` `GiB` `TiB` (powers of 1024), in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl Bytes {
    /// The sum, or the largest representable size where it would overflow.
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// What is left after taking `other` away, never below zero.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// `count` times this size, or the largest representable size where it would overflow.
    pub const fn saturating_mul(self, count: u64) -> Self {
        Self(self.0.saturating_mul(count))
    }
}

/// What one process will hold in memory, planned before anything is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeMemory {
    /// Which process.
    pub node: NodeName,
    /// Experts it holds in every sparse layer; `None` for a coordinator that holds no shard.
    pub range: Option<ExpertRange>,
    /// Bytes of everything but the routed experts; zero on workers.
    pub trunk: Bytes,
    /// Bytes of the routed experts in `range`, summed over the sparse layers.
    pub experts: Bytes,
    /// Bytes of the KV cache at the planned context; zero on workers, which keep no state.
    pub kv: Bytes,
    /// What the node may use, if the file says so.
    pub budget: Option<Bytes>,
}

impl NodeMemory {
    /// Bytes that stay resident: trunk, experts and KV cache.
    pub const fn held(&self) -> Bytes {
        self.trunk.saturating_add(self.experts).saturating_add(self.kv)
    }

    /// Bytes kept free for activations, buffers and the process itself: 1/32 of what is held, rounded up.
    pub const fn margin(&self) -> Bytes {
        Bytes(self.held().0.div_ceil(MARGIN_PART))
    }

    /// Bytes the node needs: what it holds and the margin.
    pub const fn needs(&self) -> Bytes {
        self.held().saturating_add(self.margin())
    }

    /// Bytes missing from the budget; `None` if it fits or has no budget.
    pub fn short_by(&self) -> Option<Bytes> {
        self.budget.filter(|budget| self.needs() > *budget).map(|budget| self.needs().saturating_sub(budget))
    }

    /// Bytes of experts that the budget leaves room for beside trunk, KV cache and margin; `None` without a budget.
    pub fn room(&self) -> Option<Bytes> {
        self.budget.map(|budget| {
            let held = u128::from(budget.0) * u128::from(MARGIN_PART) / u128::from(MARGIN_PART + 1);
            // At most the budget, so it fits again.
            let held = Bytes(u64::try_from(held).unwrap_or(u64::MAX));
            held.saturating_sub(self.trunk).saturating_sub(self.kv)
        })
    }
}

/// A text that is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseBytesError {
    /// It does not start with a number.
    #[error("it has no number: write a number and a unit, as in \"48 GB\" or \"47.5 GiB\"")]
    NoNumber,
    /// The unit is none of the known ones.
    #[error(
        "its unit {0:?} is none of B, kB, MB, GB, TB, KiB, MiB, GiB, TiB: write as in \"48 GB\" or \"47.5 GiB\""
    )]
    Unit(String),
    /// It is more than a `u64` counts.
    #[error("it is more than {}: write a smaller size", Bytes(u64::MAX))]
    TooLarge,
}

impl FromStr for Bytes {
    type Err = ParseBytesError;

    fn from_str(text: &str) -> Result<Self, ParseBytesError> {
        let text = text.trim();
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let unit = unit.trim_start();
        let scale = UNITS
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(unit))
            .map(|&(_, scale)| scale)
            .ok_or_else(|| ParseBytesError::Unit(unit.chars().take(16).collect()));
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits: String = whole.chars().chain(fraction.chars()).filter(|c| *c != '_').collect();
        if digits.is_empty() || fraction.contains('.') {
            return Err(ParseBytesError::NoNumber);
        }
        let scale = scale?;
        let places = fraction.chars().filter(|c| *c != '_').count();
        let mantissa: u128 = digits.parse().map_err(|_| ParseBytesError::TooLarge)?;
        let divisor = u32::try_from(places)
            .ok()
            .and_then(|places| 10u128.checked_pow(places))
            .ok_or(ParseBytesError::TooLarge)?;
        let bytes = mantissa.checked_mul(scale).ok_or(ParseBytesError::TooLarge)? / divisor;
        u64::try_from(bytes).map(Self).map_err(|_| ParseBytesError::TooLarge)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = u128::from(self.0);
        let mut unit = 0;
        let mut scale = 1u128;
        // In tenths, rounded half up, and moved on where rounding reaches 1000.0.
        let tenths = |scale: u128| (bytes * 10 + scale / 2) / scale;
        while tenths(scale) >= 10_000 && unit + 1 < DISPLAY_UNITS.len() {
            unit += 1;
            scale *= 1000;
        }
        let text = match unit {
            0 => format!("{bytes} B"),
            _ => format!("{}.{} {}", tenths(scale) / 10, tenths(scale) % 10, DISPLAY_UNITS[unit]),
        };
        f.pad(&text)
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(sizes: I) -> Self {
        sizes.fold(Self(0), Self::saturating_add)
    }
}

/// One part in this many of what a node holds stays free on top of it (3.1 %: 1.5 GB beside 47 GB).
const MARGIN_PART: u64 = 32;

const DISPLAY_UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];

/// Names are compared whole and without case.
const UNITS: [(&str, u128); 10] = [
    ("", 1),
    ("B", 1),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_what_people_write() {
        for (text, bytes) in [
            ("48 GB", 48_000_000_000),
            ("48gb", 48_000_000_000),
            ("47.5 GiB", 51_002_736_640),
            ("5.31 MB", 5_310_000),
            ("48_000_000_000", 48_000_000_000),
            (" 0 ", 0),
            ("0.1 B", 0),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        assert_eq!("48 G".parse::<Bytes>(), Err(ParseBytesError::Unit("G".into())));
        assert_eq!("GB".parse::<Bytes>(), Err(ParseBytesError::NoNumber));
        assert_eq!("".parse::<Bytes>(), Err(ParseBytesError::NoNumber));
        assert_eq!("1.2.3 GB".parse::<Bytes>(), Err(ParseBytesError::NoNumber));
        assert_eq!("-1 GB".parse::<Bytes>(), Err(ParseBytesError::NoNumber));
        assert_eq!("99999999 TB".parse::<Bytes>(), Err(ParseBytesError::TooLarge));
    }

    #[test]
    fn shows_one_decimal() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (999_949, "999.9 kB"),
            (999_950, "1.0 MB"),
            (5_308_416, "5.3 MB"),
            (63_870_000_000, "63.9 GB"),
            (u64::MAX, "18446744.1 TB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_back_to_what_is_shown(bytes: u64) {
            let shown = Bytes(bytes).to_string();
            // The largest sizes may round up past what a u64 counts.
            if let Ok(back) = shown.parse::<Bytes>() {
                prop_assert_eq!(back.to_string(), shown);
            }
            prop_assert_eq!(format!("{bytes} B").parse(), Ok(Bytes(bytes)));
        }

        #[test]
        fn room_is_exactly_what_fits(budget in 0..1u64 << 50, trunk in 0..1u64 << 40) {
            let mut memory = NodeMemory {
                node: NodeName::Coordinator, range: None, trunk: Bytes(trunk), experts: Bytes(0), kv: Bytes(7),
                budget: Some(Bytes(budget)),
            };
            memory.experts = memory.room().unwrap();
            if memory.experts > Bytes(0) {
                prop_assert_eq!(memory.short_by(), None);
                memory.experts.0 += 1;
                prop_assert!(memory.short_by().is_some());
            }
        }
    }
}
