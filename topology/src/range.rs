//! Reads an expert range as a person writes it, and tells those who wrote it another way how it is written here.

use std::str::FromStr;

use crate::ids::ExpertRange;

/// A text that is not a range of experts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseRangeError {
    /// Written with another sign between the ends, both ends included.
    #[error("write \"{start}..{after}\" for the experts from {start} to {last}: the end is not included")]
    Inclusive {
        /// First expert meant.
        start: u32,
        /// Last expert meant.
        last: u32,
        /// One past it.
        after: u32,
    },
    /// A list, of which a shard can hold none.
    #[error("a shard holds one range without holes: write \"start..end\", as in \"0..96\"")]
    List,
    /// No two numbers with `..` between.
    #[error("write \"start..end\" with whole numbers, as in \"0..96\" for the first 96 experts")]
    Form,
    /// A number that no expert can have.
    #[error("experts are numbered below {}: write a smaller end", u16::MAX)]
    TooLarge,
    /// Nothing in it.
    #[error("it holds no expert: the end is not included, so {end} must be above {start}")]
    Empty {
        /// First expert as written.
        start: u16,
        /// End as written.
        end: u16,
    },
}

impl FromStr for ExpertRange {
    type Err = ParseRangeError;

    fn from_str(text: &str) -> Result<Self, ParseRangeError> {
        if text.contains(',') {
            return Err(ParseRangeError::List);
        }
        // The longer sign first: "..=" holds "..".
        for sign in ["..=", "...", "-", "–"] {
            if let Some((start, last)) = text.split_once(sign) {
                let (Some(start), Some(last)) = (number(start), number(last)) else {
                    return Err(ParseRangeError::Form);
                };
                return Err(ParseRangeError::Inclusive { start, last, after: last.saturating_add(1) });
            }
        }
        let (start, end) = text.split_once("..").ok_or(ParseRangeError::Form)?;
        let (Some(start), Some(end)) = (number(start), number(end)) else {
            return Err(ParseRangeError::Form);
        };
        let (Ok(start), Ok(end)) = (u16::try_from(start), u16::try_from(end)) else {
            return Err(ParseRangeError::TooLarge);
        };
        let range = Self::new(start, end);
        if range.is_empty() { Err(ParseRangeError::Empty { start, end }) } else { Ok(range) }
    }
}

/// Digits only: `u32` itself would take a sign. Numbers beyond `u32` count as its largest.
fn number(text: &str) -> Option<u32> {
    let text = text.trim();
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_half_open_ranges_only() {
        assert_eq!("0..96".parse(), Ok(ExpertRange::new(0, 96)));
        assert_eq!(" 96 .. 256 ".parse(), Ok(ExpertRange::new(96, 256)));
        for wrong in ["0-95", "0..=95", "0 – 95", "0...95"] {
            let error = wrong.parse::<ExpertRange>().unwrap_err();
            assert!(error.to_string().contains("write \"0..96\""), "{wrong}: {error}");
        }
        assert_eq!("0..4, 8..12".parse::<ExpertRange>(), Err(ParseRangeError::List));
        assert_eq!("5..5".parse::<ExpertRange>(), Err(ParseRangeError::Empty { start: 5, end: 5 }));
        assert_eq!("0..70000".parse::<ExpertRange>(), Err(ParseRangeError::TooLarge));
        for wrong in ["", "..", "..5", "+1..5", "all", "1..2..3"] {
            assert_eq!(wrong.parse::<ExpertRange>(), Err(ParseRangeError::Form), "{wrong}");
        }
    }
}
