//! The length of a tick, and the units that people write times in.

use crate::id::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Length of one unit of [`Timestamp`]: a second divided by a power of ten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tick {
    /// Ticks in a second: `10^k`, `k` in `0..=9`.
    pub per_second: u64,
}

impl Tick {
    /// One second.
    pub const SECOND: Tick = Tick { per_second: 1 };

    /// A tick of `10^-decimals` seconds.
    ///
    /// # Panics
    /// If `decimals` is above 9.
    pub fn from_decimals(decimals: u32) -> Tick {
        assert!(decimals <= 9, "a tick is at least a nanosecond");
        Tick { per_second: 10u64.pow(decimals) }
    }

    /// How many decimals of a second a tick resolves.
    pub fn decimals(self) -> u32 {
        self.per_second.ilog10()
    }

    /// Whether this is a power of ten up to 10^9.
    pub(crate) fn is_valid(self) -> bool {
        (0..=9).any(|k| self.per_second == 10u64.pow(k))
    }

    /// A difference of ticks in seconds. Copies of a stream in other units give the same seconds to the bit as long as
    /// the difference is below 2^53 ticks.
    #[inline]
    pub fn seconds(self, ticks: i64) -> f64 {
        ticks as f64 / self.per_second as f64
    }

    /// A time in nanoseconds, wrapping: the key under which draws at this time are made, equal in all units.
    #[inline]
    pub fn nanoseconds(self, time: Timestamp) -> i64 {
        time.0.wrapping_mul((1_000_000_000 / self.per_second) as i64)
    }
}

impl fmt::Display for Tick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.decimals() {
            0 => f.write_str("1 s"),
            3 => f.write_str("1 ms"),
            6 => f.write_str("1 us"),
            9 => f.write_str("1 ns"),
            k => write!(f, "10^-{k} s"),
        }
    }
}

/// The unit in which a file writes its times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TimeUnit {
    /// Seconds.
    #[default]
    #[serde(rename = "s")]
    Seconds,
    /// Milliseconds.
    #[serde(rename = "ms")]
    Milliseconds,
    /// Microseconds.
    #[serde(rename = "us")]
    Microseconds,
    /// Nanoseconds.
    #[serde(rename = "ns")]
    Nanoseconds,
}

impl TimeUnit {
    /// The unit is `10^-decimals` seconds.
    pub fn decimals(self) -> u32 {
        match self {
            TimeUnit::Seconds => 0,
            TimeUnit::Milliseconds => 3,
            TimeUnit::Microseconds => 6,
            TimeUnit::Nanoseconds => 9,
        }
    }
}

impl FromStr for TimeUnit {
    type Err = ();

    fn from_str(text: &str) -> Result<TimeUnit, ()> {
        match text {
            "s" => Ok(TimeUnit::Seconds),
            "ms" => Ok(TimeUnit::Milliseconds),
            "us" => Ok(TimeUnit::Microseconds),
            "ns" => Ok(TimeUnit::Nanoseconds),
            _ => Err(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_agree_on_seconds_and_nanoseconds() {
        let (coarse, fine) = (Tick::from_decimals(5), Tick::from_decimals(9));
        for ticks in [0i64, 1, -7, 128_924_191_172_836, 899_999_999_999] {
            assert_eq!(coarse.seconds(ticks).to_bits(), fine.seconds(ticks * 10_000).to_bits());
            assert_eq!(coarse.nanoseconds(Timestamp(ticks)), fine.nanoseconds(Timestamp(ticks * 10_000)));
        }
    }

    #[test]
    fn validity() {
        assert!(Tick::SECOND.is_valid() && Tick::from_decimals(9).is_valid());
        assert!(!Tick { per_second: 0 }.is_valid() && !Tick { per_second: 60 }.is_valid());
        assert!(!Tick { per_second: 10_000_000_000 }.is_valid());
    }
}
