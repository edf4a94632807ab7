//! What can go wrong with a user's data, as typed facts.
//!
//! A [`Fault`] is something wrong inside a user's file: it knows the file, the row (1 is the first data row), the column,
//! the value and the mend. Everything else is about files as a whole or about the configuration.

use arrow::error::ArrowError;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Everything that can fail in this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("{}: cannot {doing}", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was being done, as `open`.
        doing: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// There is no such file.
    #[error("{}: there is no such file; {mend}", .path.display())]
    NoFile {
        /// The file.
        path: PathBuf,
        /// Where to get it, or what else to do.
        mend: String,
    },
    /// A fault inside a user's file.
    #[error(transparent)]
    Fault(#[from] Box<Fault>),
    /// The file is no event stream of ours.
    #[error("{}: not an event stream ({found}); make one with `tidemill convert`", .path.display())]
    NotAStream {
        /// The file.
        path: PathBuf,
        /// What it looks like instead.
        found: String,
    },
    /// The stream was written in a format that this version does not read.
    #[error(
        "{}: event stream of format version {found}, this build reads version {supported}; {}",
        .path.display(), if found > supported { "use a newer build" } else { "convert the source file again" }
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Version in the file.
        found: u32,
        /// The version that this build reads and writes.
        supported: u32,
    },
    /// An Arrow file that is cut short or damaged.
    #[error("{}: damaged Arrow file ({what}); write or convert it again", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The first thing found wrong.
        what: String,
    },
    /// Arrow could not read or write a file.
    #[error("{}: Arrow cannot {doing}", .path.display())]
    Arrow {
        /// The file.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// Arrow's answer.
        source: ArrowError,
    },
    /// An impossible setting.
    #[error("{key} = {value}: {mend}")]
    Setting {
        /// Full key, as `split.train`.
        key: &'static str,
        /// The value found.
        value: String,
        /// What would be right.
        mend: String,
    },
    /// Rows of features do not fit the stream.
    #[error("{what}: expected {expected}, got {found}")]
    Shape {
        /// What was given.
        what: &'static str,
        /// Expected length.
        expected: String,
        /// Length given.
        found: String,
    },
    /// More events or nodes than 32-bit ids can name.
    #[error("{found} {what}: at most {} fit", u32::MAX)]
    TooMany {
        /// `events` or `nodes`.
        what: &'static str,
        /// How many there are.
        found: u64,
    },
    /// Times so far apart, or so far from zero, that their differences leave 64 bits.
    #[error(
        "times run from {first} to {last} ticks, beyond what differences of 64-bit integers hold (2^62 either way); give them in a coarser unit or correct them"
    )]
    TimeRange {
        /// The first event's time.
        first: i64,
        /// The last event's time.
        last: i64,
    },
    /// A split without training events.
    #[error("the training split has no events: {mend}")]
    EmptySplit {
        /// What would help.
        mend: String,
    },
}

impl Error {
    /// Wraps an I/O error with the file and the deed.
    pub fn io(path: impl Into<PathBuf>, doing: &'static str, source: io::Error) -> Error {
        Error::Io { path: path.into(), doing, source }
    }

    /// An impossible setting.
    pub fn setting(key: &'static str, value: impl fmt::Display, mend: impl Into<String>) -> Error {
        Error::Setting { key, value: value.to_string(), mend: mend.into() }
    }

    pub(crate) fn damaged(path: impl Into<PathBuf>, what: impl Into<String>) -> Error {
        Error::Damaged { path: path.into(), what: what.into() }
    }
}

/// Something wrong in a user's file, with its place and its mend.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// The file.
    pub path: PathBuf,
    /// Data row, counted from 1 (the header is not counted).
    pub row: Option<u64>,
    /// Column, by its name in the header where it has one.
    pub column: Option<String>,
    /// The value found, shortened.
    pub value: Option<String>,
    /// What is wrong.
    pub kind: FaultKind,
}

/// The kinds of faults. Each has its own sentence and mend.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultKind {
    /// No id in an id column.
    #[error("the id is absent; fill it in or drop the row")]
    AbsentId,
    /// No time in the time column.
    #[error("the time is absent; fill it in or drop the row")]
    AbsentTime,
    /// A time that is no number.
    #[error("the time is no number; give seconds, or another unit with data.tick")]
    TimeNotNumber,
    /// A time with more decimals than nanoseconds.
    #[error("the time is finer than a nanosecond; round it, or state its unit with data.tick")]
    TimeTooFine,
    /// A time beyond 64 bits of ticks.
    #[error(
        "the time does not fit 64 bits at the tick this file needs (10^-{decimals} s); round the times or check data.tick"
    )]
    TimeTooLarge {
        /// Decimals of a second that the file's times need.
        decimals: u32,
    },
    /// A row with more or fewer fields than the others.
    #[error("the row has {found} fields where {expected} are expected; mend or drop it")]
    Ragged {
        /// Fields expected.
        expected: usize,
        /// Fields found.
        found: usize,
    },
    /// A feature that is no number, infinite or NaN.
    #[error("the feature is no finite number; replace it, as by 0")]
    FeatureNotFinite,
    /// The header again, among the data.
    #[error("the header is repeated among the data; drop this row (files were joined?)")]
    HeaderInside,
    /// A label that is no integer in -128..=127.
    #[error("the label is no integer from -128 to 127; number the classes")]
    LabelNotInteger,
    /// Bytes that are no UTF-8.
    #[error("the text is not UTF-8; save the file as UTF-8")]
    NotUtf8,
    /// The compressed file ends too early.
    #[error("the compressed file is cut short; fetch it again")]
    CutCompressed,
    /// The compressed file's contents are damaged.
    #[error("the compressed file is damaged; fetch it again")]
    DamagedCompressed,
    /// Nothing in it.
    #[error("the file is empty; give one with a header and a row an event")]
    Empty,
    /// A header and no data.
    #[error("the file has a header but no data row")]
    NoRows,
    /// No header.
    #[error("the first line looks like data; put a header such as `src,dst,timestamp` before it")]
    NoHeader,
    /// UTF-16 text.
    #[error("the file is UTF-16; save it as UTF-8")]
    Utf16,
    /// A pointer of git-lfs where the file should be.
    #[error("this is a git-lfs pointer, not the data; run `git lfs pull`")]
    LfsPointer,
    /// A compression or container that is not read.
    #[error("{name} files are not read; convert it to {to}")]
    Unsupported {
        /// The format.
        name: &'static str,
        /// What is read.
        to: &'static str,
    },
    /// The mapping names a column that the file lacks.
    #[error("data.columns.{role} names no column of the file{}; columns: {columns}", nearest_hint(.nearest))]
    UnknownColumn {
        /// The mapping's key.
        role: &'static str,
        /// The closest column name.
        nearest: Option<String>,
        /// All column names.
        columns: String,
    },
    /// No column was recognised for a role.
    #[error("no column is recognised as {role}; name it with data.columns.{role}; columns: {columns}")]
    MissingColumn {
        /// The mapping's key.
        role: &'static str,
        /// All column names.
        columns: String,
    },
    /// One column was mapped to two roles.
    #[error("data.columns.{first} and data.columns.{second} are one column; map them to two")]
    SameColumn {
        /// One mapping's key.
        first: &'static str,
        /// The other's.
        second: &'static str,
    },
    /// A column of a type that cannot serve.
    #[error("the column's type {found} cannot serve as {role}")]
    ColumnType {
        /// What it was wanted for.
        role: &'static str,
        /// The type found.
        found: String,
    },
    /// An id list names something that is no node of the stream.
    #[error("{reason}")]
    UnknownId {
        /// Why, and the mend.
        reason: String,
    },
    /// Node features that do not fit the nodes.
    #[error("{what}")]
    NodeFeatures {
        /// What does not fit, and the mend.
        what: String,
    },
    /// The file's structure is damaged.
    #[error("the file is damaged ({what}); write it again")]
    Damaged {
        /// What is wrong with it.
        what: String,
    },
}

fn nearest_hint(nearest: &Option<String>) -> String {
    nearest.as_ref().map_or_else(String::new, |n| format!("; did you mean `{n}`?"))
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(row) = self.row {
            write!(f, ", row {row}")?;
        }
        if let Some(column) = &self.column {
            write!(f, ", column `{column}`")?;
        }
        if let Some(value) = &self.value {
            write!(f, ", value `{value}`")?;
        }
        write!(f, ": {}", self.kind)
    }
}

impl std::error::Error for Fault {}

impl Fault {
    /// A fault of a whole file.
    pub fn of_file(path: impl Into<PathBuf>, kind: FaultKind) -> Fault {
        Fault { path: path.into(), row: None, column: None, value: None, kind }
    }

    /// The same fault at a row, a column and a value.
    #[must_use]
    pub fn at(mut self, row: Option<u64>, column: &str, value: &[u8]) -> Fault {
        self.row = row;
        self.column = Some(column.to_owned());
        self.value = Some(shorten(value));
        self
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        Error::Fault(Box::new(fault))
    }
}

/// At most 40 characters of a value, whatever its bytes.
pub(crate) fn shorten(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(&value[..value.len().min(200)]);
    let mut short: String = text.chars().take(40).collect();
    if short.len() < text.len() || value.len() > 200 {
        short.push_str("...");
    }
    short
}
