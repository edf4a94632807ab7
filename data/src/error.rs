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
    #[error("{}: cannot {doing}; {}", .path.display(), io_mend(.source))]
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
    /// A time that is neither a number nor a date.
    #[error(
        "the time is no number and no ISO 8601 time; give seconds, another unit with data.tick, or 2024-01-31T12:00:00Z"
    )]
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
    /// Numbers that jump as if the unit had changed.
    #[error("the times change unit here (about 1000 times the row before, or a thousandth); give all in one unit")]
    UnitChange,
    /// An id that is a number with decimals.
    #[error("the id is no integer and no text; give ids without decimals")]
    IdNotInteger,
    /// A row that names a row of another file which that file lacks.
    #[error("the features' file beside it has no row of this number (it has {rows}); give the file that belongs to it")]
    FeatureRow {
        /// Rows of the features' file.
        rows: u64,
    },
    /// A quotation mark that nothing closes.
    #[error("a quotation mark is opened in this row and not closed in it; close or remove it")]
    OpenQuote,
    /// A row without end.
    #[error("the row is longer than {mib} MiB; the file is no table, or line ends are missing")]
    EndlessRow {
        /// The bound.
        mib: usize,
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
    #[error("the file has a header but no data row; give one row an event below it")]
    NoRows,
    /// No header.
    #[error("the first line looks like data; put a header such as `src,dst,timestamp` before it")]
    NoHeader,
    /// UTF-16 text.
    #[error("the file is UTF-16; save it as UTF-8")]
    Utf16,
    /// A folder where a file should be.
    #[error("this is a folder; name the file with the events in it")]
    Folder,
    /// Bytes of zero in what should be text.
    #[error("the file is binary or was never written fully (it holds bytes of zero); fetch or export it again")]
    Binary,
    /// An npy array where the events should be.
    #[error(
        "this is an npy array, which holds features and no events; name the csv beside it, as ml_wikipedia.csv beside ml_wikipedia.npy"
    )]
    NpyEvents,
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
    /// A stream whose contents are not those it was written with.
    #[error(
        "the contents do not have the hash that the file states: it was changed or damaged; convert the source again"
    )]
    HashMismatch,
    /// The file's structure is damaged.
    #[error("the file is damaged ({what}); write it again")]
    Damaged {
        /// What is wrong with it.
        what: String,
    },
}

impl FaultKind {
    /// A short name, under which faults of a kind are counted.
    pub fn name(&self) -> &'static str {
        match self {
            FaultKind::AbsentId => "absent_id",
            FaultKind::AbsentTime => "absent_time",
            FaultKind::TimeNotNumber => "time_not_number",
            FaultKind::TimeTooFine => "time_too_fine",
            FaultKind::TimeTooLarge { .. } => "time_too_large",
            FaultKind::UnitChange => "unit_change",
            FaultKind::IdNotInteger => "id_not_integer",
            FaultKind::FeatureRow { .. } => "feature_row",
            FaultKind::OpenQuote => "open_quote",
            FaultKind::EndlessRow { .. } => "endless_row",
            FaultKind::Ragged { .. } => "ragged_row",
            FaultKind::FeatureNotFinite => "feature_not_finite",
            FaultKind::HeaderInside => "header_inside",
            FaultKind::LabelNotInteger => "label_not_integer",
            FaultKind::NotUtf8 => "not_utf8",
            FaultKind::CutCompressed => "cut_compressed",
            FaultKind::DamagedCompressed => "damaged_compressed",
            FaultKind::Empty => "empty",
            FaultKind::NoRows => "no_rows",
            FaultKind::NoHeader => "no_header",
            FaultKind::Utf16 => "utf16",
            FaultKind::Folder => "folder",
            FaultKind::Binary => "binary",
            FaultKind::NpyEvents => "npy_events",
            FaultKind::LfsPointer => "lfs_pointer",
            FaultKind::Unsupported { .. } => "unsupported",
            FaultKind::UnknownColumn { .. } => "unknown_column",
            FaultKind::MissingColumn { .. } => "missing_column",
            FaultKind::SameColumn { .. } => "same_column",
            FaultKind::ColumnType { .. } => "column_type",
            FaultKind::UnknownId { .. } => "unknown_id",
            FaultKind::NodeFeatures { .. } => "node_features",
            FaultKind::HashMismatch => "hash_mismatch",
            FaultKind::Damaged { .. } => "damaged",
        }
    }
}

/// What helps when the operating system refuses.
fn io_mend(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "check the path (a relative one starts in the current folder)",
        io::ErrorKind::PermissionDenied => "change its permissions, or use a copy that you own",
        io::ErrorKind::StorageFull => "free space on that disk or choose another (no half file is left)",
        io::ErrorKind::QuotaExceeded => "free some of your quota or choose another disk (no half file is left)",
        io::ErrorKind::IsADirectory => "name a file, not a folder",
        io::ErrorKind::NotADirectory => "a part of the path is a file; check the path",
        io::ErrorKind::ReadOnlyFilesystem => "choose a folder that can be written",
        _ => "the system's answer follows",
    }
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
