//! Files that exist whole or not at all, also after a crash.
//!
//! A file is written under a temporary name beside its target, flushed to the device, renamed, and then its folder is
//! flushed: whoever finds the target finds all of it. A failed write removes its temporary file.
//!
//! Invariants: the target is never opened for writing; the hash returned is that of the bytes handed to the device.
//!
//! Absent: locking. One process writes a given path.

use memmap2::Mmap;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// A file operation that failed, with its path.
#[derive(Debug, Error)]
#[error("can not {operation} {}{}", path.display(), mend(source))]
pub struct FileError {
    /// What was tried.
    pub operation: Operation,
    /// On which file or folder.
    pub path: PathBuf,
    /// Why it failed.
    pub source: io::Error,
}

impl FileError {
    /// Wraps the system's error with what was tried on which path.
    pub fn new(operation: Operation, path: &Path, source: io::Error) -> Self {
        FileError { operation, path: path.to_path_buf(), source }
    }
}

/// What was tried on a file or folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Make a folder.
    CreateFolder,
    /// Make a file.
    Create,
    /// Open or read a file.
    Read,
    /// List a folder.
    List,
    /// Write to a file.
    Write,
    /// Flush a file or folder to the device.
    Sync,
    /// Give a finished file its name.
    Rename,
    /// Cut a file to a length.
    Truncate,
    /// Remove a file or folder.
    Remove,
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Operation::CreateFolder => "make the folder",
            Operation::Create => "create",
            Operation::Read => "read",
            Operation::List => "list",
            Operation::Write => "write",
            Operation::Sync => "flush to disk",
            Operation::Rename => "rename",
            Operation::Truncate => "truncate",
            Operation::Remove => "remove",
        })
    }
}

/// What helps against the failures that a user can mend.
fn mend(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => " (the disk is full: free space, then resume)",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => " (choose a folder you may write to)",
        _ => "",
    }
}

/// Length and hash of what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Length in bytes.
    pub bytes: u64,
    /// sha256, lower-case hexadecimal.
    pub sha256: String,
}

/// Ends the names of files that are not finished.
pub const TEMPORARY: &str = ".tmp";

/// Writes `path` atomically and durably from what `content` puts into the writer.
///
/// # Errors
/// The operation that failed. `path` is then as before, or already the new file if only the last flush of its folder failed.
pub fn write_file(path: &Path, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<Written, FileError> {
    let temporary = temporary_path(path);
    let written = write_temporary(&temporary, content)
        .and_then(|written| step(Operation::Rename, path, || fs::rename(&temporary, path)).map(|()| written));
    match written {
        Ok(written) => sync_folder(parent(path)).map(|()| written),
        Err(error) => {
            // The first error is the one to report; a temporary left behind is ignored by readers and overwritten later.
            let _ = remove_file(&temporary);
            Err(error)
        }
    }
}

/// Writes bytes to `path` atomically and durably.
///
/// # Errors
/// As [`write_file`].
pub fn write_bytes(path: &Path, bytes: &[u8]) -> Result<Written, FileError> {
    write_file(path, |file| file.write_all(bytes))
}

fn write_temporary(path: &Path, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<Written, FileError> {
    let file = step(Operation::Create, path, || File::create(path))?;
    let mut writer =
        HashingWriter { file: BufWriter::with_capacity(1 << 20, Target { path, file }), hash: Sha256::new(), bytes: 0 };
    content(&mut writer).and_then(|()| writer.file.flush()).map_err(|e| FileError::new(Operation::Write, path, e))?;
    let written = Written { bytes: writer.bytes, sha256: hex(&writer.hash.finalize()) };
    step(Operation::Sync, path, || writer.file.get_ref().file.sync_all())?;
    Ok(written)
}

/// Makes a folder and those above it, each entry durable.
///
/// # Errors
/// The operation that failed.
pub fn create_folders(path: &Path) -> Result<(), FileError> {
    if path.is_dir() {
        return Ok(());
    }
    let above = parent(path);
    if above != path {
        create_folders(above)?;
    }
    match step(Operation::CreateFolder, path, || fs::create_dir(path)) {
        Err(error) if error.source.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        other => other,
    }?;
    sync_folder(above)
}

/// Flushes a folder's entries.
///
/// # Errors
/// The operation that failed.
pub fn sync_folder(path: &Path) -> Result<(), FileError> {
    step(Operation::Sync, path, || File::open(path)?.sync_all())
}

/// Removes a file; one that is not there is removed already.
///
/// # Errors
/// The operation that failed.
pub fn remove_file(path: &Path) -> Result<(), FileError> {
    match step(Operation::Remove, path, || fs::remove_file(path)) {
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Removes an empty folder.
///
/// # Errors
/// The operation that failed.
pub fn remove_folder(path: &Path) -> Result<(), FileError> {
    step(Operation::Remove, path, || fs::remove_dir(path))
}

/// The names in a folder, sorted.
///
/// # Errors
/// The operation that failed.
pub fn list_folder(path: &Path) -> Result<Vec<String>, FileError> {
    let names = fs::read_dir(path)
        .and_then(|entries| {
            entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect::<io::Result<Vec<_>>>()
        })
        .map_err(|e| FileError::new(Operation::List, path, e))?;
    let mut names = names;
    names.sort_unstable();
    Ok(names)
}

/// Reads a whole file.
///
/// # Errors
/// The operation that failed.
pub fn read_file(path: &Path) -> Result<Vec<u8>, FileError> {
    fs::read(path).map_err(|e| FileError::new(Operation::Read, path, e))
}

/// Maps a whole file.
///
/// # Errors
/// The operation that failed.
pub fn map_file(path: &Path) -> Result<Mmap, FileError> {
    // SAFETY: files get their name when they are whole, and none is opened for writing after that; a foreign process that cuts
    // a mapped file ends this one, as with any mapped file.
    let map = |file| unsafe { Mmap::map(&file) };
    File::open(path).and_then(map).map_err(|e| FileError::new(Operation::Read, path, e))
}

/// Length and hash of a file, read in pieces.
///
/// # Errors
/// The operation that failed.
pub fn hash_file(path: &Path) -> Result<Written, FileError> {
    let mut sink = HashingWriter { file: BufWriter::with_capacity(0, io::sink()), hash: Sha256::new(), bytes: 0 };
    File::open(path)
        .and_then(|mut file| io::copy(&mut file, &mut sink))
        .map_err(|e| FileError::new(Operation::Read, path, e))?;
    Ok(Written { bytes: sink.bytes, sha256: hex(&sink.hash.finalize()) })
}

/// sha256 of bytes, lower-case hexadecimal.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.iter().flat_map(|b| [b >> 4, b & 15]).map(|d| char::from(DIGITS[usize::from(d)])).collect()
}

fn temporary_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(TEMPORARY);
    PathBuf::from(name)
}

/// The folder that holds `path`; `.` for a bare name.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
        Some(folder) => folder,
        None => path,
    }
}

/// Hashes and counts what goes to the device.
struct HashingWriter<W: Write> {
    file: BufWriter<W>,
    hash: Sha256,
    bytes: u64,
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.hash.update(&bytes[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The file below the buffer; tests make its writes fail.
struct Target<'a> {
    path: &'a Path,
    file: File,
}

impl Write for Target<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match step(Operation::Write, self.path, || self.file.write(bytes)) {
            Ok(count) => Ok(count),
            Err(error) => {
                if cfg!(test) {
                    let _ = self.file.write(&bytes[..bytes.len() / 2]); // a torn write
                }
                Err(error.source)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// One operation that changes the disk.
fn step<T>(operation: Operation, path: &Path, act: impl FnOnce() -> io::Result<T>) -> Result<T, FileError> {
    #[cfg(test)]
    faults::check().map_err(|e| FileError::new(operation, path, e))?;
    act().map_err(|e| FileError::new(operation, path, e))
}

/// Makes disk operations of this thread fail, for tests of every moment at which a process or a disk can stop.
#[cfg(test)]
pub(crate) mod faults {
    use std::cell::Cell;
    use std::io;

    /// What happens after the operations that still succeed.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub(crate) enum Fault {
        /// One operation finds the disk full; later ones succeed.
        DiskFull,
        /// The process is gone: nothing changes the disk any more, clean-up included.
        Killed,
    }

    thread_local! {
        static PLAN: Cell<Option<(u64, Fault)>> = const { Cell::new(None) };
        static REACHED: Cell<bool> = const { Cell::new(false) };
    }

    /// Runs `act` with `succeeding` operations before the fault; true if the fault was reached.
    pub(crate) fn with<T>(succeeding: u64, fault: Fault, act: impl FnOnce() -> T) -> (T, bool) {
        PLAN.set(Some((succeeding, fault)));
        let result = act();
        PLAN.set(None);
        (result, REACHED.take())
    }

    pub(super) fn check() -> io::Result<()> {
        let Some((left, fault)) = PLAN.get() else { return Ok(()) };
        if left > 0 {
            PLAN.set(Some((left - 1, fault)));
            return Ok(());
        }
        REACHED.set(true);
        if fault == Fault::DiskFull {
            PLAN.set(None);
        }
        Err(io::Error::from(io::ErrorKind::StorageFull))
    }
}

#[cfg(test)]
mod tests {
    use super::faults::Fault;
    use super::*;

    #[test]
    fn writes_whole_files_with_their_hash() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("a/b/file");
        create_folders(parent(&path)).expect("folders");
        let written = write_bytes(&path, b"abc").expect("write");
        assert_eq!(written.sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(written, hash_file(&path).expect("hash"));
        assert_eq!(written.sha256, sha256_hex(b"abc"));
        assert_eq!(list_folder(parent(&path)).expect("list"), ["file"]);
    }

    #[test]
    fn any_failure_leaves_the_old_or_the_new_file() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("file");
        for fault in [Fault::DiskFull, Fault::Killed] {
            for succeeding in 0.. {
                write_bytes(&path, b"old").expect("write");
                let (result, reached) = faults::with(succeeding, fault, || write_bytes(&path, b"newer"));
                let found = read_file(&path).expect("read");
                if !reached {
                    result.expect("nothing failed");
                    assert_eq!(found, b"newer");
                    assert!(succeeding >= 5, "create, write, sync, rename, sync of the folder");
                    break;
                }
                result.expect_err("the fault is reported");
                assert!(found == b"old" || found == b"newer", "{found:?}");
                if fault == Fault::DiskFull {
                    assert_eq!(list_folder(folder.path()).expect("list"), ["file"]);
                }
            }
        }
    }

    #[test]
    fn a_full_disk_is_said_in_one_sentence() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("file");
        std::os::unix::fs::symlink("/dev/full", temporary_path(&path)).expect("link");
        let error = write_bytes(&path, &[0; 9000]).expect_err("no space");
        let text = error.to_string();
        assert!(text.starts_with("can not write ") && text.contains("file.tmp (the disk is full"), "{text}");
        assert!(list_folder(folder.path()).expect("list").is_empty());
    }
}
