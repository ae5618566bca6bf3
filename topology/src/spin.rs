//! Whether a node that waits for another spins for a while before it sleeps: `auto`, `on` or `off`.

use std::fmt;
use std::str::FromStr;

/// What to do while a call or a reply is awaited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Spin {
    /// Spin where a core is to spare and the machine is not on battery.
    #[default]
    Auto,
    /// Spin: quickest, and takes a core.
    On,
    /// Sleep at once.
    Off,
}

/// A text that is none of the three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write \"auto\", \"on\" or \"off\"")]
pub struct ParseSpinError;

impl FromStr for Spin {
    type Err = ParseSpinError;

    fn from_str(text: &str) -> Result<Self, ParseSpinError> {
        match text {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(ParseSpinError),
        }
    }
}

impl fmt::Display for Spin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_what_is_read() {
        for spin in [Spin::Auto, Spin::On, Spin::Off] {
            assert_eq!(spin.to_string().parse(), Ok(spin));
        }
        for other in ["", "On", "true", "spin"] {
            assert_eq!(other.parse::<Spin>(), Err(ParseSpinError));
        }
    }
}
