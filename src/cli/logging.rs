//! Where log lines go: rank 0's to standard error, every rank's to a file in the run folder, `log.txt` or `log-RANK.txt`.
//!
//! Lines from before the run folder is known are kept and written then. A log that can not be written ends no run.

use crate::comms::Launch;
use crate::error::{Error, Result};
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

/// Lines kept until the file is known; commands without a run folder stop keeping them here.
const KEPT_BYTES: usize = 64 << 10;

/// The file of this process, or what is to be written to it.
static LOG: Mutex<Log> = Mutex::new(Log::Kept(Vec::new()));

enum Log {
    Kept(Vec<u8>),
    File(File),
}

/// Sends log lines to standard error (warnings if `quiet`, else notices too, errors alone on ranks other than 0; `RUST_LOG`
/// overrides that) and keeps notices for the run's log.
pub fn start_logging(quiet: bool) {
    let level = match Launch::from_env().unwrap_or(Launch::ALONE) {
        Launch { rank: 0, .. } if quiet => "warn",
        Launch { rank: 0, .. } => "info",
        _ => "error",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let console = fmt::layer().with_writer(io::stderr).with_ansi(io::stderr().is_terminal());
    let console = console.with_target(false).without_time().with_filter(filter);
    let file = fmt::layer().with_writer(|| ToLog).with_ansi(false).with_target(false).with_filter(LevelFilter::INFO);
    // Fails only where a program that uses the library has set up logging of its own.
    let _ = tracing_subscriber::registry().with(console).with(file).try_init();
}

/// From now on, and with the lines kept so far, this rank's log is in the run folder; a resumed run goes on in the same file.
///
/// # Errors
/// The file can not be opened or written.
pub fn log_to(folder: &Path, rank: usize) -> Result<()> {
    let path = log_path(folder, rank);
    let mut file = OpenOptions::new().create(true).append(true).open(&path).map_err(Error::io("write", &path))?;
    let (version, process) = (env!("CARGO_PKG_VERSION"), std::process::id());
    writeln!(file, "tidemill {version}, rank {rank}, process {process}").map_err(Error::io("write", &path))?;
    let mut log = lock();
    if let Log::Kept(lines) = &*log {
        file.write_all(lines).map_err(Error::io("write", &path))?;
    }
    *log = Log::File(file);
    Ok(())
}

/// A rank's log.
fn log_path(folder: &Path, rank: usize) -> PathBuf {
    folder.join(if rank == 0 { "log.txt".to_owned() } else { format!("log-{rank}.txt") })
}

/// Writes the command's error to the log, as it is told on standard error.
pub fn log_error(error: &Error) {
    let _ = writeln!(ToLog, "ERROR {}", error.sentence());
}

fn lock() -> std::sync::MutexGuard<'static, Log> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes to the log of this process.
struct ToLog;

impl Write for ToLog {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match &mut *lock() {
            Log::File(file) => file.write(line),
            Log::Kept(lines) => {
                if lines.len() + line.len() <= KEPT_BYTES {
                    lines.extend_from_slice(line);
                }
                Ok(line.len())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut *lock() {
            Log::File(file) => file.flush(),
            Log::Kept(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_from_before_the_run_folder_are_in_its_log() {
        let folder = tempfile::tempdir().expect("a folder");
        writeln!(ToLog, "early").expect("kept");
        std::fs::write(folder.path().join("log-2.txt"), "of the run before\n").expect("written");
        log_to(folder.path(), 2).expect("opened");
        log_error(&Error::Usage { problem: "late".to_owned(), mend: "hurry".to_owned() });
        let text = std::fs::read_to_string(folder.path().join("log-2.txt")).expect("the log");
        // Other tests of this process may log too.
        assert!(
            text.starts_with("of the run before\n") && text.contains("early\n") && text.contains("ERROR late; hurry\n"),
            "{text}"
        );
        assert_eq!(log_path(folder.path(), 0), folder.path().join("log.txt"));
    }
}
