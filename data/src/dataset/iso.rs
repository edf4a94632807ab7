//! ISO 8601 times: `2024-01-31`, `2024-01-31T12:34:56.789Z`, `2024-01-31 12:34+02:00`, as exact seconds since 1970.
//!
//! A time without zone is taken as UTC. Absent on purpose: week and ordinal dates, leap seconds, years before 1.

use super::decimal::Decimal;
use crate::error::FaultKind;
use chrono::{Datelike, NaiveDate};

/// Day number of 1970-01-01, counted from the first day of year 1.
const EPOCH: i64 = 719_163;

/// Whether a text starts like a date, `dddd-dd-`: no number does.
pub(crate) fn is_date(text: &[u8]) -> bool {
    matches!(text, [a, b, c, d, b'-', e, f, b'-', ..] if [a, b, c, d, e, f].iter().all(|b| b.is_ascii_digit()))
}

/// Reads a time.
///
/// # Errors
/// If it is no date and time, or finer than a nanosecond.
pub(crate) fn parse(text: &[u8]) -> Result<Decimal, FaultKind> {
    let (date, rest) = text.split_at_checked(10).ok_or(FaultKind::TimeNotNumber)?;
    let number = |from: usize, to: usize| digits(&date[from..to]);
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let day = NaiveDate::from_ymd_opt(year as i32, month, day).filter(|_| year > 0).ok_or(FaultKind::TimeNotNumber)?;
    let days = i64::from(day.num_days_from_ce()) - EPOCH;
    let (clock, zone) = match rest {
        [] => return Ok(Decimal::integer(days * 86_400)),
        [b'T' | b't' | b' ', rest @ ..] => split_zone(rest),
        _ => return Err(FaultKind::TimeNotNumber),
    };
    let (seconds, fraction) = parse_clock(clock.trim_ascii())?;
    let seconds = days * 86_400 + i64::from(seconds) - parse_zone(zone.trim_ascii())?;
    join(seconds, fraction)
}

/// Clock and zone, cut at `Z`, `+` or the last `-`.
fn split_zone(text: &[u8]) -> (&[u8], &[u8]) {
    let at = text.iter().position(|b| matches!(b, b'Z' | b'z' | b'+' | b'-')).unwrap_or(text.len());
    text.split_at(at)
}

/// Seconds of the day and the digits behind the point.
fn parse_clock(text: &[u8]) -> Result<(u32, &[u8]), FaultKind> {
    let at = text.iter().position(|b| matches!(b, b'.' | b',')).unwrap_or(text.len());
    let (clock, fraction) = text.split_at(at);
    let fraction = fraction.get(1..).unwrap_or_default();
    let parts = clock.split(|&b| b == b':').map(digits).collect::<Result<Vec<u32>, _>>()?;
    let ([hour, minute], second) = match parts[..] {
        [hour, minute] if at == text.len() => ([hour, minute], 0),
        [hour, minute, second] => ([hour, minute], second),
        _ => return Err(FaultKind::TimeNotNumber),
    };
    let sound = hour < 24 && minute < 60 && second < 60 && fraction.iter().all(u8::is_ascii_digit);
    let pointless = at < text.len() && fraction.is_empty();
    if sound && !pointless { Ok((hour * 3600 + minute * 60 + second, fraction)) } else { Err(FaultKind::TimeNotNumber) }
}

/// Seconds east of UTC: nothing, `Z`, `+02`, `+0200` or `+02:00`.
fn parse_zone(text: &[u8]) -> Result<i64, FaultKind> {
    let (sign, rest) = match text {
        [] | [b'Z' | b'z'] => return Ok(0),
        [b'+', rest @ ..] => (1, rest),
        [b'-', rest @ ..] => (-1, rest),
        _ => return Err(FaultKind::TimeNotNumber),
    };
    let (hours, minutes) = match rest {
        [_, _] => (digits(rest)?, 0),
        [a, b, c, d] | [a, b, b':', c, d] => (digits(&[*a, *b])?, digits(&[*c, *d])?),
        _ => return Err(FaultKind::TimeNotNumber),
    };
    if hours > 23 || minutes > 59 {
        return Err(FaultKind::TimeNotNumber);
    }
    Ok(sign * i64::from(hours * 3600 + minutes * 60))
}

/// One or two digits of a clock, or the four of a year.
fn digits(text: &[u8]) -> Result<u32, FaultKind> {
    if !(1..=4).contains(&text.len()) || !text.iter().all(u8::is_ascii_digit) {
        return Err(FaultKind::TimeNotNumber);
    }
    Ok(text.iter().fold(0, |n, b| n * 10 + u32::from(b - b'0')))
}

fn join(seconds: i64, fraction: &[u8]) -> Result<Decimal, FaultKind> {
    let end = fraction.iter().rposition(|&b| b != b'0').map_or(0, |at| at + 1);
    let fraction = &fraction[..end];
    if fraction.is_empty() {
        return Ok(Decimal::integer(seconds));
    }
    if fraction.len() > 9 {
        return Err(FaultKind::TimeTooFine);
    }
    let scale = 10i128.pow(fraction.len() as u32);
    let part = fraction.iter().fold(0i128, |n, b| n * 10 + i128::from(b - b'0'));
    Ok(Decimal { mantissa: i128::from(seconds) * scale + part, exponent: -(fraction.len() as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_many_spellings() {
        let whole =
            |text: &str, seconds: i64| assert_eq!(parse(text.as_bytes()), Ok(Decimal::integer(seconds)), "{text}");
        whole("1970-01-01", 0);
        whole("2024-02-29T12:00:00Z", 1_709_208_000);
        whole("2024-02-29 12:00", 1_709_208_000);
        whole("2024-02-29T14:00:00+02:00", 1_709_208_000);
        whole("2024-02-29T04:30:00-0730", 1_709_208_000);
        whole("2024-02-29t13:00:00.000 +01", 1_709_208_000);
        whole("1969-12-31T23:59:59z", -1);
        assert_eq!(parse(b"1970-01-01T00:00:01.25Z"), Ok(Decimal { mantissa: 125, exponent: -2 }));
        assert_eq!(parse(b"1969-12-31T23:59:59,75"), Ok(Decimal { mantissa: -25, exponent: -2 }));
    }

    #[test]
    fn what_is_no_time() {
        for text in [
            "2023-02-29",
            "2024-13-01",
            "2024-01-01T24:00:00",
            "2024-01-01T12:60",
            "2024-01-01T12",
            "2024-01-01T12:00:61",
            "2024-01-01T12:00:00.",
            "2024-01-01T12:00+2",
            "2024-01-01T12:00+25:00",
            "2024-01-01x",
            "2024-01-0",
            "2024-01-01T",
            "0000-01-01",
            "2024-01-01T12:00.5",
        ] {
            assert_eq!(parse(text.as_bytes()), Err(FaultKind::TimeNotNumber), "{text}");
        }
        assert_eq!(parse(b"2024-01-01T12:00:00.0123456789Z"), Err(FaultKind::TimeTooFine));
        assert!(is_date(b"2024-01-01") && !is_date(b"-2024-01-01") && !is_date(b"20240101"));
    }
}
