//! Opening a user's file: what it is, by its content, and its bytes with the compression taken off.

use crate::error::{Error, Fault, FaultKind, Result};
use crate::stream::ipc;
use flate2::bufread::MultiGzDecoder;
use liblzma::bufread::XzDecoder;
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes looked at to recognise a file and its separator.
const HEAD: usize = 64 * 1024;
/// Bytes read at once.
const BLOCK: usize = 256 * 1024;

/// What a file holds.
pub(crate) enum Content {
    /// Text, decompressed, without byte-order mark.
    Text(Source),
    /// An Arrow IPC file.
    Arrow,
    /// A Parquet file.
    Parquet,
}

/// A text file's bytes.
pub(crate) struct Source {
    /// The first bytes, which [`Source::reader`] yields again.
    pub(crate) head: Vec<u8>,
    /// All bytes.
    pub(crate) reader: Box<dyn Read>,
    /// Whether a byte-order mark was taken off.
    pub(crate) marked: bool,
    /// How far the file itself is read.
    pub(crate) position: Position,
    compressed: bool,
}

/// Bytes read of a file, as it lies on the disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Position {
    read: Arc<AtomicU64>,
    /// Size of the file.
    pub(crate) size: u64,
}

impl Position {
    pub(crate) fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }
}

struct Counted<R>(R, Arc<AtomicU64>);

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.0.read(buffer)?;
        self.1.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

impl Source {
    /// What a failed read of this source means.
    pub(crate) fn read_fault(compressed: bool, path: &Path, error: io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::UnexpectedEof if compressed => Fault::of_file(path, FaultKind::CutCompressed).into(),
            _ if compressed && error.raw_os_error().is_none() => {
                Fault::of_file(path, FaultKind::DamagedCompressed).into()
            }
            _ => Error::io(path, "read", error),
        }
    }

    pub(crate) fn is_compressed(&self) -> bool {
        self.compressed
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Compression {
    Gzip,
    Zstd,
    Xz,
}

impl Compression {
    fn of(head: &[u8]) -> Option<Compression> {
        match head {
            [0x1f, 0x8b, ..] => Some(Compression::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Compression::Zstd),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(Compression::Xz),
            _ => None,
        }
    }

    fn reader(self, raw: impl Read + 'static) -> io::Result<Box<dyn Read>> {
        let raw = BufReader::with_capacity(BLOCK, raw);
        Ok(match self {
            Compression::Gzip => Box::new(MultiGzDecoder::new(raw)),
            Compression::Zstd => Box::new(zstd_reader(raw)?),
            Compression::Xz => Box::new(XzDecoder::new_multi_decoder(raw)),
        })
    }
}

/// A window of at most 128 MiB, as the command line tool allows.
fn zstd_reader<R: Read>(raw: BufReader<R>) -> io::Result<zstd::stream::read::Decoder<'static, BufReader<R>>> {
    let mut decoder = zstd::stream::read::Decoder::with_buffer(raw)?;
    decoder.window_log_max(27)?;
    Ok(decoder)
}

/// Opens a file and finds out what it holds.
///
/// # Errors
/// If it cannot be read or is of a kind that is not read.
pub(crate) fn open(path: &Path) -> Result<Content> {
    let file = File::open(path).map_err(|e| not_opened(path, e))?;
    let about = file.metadata().map_err(|e| Error::io(path, "open", e))?;
    if about.is_dir() {
        return Err(Fault::of_file(path, FaultKind::Folder).into());
    }
    let position = Position { read: Arc::default(), size: about.len() };
    let mut raw = Counted(file, position.read.clone());
    let head = read_head(&mut raw).map_err(|e| Error::io(path, "read", e))?;
    if head.starts_with(ipc::MAGIC) {
        return Ok(Content::Arrow);
    }
    if head.starts_with(b"PAR1") {
        return Ok(Content::Parquet);
    }
    let raw = Cursor::new(head.clone()).chain(raw);
    let Some(compression) = Compression::of(&head) else {
        refuse_foreign(path, &head)?;
        return text(path, head, Box::new(raw), position, false);
    };
    let unread = |e| Source::read_fault(true, path, e);
    let mut reader = compression.reader(raw).map_err(unread)?;
    let head = read_head(&mut reader).map_err(unread)?;
    refuse_packed(path, &head)?;
    refuse_foreign(path, &head)?;
    let reader = Cursor::new(head.clone()).chain(reader);
    text(path, head, Box::new(reader), position, true)
}

/// Streams that many papers use, by how their files' names start, and where each is to be had.
const PUBLISHED: [(&str, &str); 5] = [
    ("wikipedia", "http://snap.stanford.edu/jodie/wikipedia.csv"),
    ("reddit", "http://snap.stanford.edu/jodie/reddit.csv"),
    ("mooc", "http://snap.stanford.edu/jodie/mooc.csv"),
    ("lastfm", "http://snap.stanford.edu/jodie/lastfm.csv"),
    ("collegemsg", "http://snap.stanford.edu/data/CollegeMsg.html"),
];

/// A file that is not there is told where to get it, if its name is known.
fn not_opened(path: &Path, error: io::Error) -> Error {
    if error.kind() != io::ErrorKind::NotFound {
        return Error::io(path, "open", error);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let mend = match PUBLISHED.iter().find(|(start, _)| name.starts_with(start)) {
        Some((_, place)) => format!("get it from {place}, or give another file in data.path"),
        None => "give the path of a file that exists".to_owned(),
    };
    Error::NoFile { path: path.to_owned(), mend }
}

fn read_head(reader: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    reader.take(HEAD as u64).read_to_end(&mut head)?;
    Ok(head)
}

fn text(
    path: &Path,
    mut head: Vec<u8>,
    mut reader: Box<dyn Read>,
    position: Position,
    compressed: bool,
) -> Result<Content> {
    let marked = head.starts_with(b"\xef\xbb\xbf");
    if marked {
        head.drain(..3);
        let mut mark = [0; 3];
        reader.read_exact(&mut mark).map_err(|e| Source::read_fault(compressed, path, e))?;
    }
    if head.iter().all(u8::is_ascii_whitespace) {
        return Err(Fault::of_file(path, FaultKind::Empty).into());
    }
    Ok(Content::Text(Source { head, reader, marked, position, compressed }))
}

/// Formats that have compression of their own and are not read inside another.
fn refuse_packed(path: &Path, head: &[u8]) -> Result<()> {
    let kind = if head.starts_with(ipc::MAGIC) {
        FaultKind::Unsupported { name: "compressed Arrow", to: "plain Arrow" }
    } else if head.starts_with(b"PAR1") {
        FaultKind::Unsupported { name: "compressed Parquet", to: "plain Parquet" }
    } else if Compression::of(head).is_some() {
        FaultKind::Unsupported { name: "twice compressed", to: "one compression" }
    } else {
        return Ok(());
    };
    Err(Fault::of_file(path, kind).into())
}

/// Files that look like data and are none, or none that is read.
fn refuse_foreign(path: &Path, head: &[u8]) -> Result<()> {
    let kind = match head {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => FaultKind::Utf16,
        [b'B', b'Z', b'h', ..] => FaultKind::Unsupported { name: "bzip2", to: "csv, gzip, zstd or xz" },
        [b'P', b'K', 3, 4, ..] => FaultKind::Unsupported { name: "zip", to: "csv, gzip, zstd or xz" },
        [0x89, b'H', b'D', b'F', ..] => FaultKind::Unsupported { name: "HDF5", to: "csv or Parquet" },
        [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => FaultKind::NpyEvents,
        _ if head.starts_with(b"version https://git-lfs") => FaultKind::LfsPointer,
        _ if looks_utf16(head) => FaultKind::Utf16,
        _ if head.contains(&0) => FaultKind::Binary,
        _ => return Ok(()),
    };
    Err(Fault::of_file(path, kind).into())
}

/// Text in which every other byte is zero and the rest is not.
fn looks_utf16(head: &[u8]) -> bool {
    let start = &head[..head.len().min(256) & !1];
    let zeros = |odd: usize| start.iter().skip(odd).step_by(2).filter(|&&b| b == 0).count();
    let (even, odd, pairs) = (zeros(0), zeros(1), start.len() / 2);
    pairs >= 2 && (even == 0 && odd * 10 >= pairs * 9 || odd == 0 && even * 10 >= pairs * 9)
}

/// The separator of a table: the commonest of comma, tab and semicolon in its first line.
pub(crate) fn separator(head: &[u8]) -> u8 {
    let line = head.split(|&b| b == b'\n' || b == b'\r').find(|line| !line.is_empty()).unwrap_or_default();
    let count = |separator: u8| line.iter().filter(|&&b| b == separator).count();
    // of equals the last wins: the comma
    [b';', b'\t', b','].into_iter().max_by_key(|&s| count(s)).unwrap_or(b',')
}
