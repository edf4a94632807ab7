//! A run's folder: where its config, metrics, summary, log and checkpoints are.
//!
//! ```text
//! runs/NAME-N/
//!   config.toml     resolved          summary.json   at the end       checkpoint/   see checkpoint.rs
//!   metrics.jsonl   while it runs     log.txt        while it runs; log-1.txt, ... of other ranks
//! ```
//!
//! Invariants: a run never starts in a folder that holds anything; `config.toml` and `summary.json` are whole or absent; a
//! folder with a `config.toml` is a run. Under several ranks one of them makes and writes it.
//!
//! Absent: what the files mean (`summary.rs`, `metrics_log.rs`, the config).

use super::durable::{self, FileError, Operation};
use super::metrics_log::{MetricsError, MetricsLog};
use super::summary::Summary;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// A run folder that can not be made, found or read.
#[derive(Debug, Error)]
pub enum RunFolderError {
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The folder for a new run holds something.
    #[error("the output folder {} is not empty: name a new one with --out, or go on with --resume", path.display())]
    NotEmpty {
        /// The folder.
        path: PathBuf,
    },
    /// The path for a new run is a file.
    #[error("the output folder {} is a file: name another one with --out", path.display())]
    NotAFolder {
        /// The path.
        path: PathBuf,
    },
    /// A folder without a `config.toml`.
    #[error("{} is no run folder: it has no config.toml (`tidemill train` makes run folders)", path.display())]
    NotARun {
        /// The folder.
        path: PathBuf,
    },
    /// A run without a summary.
    #[error("the run {} has no summary.json: it has not ended, go on with `tidemill train --resume`", path.display())]
    NoSummary {
        /// The folder.
        path: PathBuf,
    },
    /// A file that is not text.
    #[error("{} is not valid UTF-8", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
    },
    /// A summary that can not be read.
    #[error("can not read {}", path.display())]
    Summary {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

/// The folder of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// Makes a folder for a new run: the given one, which must be absent or empty, or the next `runs/NAME-N`.
    ///
    /// # Errors
    /// If the given folder holds anything, or a folder can not be made.
    pub fn create(out: Option<&Path>, name: &str) -> Result<RunFolder, RunFolderError> {
        match out {
            Some(path) => RunFolder::create_at(path),
            None => RunFolder::create_numbered(Path::new("runs"), name),
        }
    }

    /// Makes the given folder, or takes it if it is empty.
    ///
    /// # Errors
    /// If it holds anything, is a file, or can not be made.
    pub fn create_at(path: &Path) -> Result<RunFolder, RunFolderError> {
        let path = path.to_path_buf();
        if path.is_dir() {
            if !durable::list_folder(&path)?.is_empty() {
                return Err(RunFolderError::NotEmpty { path });
            }
        } else if path.exists() {
            return Err(RunFolderError::NotAFolder { path });
        }
        durable::create_folders(&path)?;
        Ok(RunFolder { path })
    }

    /// Makes `NAME-N` in `root`, N one above the highest there; runs that start at once get different numbers.
    ///
    /// Characters of `name` other than letters, digits, `.`, `_`, `+` and `-` become `-`.
    ///
    /// # Errors
    /// If the folder can not be made.
    pub fn create_numbered(root: &Path, name: &str) -> Result<RunFolder, RunFolderError> {
        durable::create_folders(root)?;
        let name = plain_name(name);
        loop {
            let path = root.join(format!("{name}-{}", next_number(root, &name)?));
            match fs::create_dir(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(FileError::new(Operation::CreateFolder, &path, error).into()),
                Ok(()) => {
                    durable::sync_folder(root)?;
                    return Ok(RunFolder { path });
                }
            }
        }
    }

    /// Opens the folder of a run that exists.
    ///
    /// # Errors
    /// If it has no `config.toml`.
    pub fn open(path: &Path) -> Result<RunFolder, RunFolderError> {
        let folder = RunFolder { path: path.to_path_buf() };
        if folder.config_path().is_file() { Ok(folder) } else { Err(RunFolderError::NotARun { path: folder.path }) }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the resolved config is.
    pub fn config_path(&self) -> PathBuf {
        self.path.join("config.toml")
    }

    /// Where the metrics are.
    pub fn metrics_path(&self) -> PathBuf {
        self.path.join("metrics.jsonl")
    }

    /// Where the summary is.
    pub fn summary_path(&self) -> PathBuf {
        self.path.join("summary.json")
    }

    /// Where the checkpoints are.
    pub fn checkpoint_dir(&self) -> PathBuf {
        self.path.join("checkpoint")
    }

    /// Writes the resolved config, atomically.
    ///
    /// # Errors
    /// The file operation that failed.
    pub fn write_config(&self, toml: &str) -> Result<(), RunFolderError> {
        durable::write_bytes(&self.config_path(), toml.as_bytes())?;
        Ok(())
    }

    /// Reads the resolved config's text.
    ///
    /// # Errors
    /// If it can not be read or is not text.
    pub fn read_config(&self) -> Result<String, RunFolderError> {
        let path = self.config_path();
        String::from_utf8(durable::read_file(&path)?).map_err(|_| RunFolderError::NotText { path })
    }

    /// Writes the summary, atomically.
    ///
    /// # Errors
    /// The file operation that failed.
    pub fn write_summary(&self, summary: &Summary) -> Result<(), RunFolderError> {
        let path = self.summary_path();
        let mut text = serde_json::to_vec_pretty(summary)
            .map_err(|source| RunFolderError::Summary { path: path.clone(), source })?;
        text.push(b'\n');
        durable::write_bytes(&path, &text)?;
        Ok(())
    }

    /// Reads the summary.
    ///
    /// # Errors
    /// If the run has none, or it can not be read.
    pub fn read_summary(&self) -> Result<Summary, RunFolderError> {
        let path = self.summary_path();
        if !path.exists() {
            return Err(RunFolderError::NoSummary { path: self.path.clone() });
        }
        let bytes = durable::read_file(&path)?;
        serde_json::from_slice(&bytes).map_err(|source| RunFolderError::Summary { path, source })
    }

    /// Starts `metrics.jsonl`.
    ///
    /// # Errors
    /// As [`MetricsLog::create`].
    pub fn create_metrics(&self) -> Result<MetricsLog, MetricsError> {
        MetricsLog::create(&self.metrics_path())
    }

    /// Goes on with `metrics.jsonl` at a checkpoint's offset.
    ///
    /// # Errors
    /// As [`MetricsLog::resume`].
    pub fn resume_metrics(&self, offset: u64) -> Result<MetricsLog, MetricsError> {
        MetricsLog::resume(&self.metrics_path(), offset)
    }
}

fn plain_name(name: &str) -> String {
    let plain = |c: char| {
        if c.is_alphanumeric() || "._+-".contains(c) { c } else { '-' }
    };
    let name: String = name.chars().map(plain).collect();
    let name = name.trim_start_matches('.');
    if name.is_empty() { "run".to_string() } else { name.to_string() }
}

fn next_number(root: &Path, name: &str) -> Result<u64, FileError> {
    let number = |entry: &String| entry.strip_prefix(name)?.strip_prefix('-')?.parse::<u64>().ok();
    let highest = durable::list_folder(root)?.iter().filter_map(number).max();
    Ok(highest.map_or(1, |n| n.saturating_add(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(folder: &RunFolder) -> String {
        folder.path().file_name().expect("a name").to_string_lossy().into_owned()
    }

    #[test]
    fn numbers_runs_by_name() {
        let root = tempfile::tempdir().expect("folder");
        let create = |name: &str| RunFolder::create_numbered(&root.path().join("runs"), name).expect("create");
        assert_eq!(
            ["wiki", "wiki", "wiki-small", "wiki"].map(|n| name(&create(n))),
            ["wiki-1", "wiki-2", "wiki-small-1", "wiki-3"]
        );
        fs::create_dir(root.path().join("runs/wiki-9")).expect("folder");
        fs::remove_dir(root.path().join("runs/wiki-2")).expect("remove");
        assert_eq!(name(&create("wiki")), "wiki-10");
        assert_eq!(name(&create("../my run+lr=1e-3")), "-my-run+lr-1e-3-1");
    }

    #[test]
    fn runs_that_start_at_once_get_different_folders() {
        let root = tempfile::tempdir().expect("folder");
        let create = || name(&RunFolder::create_numbered(root.path(), "grid").expect("create"));
        let mut names: Vec<String> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(create)).collect();
            threads.into_iter().map(|thread| thread.join().expect("thread")).collect()
        });
        names.sort();
        assert_eq!(names, (1..=8).map(|n| format!("grid-{n}")).collect::<Vec<_>>());
    }

    #[test]
    fn refuses_folders_that_hold_something() {
        let root = tempfile::tempdir().expect("folder");
        let path = root.path().join("a/b");
        let folder = RunFolder::create(Some(&path), "x").expect("made with those above it");
        RunFolder::create(Some(&path), "x").expect("empty is fine");
        assert!(matches!(RunFolder::open(&path), Err(RunFolderError::NotARun { .. })));
        folder.write_config("seed = 1\n").expect("write");
        let error = RunFolder::create(Some(&path), "x").expect_err("holds a run");
        assert!(error.to_string().contains("a/b is not empty"), "{error}");
        let error = RunFolder::create(Some(&folder.config_path()), "x").expect_err("a file");
        assert!(matches!(error, RunFolderError::NotAFolder { .. }));
        assert_eq!(RunFolder::open(&path).expect("a run").read_config().expect("read"), "seed = 1\n");
    }

    #[test]
    fn summary_comes_back_and_absence_is_explained() {
        let root = tempfile::tempdir().expect("folder");
        let folder = RunFolder::create_at(root.path()).expect("empty");
        assert!(matches!(folder.read_summary(), Err(RunFolderError::NoSummary { .. })));
        let summary = Summary { seed: u64::MAX, train_events_per_s: 0.1 + 0.2, ..Summary::default() };
        folder.write_summary(&summary).expect("write");
        let back = folder.read_summary().expect("read");
        assert_eq!((back.seed, back.train_events_per_s.to_bits()), (u64::MAX, (0.1f64 + 0.2).to_bits()));
        assert_eq!(durable::list_folder(root.path()).expect("list"), ["summary.json"]);
    }
}
