//! Opening a user's file: what it is, by its content, and its bytes with the compression taken off.

use crate::error::{Error, Fault, FaultKind, Result};
use crate::stream::ipc;
use flate2::bufread::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::Path;

/// Bytes looked at to recognise a file and its separator.
const HEAD: usize = 64 * 1024;

/// What a file holds.
pub(crate) enum Content {
    /// Text, decompressed, without byte-order mark.
    Text(Source),
    /// An Arrow IPC file.
    Arrow,
}

/// A text file's bytes.
pub(crate) struct Source {
    /// The first bytes, which [`Source::reader`] yields again.
    pub(crate) head: Vec<u8>,
    /// All bytes.
    pub(crate) reader: Box<dyn Read>,
    compressed: bool,
}

impl Source {
    /// What a failed read of this source means.
    pub(crate) fn read_fault(compressed: bool, path: &Path, error: io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::UnexpectedEof if compressed => Fault::of_file(path, FaultKind::CutCompressed).into(),
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput if compressed => {
                Fault::of_file(path, FaultKind::DamagedCompressed).into()
            }
            _ => Error::io(path, "read", error),
        }
    }

    pub(crate) fn is_compressed(&self) -> bool {
        self.compressed
    }
}

/// Opens a file and finds out what it holds.
///
/// # Errors
/// If it cannot be read or is of a kind that is not read.
pub(crate) fn open(path: &Path) -> Result<Content> {
    let file = File::open(path).map_err(|e| not_opened(path, e))?;
    let mut raw = BufReader::with_capacity(256 * 1024, file);
    let head = read_head(&mut raw).map_err(|e| Error::io(path, "read", e))?;
    if head.starts_with(ipc::MAGIC) {
        return Ok(Content::Arrow);
    }
    refuse_foreign(path, &head)?;
    let compressed = head.starts_with(&[0x1f, 0x8b]);
    let raw = Cursor::new(head.clone()).chain(raw);
    if !compressed {
        return text(path, head, Box::new(raw), false);
    }
    let mut reader = MultiGzDecoder::new(BufReader::with_capacity(256 * 1024, raw));
    let head = read_head(&mut reader).map_err(|e| Source::read_fault(true, path, e))?;
    if head.starts_with(ipc::MAGIC) {
        return Err(Fault::of_file(path, FaultKind::Unsupported { name: "compressed Arrow", to: "plain Arrow" }).into());
    }
    refuse_foreign(path, &head)?;
    let reader = Cursor::new(head.clone()).chain(reader);
    text(path, head, Box::new(reader), true)
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

fn text(path: &Path, mut head: Vec<u8>, mut reader: Box<dyn Read>, compressed: bool) -> Result<Content> {
    if head.starts_with(b"\xef\xbb\xbf") {
        head.drain(..3);
        let mut mark = [0; 3];
        reader.read_exact(&mut mark).map_err(|e| Source::read_fault(compressed, path, e))?;
    }
    if head.iter().all(u8::is_ascii_whitespace) {
        return Err(Fault::of_file(path, FaultKind::Empty).into());
    }
    Ok(Content::Text(Source { head, reader, compressed }))
}

/// Files that look like data and are none, or none that is read.
fn refuse_foreign(path: &Path, head: &[u8]) -> Result<()> {
    let kind = match head {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => FaultKind::Utf16,
        [0x28, 0xb5, 0x2f, 0xfd, ..] => FaultKind::Unsupported { name: "zstd", to: "csv or csv.gz" },
        [0xfd, b'7', b'z', b'X', b'Z', ..] => FaultKind::Unsupported { name: "xz", to: "csv or csv.gz" },
        [b'B', b'Z', b'h', ..] => FaultKind::Unsupported { name: "bzip2", to: "csv or csv.gz" },
        [b'P', b'K', 3, 4, ..] => FaultKind::Unsupported { name: "zip", to: "csv or csv.gz" },
        [b'P', b'A', b'R', b'1', ..] => FaultKind::Unsupported { name: "Parquet", to: "csv or Arrow" },
        [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => FaultKind::Unsupported { name: "npy event", to: "csv or Arrow" },
        _ if head.starts_with(b"version https://git-lfs") => FaultKind::LfsPointer,
        _ if head.starts_with(&[0x1f, 0x8b]) => return Ok(()),
        _ if head.len() > 1 && head.contains(&0) && (head[0] == 0 || head[1] == 0) => FaultKind::Utf16,
        _ if head.contains(&0) => FaultKind::Unsupported { name: "binary", to: "csv or Arrow" },
        _ => return Ok(()),
    };
    Err(Fault::of_file(path, kind).into())
}

/// The separator of a table: the commonest of comma, tab and semicolon in its first line.
pub(crate) fn separator(head: &[u8]) -> u8 {
    let line = head.split(|&b| b == b'\n' || b == b'\r').find(|line| !line.is_empty()).unwrap_or_default();
    let count = |separator: u8| line.iter().filter(|&&b| b == separator).count();
    // of equals the last wins: the comma
    [b';', b'\t', b','].into_iter().max_by_key(|&s| count(s)).unwrap_or(b',')
}
