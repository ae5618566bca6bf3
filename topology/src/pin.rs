//! A pin: the SHA-256 of a node's public key, by which its peers know it. Holds no key material.

use std::fmt;
use std::str::FromStr;

/// SHA-256 digest that names a node's key, written `sha256:` and 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pin(pub [u8; 32]);

/// A text that is not a pin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParsePinError {
    /// It does not start with `sha256:`.
    #[error(
        "it does not start with \"sha256:\": write sha256: and 64 hex digits, or let `laguna-coord keygen` write it"
    )]
    Prefix,
    /// Not 64 characters follow the prefix.
    #[error(
        "{0} characters follow \"sha256:\" where 64 hex digits belong: let `laguna-coord keygen` write it again"
    )]
    Length(usize),
    /// A character is no hex digit.
    #[error(
        "{found:?} at place {place} of the digest is no hex digit: let `laguna-coord keygen` write it again"
    )]
    Digit {
        /// The character found.
        found: char,
        /// Where it stands in the digest, counted from 1, `1..=64`.
        place: usize,
    },
}

impl FromStr for Pin {
    type Err = ParsePinError;

    fn from_str(text: &str) -> Result<Self, ParsePinError> {
        let digits = text.trim().strip_prefix(PREFIX).ok_or(ParsePinError::Prefix)?;
        let length = digits.chars().count();
        if length != 64 {
            return Err(ParsePinError::Length(length));
        }
        let mut digest = [0; 32];
        for (index, found) in digits.chars().enumerate() {
            let digit = found.to_digit(16).ok_or(ParsePinError::Digit { found, place: index + 1 })?;
            // A hex digit is below 16, and 64 of them fill 32 bytes.
            digest[index / 2] = digest[index / 2] << 4 | digit as u8;
        }
        Ok(Self(digest))
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pin({self})")
    }
}

const PREFIX: &str = "sha256:";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn refuses_what_is_no_digest() {
        let hex = "0123456789abcdef".repeat(4);
        assert_eq!(hex.parse::<Pin>(), Err(ParsePinError::Prefix));
        assert_eq!("sha256:…".parse::<Pin>(), Err(ParsePinError::Length(1)));
        assert_eq!(format!("sha256:{hex}0").parse::<Pin>(), Err(ParsePinError::Length(65)));
        let wrong = format!("sha256:{}", hex.replacen('3', "é", 1));
        assert_eq!(wrong.parse::<Pin>(), Err(ParsePinError::Digit { found: 'é', place: 4 }));
    }

    proptest! {
        #[test]
        fn round_trip(digest: [u8; 32]) {
            let text = Pin(digest).to_string();
            prop_assert_eq!(text.parse(), Ok(Pin(digest)));
            prop_assert_eq!(format!("sha256:{}", text[7..].to_uppercase()).parse(), Ok(Pin(digest)));
        }
    }
}
