//! `metrics.jsonl`: one JSON object a line, for every logged batch, epoch, evaluation and adaptation.
//!
//! A checkpoint stores the byte offset reached; a resumed run cuts the file there, so that no batch is listed twice and the
//! file equals that of a run that was never interrupted, but for what goes by the clock: seconds, and adaptations to them.
//!
//! Invariants: [`MetricsLog::offset`] counts every byte of the lines appended; after [`MetricsLog::sync`] they are durable.
//! Figures keep their full precision. JSON has no NaN and no infinity: they are `null`.

use super::durable::{self, FileError, Operation};
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Metrics that can not be written or gone on with.
#[derive(Debug, Error)]
pub enum MetricsError {
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// A record that is no JSON object.
    #[error("a `{kind}` record can not be written as a JSON object")]
    Record {
        /// Its kind.
        kind: String,
        /// Why.
        source: serde_json::Error,
    },
    /// The file does not reach the checkpoint's offset, or no line ends there.
    #[error(
        "{} does not belong to the checkpoint: no line ends at byte {offset} of its {length}; restore the file, or start the run again",
        path.display()
    )]
    Offset {
        /// The file.
        path: PathBuf,
        /// The checkpoint's offset.
        offset: u64,
        /// The file's length.
        length: u64,
    },
    /// A line that is no JSON.
    #[error("{}, line {line} is no JSON", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Why.
        source: serde_json::Error,
    },
}

/// How long a line may wait in memory while others follow.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// The open metrics file.
#[derive(Debug)]
pub struct MetricsLog {
    path: PathBuf,
    file: BufWriter<File>,
    offset: u64,
    flushed: Instant,
}

/// A record with its kind first.
#[derive(Serialize)]
struct Line<'a, T> {
    kind: &'a str,
    #[serde(flatten)]
    record: &'a T,
}

impl MetricsLog {
    /// Starts an empty file.
    ///
    /// # Errors
    /// If it can not be made.
    pub fn create(path: &Path) -> Result<MetricsLog, MetricsError> {
        let file = File::create(path).map_err(|e| FileError::new(Operation::Create, path, e))?;
        Ok(MetricsLog::at(path, file, 0))
    }

    /// Cuts the file at a checkpoint's offset and goes on there.
    ///
    /// # Errors
    /// If it can not be opened, is shorter, or no line ends there.
    pub fn resume(path: &Path, offset: u64) -> Result<MetricsLog, MetricsError> {
        let opened = OpenOptions::new().read(true).write(true).create(offset == 0).truncate(false).open(path);
        let mut file = opened.map_err(|e| FileError::new(Operation::Read, path, e))?;
        let (length, ends_line) = line_end(&mut file, offset).map_err(|e| FileError::new(Operation::Read, path, e))?;
        if !ends_line {
            return Err(MetricsError::Offset { path: path.to_path_buf(), offset, length });
        }
        let cut = file.set_len(offset).and_then(|()| file.seek(SeekFrom::Start(offset)));
        cut.map_err(|e| FileError::new(Operation::Truncate, path, e))?;
        Ok(MetricsLog::at(path, file, offset))
    }

    fn at(path: &Path, file: File, offset: u64) -> MetricsLog {
        MetricsLog { path: path.to_path_buf(), file: BufWriter::new(file), offset, flushed: Instant::now() }
    }

    /// Appends `{"kind": kind, ...record}`; the record is a struct or a map.
    ///
    /// # Errors
    /// If the record is no JSON object or the file can not be written.
    pub fn append<T: Serialize>(&mut self, kind: &str, record: &T) -> Result<(), MetricsError> {
        let mut line = serde_json::to_vec(&Line { kind, record })
            .map_err(|source| MetricsError::Record { kind: kind.to_string(), source })?;
        line.push(b'\n');
        self.file.write_all(&line).map_err(|e| self.failed(Operation::Write, e))?;
        self.offset += line.len() as u64;
        if self.flushed.elapsed() >= FLUSH_EVERY { self.flush() } else { Ok(()) }
    }

    /// Bytes of all lines so far.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Hands all lines to the system, so that other programs see them.
    ///
    /// # Errors
    /// If the file can not be written.
    pub fn flush(&mut self) -> Result<(), MetricsError> {
        self.file.flush().map_err(|e| self.failed(Operation::Write, e))?;
        self.flushed = Instant::now();
        Ok(())
    }

    /// Makes all lines durable and returns the offset for a checkpoint.
    ///
    /// # Errors
    /// If the file can not be written.
    pub fn sync(&mut self) -> Result<u64, MetricsError> {
        self.flush()?;
        self.file.get_ref().sync_data().map_err(|e| self.failed(Operation::Sync, e))?;
        Ok(self.offset)
    }

    fn failed(&self, operation: Operation, source: io::Error) -> MetricsError {
        FileError::new(operation, &self.path, source).into()
    }
}

/// The file's length, and whether a line ends at `offset`.
fn line_end(file: &mut File, offset: u64) -> io::Result<(u64, bool)> {
    let length = file.metadata()?.len();
    if offset == 0 || offset > length {
        return Ok((length, offset == 0));
    }
    let mut last = [0];
    file.seek(SeekFrom::Start(offset - 1))?;
    file.read_exact(&mut last)?;
    Ok((length, last == *b"\n"))
}

/// Reads all records; a last line that is cut, as a killed run leaves it, is dropped.
///
/// # Errors
/// If the file can not be read, or another line is no JSON.
pub fn read_metrics(path: &Path) -> Result<Vec<serde_json::Value>, MetricsError> {
    let bytes = durable::read_file(path)?;
    let whole = bytes.iter().rposition(|&b| b == b'\n').map_or(0, |end| end + 1);
    let lines = bytes[..whole].split_inclusive(|&b| b == b'\n').enumerate();
    lines
        .map(|(index, line)| {
            let path = path.to_path_buf();
            serde_json::from_slice(line).map_err(|source| MetricsError::Line { path, line: index + 1, source })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::fs;

    #[derive(Serialize)]
    struct Batch {
        epoch: u32,
        batch: u64,
        loss: f64,
    }

    fn batch(batch: u64) -> Batch {
        Batch { epoch: 1, batch, loss: 1.0 / (batch + 3) as f64 }
    }

    #[test]
    fn lines_are_objects_in_full_precision() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("metrics.jsonl");
        let mut log = MetricsLog::create(&path).expect("create");
        log.append("batch", &batch(0)).expect("append");
        log.append("eval", &json!({"split": "val", "ap": f64::NAN, "note": "two\nlines"})).expect("append");
        log.append("batch", &7).expect_err("no object");
        let offset = log.sync().expect("sync");
        let text = fs::read_to_string(&path).expect("read");
        assert_eq!(text.lines().next(), Some(r#"{"kind":"batch","epoch":1,"batch":0,"loss":0.3333333333333333}"#));
        assert_eq!(offset, text.len() as u64);
        let records = read_metrics(&path).expect("read");
        assert_eq!(records[0]["loss"].as_f64().map(f64::to_bits), Some((1.0f64 / 3.0).to_bits()));
        assert_eq!(records[1], json!({"kind": "eval", "split": "val", "ap": null, "note": "two\nlines"}));
    }

    #[test]
    fn a_resumed_file_equals_an_uninterrupted_one() {
        let folder = tempfile::tempdir().expect("folder");
        let whole = folder.path().join("whole.jsonl");
        let mut log = MetricsLog::create(&whole).expect("create");
        (0..6).for_each(|b| log.append("batch", &batch(b)).expect("append"));
        drop(log);

        let cut = folder.path().join("cut.jsonl");
        let mut log = MetricsLog::create(&cut).expect("create");
        (0..3).for_each(|b| log.append("batch", &batch(b)).expect("append"));
        let offset = log.sync().expect("sync");
        (3..5).for_each(|b| log.append("batch", &batch(b)).expect("append"));
        log.flush().expect("flush");
        drop(log);
        let mut file = OpenOptions::new().append(true).open(&cut).expect("open");
        file.write_all(b"{\"kind\":\"bat").expect("a torn line");
        assert_eq!(read_metrics(&cut).expect("the torn line is dropped").len(), 5);

        let mut log = MetricsLog::resume(&cut, offset).expect("resume");
        assert_eq!(log.offset(), offset);
        (3..6).for_each(|b| log.append("batch", &batch(b)).expect("append"));
        drop(log);
        assert_eq!(fs::read(&cut).expect("read"), fs::read(&whole).expect("read"));
    }

    #[test]
    fn refuses_a_file_that_is_not_the_checkpoints() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("metrics.jsonl");
        fs::write(&path, "{\"kind\":\"batch\"}\n{\"kind\":\"batch\"}\n").expect("write");
        for offset in [16, 35] {
            assert!(
                matches!(MetricsLog::resume(&path, offset), Err(MetricsError::Offset { length: 34, .. })),
                "{offset}"
            );
        }
        assert_eq!(fs::read(&path).expect("read").len(), 34, "left as it was");
        MetricsLog::resume(&path, 17).expect("a line ends here");
        assert_eq!(fs::read(&path).expect("read").len(), 17);
        MetricsLog::resume(&folder.path().join("new.jsonl"), 0).expect("from the start");
        assert!(matches!(MetricsLog::resume(&folder.path().join("none.jsonl"), 5), Err(MetricsError::File(_))));
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let mut log = MetricsLog::create(Path::new("/dev/full")).expect("open");
        log.append("batch", &batch(0)).expect("still in memory");
        let error = log.flush().expect_err("no space");
        assert!(error.to_string().contains("the disk is full"), "{error}");
    }
}
