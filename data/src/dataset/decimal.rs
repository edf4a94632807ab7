//! Exact times: decimal text into ticks of `10^-k` seconds, with the smallest `k` that loses nothing.
//!
//! No float is involved: `1289241911.72836` at f64 is already off by nanoseconds, and at f32 by a minute.

use super::iso;
use crate::error::FaultKind;
use crate::stream::{Tick, TimeUnit};

/// The exact number `mantissa * 10^exponent`; the mantissa does not end in 0 (unless it is 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decimal {
    pub(crate) mantissa: i128,
    pub(crate) exponent: i32,
}

/// Significant digits that a time may have.
const DIGITS: u32 = 37;
/// Beyond any exponent that can matter.
const FAR: i32 = 100_000;

impl Decimal {
    /// Reads `-12.50`, `.5`, `3e9`, `1.5E-3`.
    ///
    /// # Errors
    /// If it is no number, or has more digits than any time.
    pub(crate) fn parse(text: &[u8]) -> Result<Decimal, FaultKind> {
        let (negative, unsigned) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            rest => (false, rest),
        };
        let at = unsigned.iter().position(|b| matches!(b, b'e' | b'E')).unwrap_or(unsigned.len());
        let (digits, power) = unsigned.split_at(at);
        let power = if power.is_empty() { 0 } else { parse_power(&power[1..])? };
        let (mantissa, exponent) = parse_digits(digits)?;
        let exponent = if mantissa == 0 { 0 } else { exponent.saturating_add(power) };
        Ok(Decimal { mantissa: if negative { -mantissa } else { mantissa }, exponent })
    }

    /// An integer, trimmed.
    pub(crate) fn integer(value: i64) -> Decimal {
        let mut decimal = Decimal { mantissa: i128::from(value), exponent: 0 };
        while decimal.mantissa != 0 && decimal.mantissa % 10 == 0 {
            decimal.mantissa /= 10;
            decimal.exponent += 1;
        }
        decimal
    }
}

fn parse_power(text: &[u8]) -> Result<i32, FaultKind> {
    let text = std::str::from_utf8(text).map_err(|_| FaultKind::TimeNotNumber)?;
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(FaultKind::TimeNotNumber);
    }
    let far = if text.starts_with('-') { -FAR } else { FAR };
    Ok(text.parse::<i32>().map_or(far, |p| p.clamp(-FAR, FAR)))
}

/// Digits with at most one point, as mantissa and exponent, trailing zeros trimmed.
fn parse_digits(text: &[u8]) -> Result<(i128, i32), FaultKind> {
    let (mut mantissa, mut exponent, mut zeros, mut used) = (0i128, 0i32, 0u32, 0u32);
    let (mut point, mut any) = (false, false);
    for &byte in text {
        match byte {
            b'.' if !point => {
                point = true;
                continue;
            }
            b'0' => zeros += u32::from(mantissa != 0),
            b'1'..=b'9' => {
                used += zeros + 1;
                if used > DIGITS {
                    return Err(if point { FaultKind::TimeTooFine } else { FaultKind::TimeTooLarge { decimals: 0 } });
                }
                mantissa = mantissa * 10i128.pow(zeros + 1) + i128::from(byte - b'0');
                zeros = 0;
            }
            _ => return Err(FaultKind::TimeNotNumber),
        }
        any = true;
        exponent -= i32::from(point);
    }
    // the zeros after the last other digit were never put into the mantissa
    if any { Ok((mantissa, exponent.saturating_add(zeros as i32))) } else { Err(FaultKind::TimeNotNumber) }
}

/// Notices that numbers jump from one unit to another: Unix times in seconds, then in milliseconds.
#[derive(Debug, Default)]
struct UnitWatch {
    started: bool,
    previous: f64,
    least: f64,
    most: f64,
}

impl UnitWatch {
    /// About the same moment in both units: only Unix times of 1973 to 2286 count, and only if the times so far are
    /// close together, so that a stream that starts at 0 may grow as it likes.
    fn look(&mut self, time: f64) -> Result<(), FaultKind> {
        let (small, large) = if time < self.previous { (time, self.previous) } else { (self.previous, time) };
        let jumps = small >= 1e8 && large > 700.0 * small && large < 1400.0 * small;
        let moment = [1e8, 1e11, 1e14].iter().any(|&from| (from..100.0 * from).contains(&small));
        let found = jumps && moment && self.most - self.least < 0.5 * self.previous;
        let anew = found || !self.started;
        (self.least, self.most) = if anew { (time, time) } else { (self.least.min(time), self.most.max(time)) };
        (self.started, self.previous) = (true, time);
        if found { Err(FaultKind::UnitChange) } else { Ok(()) }
    }
}

/// A column of times that grows finer as its values need.
#[derive(Debug)]
pub(crate) struct TimeColumn {
    unit: i32,
    decimals: i32,
    ticks: Vec<i64>,
    watch: UnitWatch,
}

impl TimeColumn {
    pub(crate) fn new(unit: TimeUnit) -> TimeColumn {
        TimeColumn { unit: unit.decimals() as i32, decimals: 0, ticks: Vec::new(), watch: UnitWatch::default() }
    }

    /// Adds a time as text, in the file's unit, or as an ISO 8601 time.
    ///
    /// # Errors
    /// If it is no number, finer than nanoseconds or beyond 64 bits. The column is then unchanged.
    pub(crate) fn push_text(&mut self, text: &[u8]) -> Result<(), FaultKind> {
        if self.unit == 0
            && self.decimals == 0
            && let Some(seconds) = short_integer(text)
        {
            self.watch.look(seconds as f64)?;
            self.ticks.push(seconds);
            return Ok(());
        }
        if iso::is_date(text) {
            return self.push_in(0, iso::parse(text)?);
        }
        self.push(Decimal::parse(text)?)
    }

    /// Adds a time in the file's unit.
    pub(crate) fn push(&mut self, time: Decimal) -> Result<(), FaultKind> {
        self.watch.look(time.mantissa as f64 * 10f64.powi(time.exponent))?;
        self.push_in(self.unit, time)
    }

    /// Adds a time in units of `10^-unit` seconds.
    fn push_in(&mut self, unit: i32, time: Decimal) -> Result<(), FaultKind> {
        let exponent = time.exponent.saturating_sub(unit);
        if time.mantissa != 0 && -exponent > self.decimals {
            self.refine(-exponent)?;
        }
        let too_large = FaultKind::TimeTooLarge { decimals: self.decimals as u32 };
        let power = if time.mantissa == 0 { 0 } else { (self.decimals + exponent) as u32 };
        let ticks = 10i128.checked_pow(power).and_then(|scale| time.mantissa.checked_mul(scale));
        self.ticks.push(ticks.and_then(|t| i64::try_from(t).ok()).ok_or(too_large)?);
        Ok(())
    }

    fn refine(&mut self, decimals: i32) -> Result<(), FaultKind> {
        if decimals > 9 {
            return Err(FaultKind::TimeTooFine);
        }
        let scale = 10i64.pow((decimals - self.decimals) as u32);
        if self.ticks.iter().any(|t| t.checked_mul(scale).is_none()) {
            return Err(FaultKind::TimeTooLarge { decimals: decimals as u32 });
        }
        self.ticks.iter_mut().for_each(|t| *t *= scale);
        self.decimals = decimals;
        Ok(())
    }

    /// Drops the times behind the first `len`.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.ticks.truncate(len);
    }

    pub(crate) fn finish(self) -> (Vec<i64>, Tick) {
        (self.ticks, Tick::from_decimals(self.decimals as u32))
    }
}

/// Up to 18 digits with an optional minus, the common case.
pub(crate) fn short_integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    if digits.is_empty() || digits.len() > 18 {
        return None;
    }
    let mut value = 0i64;
    for &byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + i64::from(digit);
    }
    Some(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(unit: TimeUnit, texts: &[&str]) -> Result<(Vec<i64>, u32), FaultKind> {
        let mut column = TimeColumn::new(unit);
        texts.iter().try_for_each(|t| column.push_text(t.as_bytes()))?;
        let (ticks, tick) = column.finish();
        Ok((ticks, tick.decimals()))
    }

    #[test]
    fn the_smallest_tick_that_loses_nothing() {
        use TimeUnit::*;
        type Case<'a> = (TimeUnit, &'a [&'a str], (&'a [i64], u32));
        let cases: [Case<'_>; 9] = [
            (Seconds, &["0", "36", "-7"], (&[0, 36, -7], 0)),
            (Seconds, &["36.0", "1e3", "1.20e1"], (&[36, 1000, 12], 0)),
            (Seconds, &["1", "1289241911.72836", "2.5"], (&[100_000, 128_924_191_172_836, 250_000], 5)),
            (Seconds, &[".5", "-.25", "+1."], (&[50, -25, 100], 2)),
            (Milliseconds, &["1289241911728.36"], (&[128_924_191_172_836], 5)),
            (Microseconds, &["1289241911728360"], (&[128_924_191_172_836], 5)),
            (Microseconds, &["1000000", "0"], (&[1, 0], 0)),
            (Nanoseconds, &["1500000000123456789"], (&[1_500_000_000_123_456_789], 9)),
            (Seconds, &["0.000e-99", "1.500E-1"], (&[0, 15], 2)),
        ];
        for (unit, texts, (ticks, decimals)) in cases {
            assert_eq!(column(unit, texts), Ok((ticks.to_vec(), decimals)), "{texts:?}");
        }
    }

    #[test]
    fn a_change_of_unit_is_noticed() {
        let changes = |texts: &[&str]| column(TimeUnit::Seconds, texts) == Err(FaultKind::UnitChange);
        assert!(changes(&["1700000000", "1700000060", "1700000120000"]));
        assert!(changes(&["1700000000000", "1700000060"]));
        assert!(changes(&["1700000000123000", "1700000000124000000"]));
        assert!(!changes(&["0", "1", "1000", "1000000", "1000000000"]));
        assert!(!changes(&["0", "100000000", "100000000000"]));
        assert!(!changes(&["1700000000", "1000", "1700000000"]));
        assert!(!changes(&["1700000000", "2024-01-31T12:00:00Z"]));
    }

    #[test]
    fn dates_are_seconds_whatever_the_unit() {
        let texts = ["1970-01-01T00:00:01.5Z", "1970-01-02"];
        for unit in [TimeUnit::Seconds, TimeUnit::Milliseconds] {
            assert_eq!(column(unit, &texts), Ok((vec![15, 864_000], 1)));
        }
    }

    #[test]
    fn what_is_refused() {
        for text in ["abc", "", ".", "-", "1e", "1e+", "1.2.3", "0x10", "1 2", "1e5e5", "12:30"] {
            assert_eq!(column(TimeUnit::Seconds, &[text]), Err(FaultKind::TimeNotNumber), "{text}");
        }
        assert_eq!(column(TimeUnit::Seconds, &["0.0000000001"]), Err(FaultKind::TimeTooFine));
        assert_eq!(column(TimeUnit::Nanoseconds, &["0.5"]), Err(FaultKind::TimeTooFine));
        assert_eq!(column(TimeUnit::Seconds, &["1e-400"]), Err(FaultKind::TimeTooFine));
        assert_eq!(column(TimeUnit::Seconds, &["1e99999999999"]), Err(FaultKind::TimeTooLarge { decimals: 0 }));
        let wide = ["9000000000000000000", "0.1"];
        assert_eq!(column(TimeUnit::Seconds, &wide), Err(FaultKind::TimeTooLarge { decimals: 1 }));
    }
}
