//! A stream back into csv, with the user's ids and the time in a chosen unit.
//!
//! Times are written exactly, as decimals where the unit is coarser than the tick, so that reading the file with the same
//! unit gives the same events.

use crate::error::{Error, Result};
use crate::id::EventId;
use crate::stream::{EventStream, Tick, TimeUnit, temporary};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Writes the events as csv, in event order: ids, time, label if any, features `f0, f1, ...` if any.
///
/// # Errors
/// If the file cannot be written; it appears whole or not at all.
pub fn write_csv(stream: &EventStream, path: &Path, unit: TimeUnit) -> Result<()> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let io = |e| Error::io(path, "write", e);
    let file = temporary(&folder).map_err(io)?;
    let mut writer = csv::Writer::from_writer(BufWriter::new(file));
    write_rows(stream, unit, &mut writer).map_err(|e| io(e.into()))?;
    let buffered = writer.into_inner().map_err(|e| io(e.into_error()))?;
    let file = buffered.into_inner().map_err(|e| io(e.into_error()))?;
    file.persist(path).map_err(|e| io(e.error))?;
    Ok(())
}

fn write_rows(stream: &EventStream, unit: TimeUnit, writer: &mut csv::Writer<impl Write>) -> csv::Result<()> {
    let ends = if stream.meta().bipartite { ["user_id", "item_id"] } else { ["src", "dst"] };
    let mut header: Vec<String> = ends.map(str::to_owned).to_vec();
    header.push("timestamp".to_owned());
    header.extend(stream.has_labels().then(|| "label".to_owned()));
    header.extend((0..stream.feature_dim()).map(|i| format!("f{i}")));
    writer.write_record(&header)?;
    for event in (0..stream.len() as u32).map(EventId) {
        writer.write_field(stream.ids().raw(stream.source(event)).to_string())?;
        writer.write_field(stream.ids().raw(stream.destination(event)).to_string())?;
        writer.write_field(format_time(stream.time(event).0, stream.tick(), unit))?;
        if stream.has_labels() {
            writer.write_field(stream.label(event).map_or_else(String::new, |l| l.to_string()))?;
        }
        for feature in stream.features(event) {
            writer.write_field(feature.to_string())?;
        }
        writer.write_record(None::<&[u8]>)?;
    }
    writer.flush()?;
    Ok(())
}

/// A time in a unit, exactly.
pub fn format_time(ticks: i64, tick: Tick, unit: TimeUnit) -> String {
    let (have, want) = (tick.decimals(), unit.decimals());
    if want >= have {
        return (i128::from(ticks) * 10i128.pow(want - have)).to_string();
    }
    let scale = 10u64.pow(have - want);
    let (whole, part) = (ticks.unsigned_abs() / scale, ticks.unsigned_abs() % scale);
    let sign = if ticks < 0 { "-" } else { "" };
    if part == 0 {
        return format!("{sign}{whole}");
    }
    let digits = format!("{part:0width$}", width = (have - want) as usize);
    format!("{sign}{whole}.{}", digits.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_exactly() {
        let tick = Tick::from_decimals(5);
        let cases = [
            (128_924_191_172_836, TimeUnit::Seconds, "1289241911.72836"),
            (128_924_191_172_836, TimeUnit::Milliseconds, "1289241911728.36"),
            (128_924_191_172_836, TimeUnit::Microseconds, "1289241911728360"),
            (-50_000, TimeUnit::Seconds, "-0.5"),
            (200_000, TimeUnit::Seconds, "2"),
            (i64::MIN, TimeUnit::Nanoseconds, "-92233720368547758080000"),
        ];
        for (ticks, unit, text) in cases {
            assert_eq!(format_time(ticks, tick, unit), text);
        }
    }
}
