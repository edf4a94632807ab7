//! Sizes in bytes as a user writes them in a configuration: `"1GiB"`, `"64MB"`, or a plain number of bytes.
//!
//! Integers only: a size is a bound that must be kept, so nothing is rounded on the way in or out.

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Units by name; the first that divides a size is the one it is printed in.
const UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// A text that is no size in bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no size in bytes below 2^64: write a whole number and a unit (B, kB, MB, GB, TB, KiB, MiB, GiB, TiB), as in \"1GiB\""
)]
pub struct ParseByteSizeError {
    /// What was written.
    pub text: String,
}

impl FromStr for ByteSize {
    type Err = ParseByteSizeError;

    fn from_str(text: &str) -> Result<ByteSize, ParseByteSizeError> {
        let fault = || ParseByteSizeError { text: text.to_owned() };
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(trimmed.len());
        let (number, unit) = (trimmed[..digits].replace('_', ""), trimmed[digits..].trim());
        let scale = match unit {
            "" => 1,
            unit => UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or_else(fault)?.1,
        };
        number.parse::<u64>().ok().and_then(|n| n.checked_mul(scale)).map(ByteSize).ok_or_else(fault)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, scale) = match self.0 {
            0 => ("B", 1),
            size => *UNITS.iter().find(|(_, scale)| size.is_multiple_of(*scale)).expect("one byte divides every size"),
        };
        write!(f, "{}{name}", self.0 / scale)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ByteSize, D::Error> {
        deserializer.deserialize_any(ByteSizeVisitor)
    }
}

struct ByteSizeVisitor;

impl Visitor<'_> for ByteSizeVisitor {
    type Value = ByteSize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size in bytes, as in \"1GiB\" or 1073741824")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<ByteSize, E> {
        Ok(ByteSize(bytes))
    }

    fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
        u64::try_from(bytes).map(ByteSize).map_err(|_| E::invalid_value(de::Unexpected::Signed(bytes), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_units_and_refuses_the_rest() {
        let cases = [("1GiB", 1 << 30), ("64 MB", 64_000_000), ("10kb", 10_000), ("1_000", 1_000), ("0", 0), ("7B", 7)];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "GiB", "1.5GiB", "-1", "1 parsec", "99999999TiB"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn prints_exactly_and_reads_it_back() {
        for (bytes, text) in
            [(0, "0B"), (1 << 30, "1GiB"), (1_500_000, "1500kB"), (1025, "1025B"), (u64::MAX, "18446744073709551615B")]
        {
            assert_eq!(ByteSize(bytes).to_string(), text);
            assert_eq!(text.parse(), Ok(ByteSize(bytes)));
        }
    }
}
