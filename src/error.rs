//! The crate's error and what it means for the exit code.
//!
//! Errors of the crates below are wrapped, never flattened: `main` prints the whole chain as one sentence.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// Everything that can end a command.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An event stream or a file of events that can not be used.
    #[error(transparent)]
    Data(#[from] tidemill_data::Error),

    /// A model that can not be built or run.
    #[error(transparent)]
    Models(#[from] tidemill_models::Error),

    /// Metrics that can not be written or read.
    #[error(transparent)]
    Metrics(#[from] crate::trainer::metrics_log::MetricsError),

    /// A checkpoint of another configuration or another stream than the run it is asked to go on with.
    #[error("the checkpoint in {} is of another configuration or another stream; restore config.toml and the data as they were, or start a new run", folder.display())]
    OtherRun {
        /// The run's folder.
        folder: PathBuf,
    },

    /// A checkpoint without what this program needs.
    #[error(
        "the checkpoint's {name} {problem}: it was written by another program or is damaged; resume from an older one"
    )]
    Damaged {
        /// The array or value.
        name: String,
        /// What is wrong with it.
        problem: String,
    },

    /// libtorch refused an operation.
    #[error("libtorch failed {doing}")]
    Torch {
        /// What was being done, as in "while saving the optimizer's state".
        doing: String,
        /// libtorch's own error.
        source: tch::TchError,
    },

    /// A file or folder that can not be read or written.
    #[error("can not {doing} {}", path.display())]
    Io {
        /// The verb: "read", "write", "create".
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },

    /// A configuration file that is no TOML.
    #[error("{}, line {line}: {message}", path.display())]
    Toml {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// The parser's words.
        message: String,
    },

    /// A configuration key that can not be used.
    #[error(transparent)]
    Config(Box<ConfigError>),

    /// The command line asks for something impossible.
    #[error("{problem}; {mend}")]
    Usage {
        /// What is wrong.
        problem: String,
        /// What to do instead.
        mend: String,
    },

    /// The device that was asked for can not be used.
    #[error("{problem}; {mend}")]
    Device {
        /// What is wrong.
        problem: String,
        /// What to do instead.
        mend: String,
    },

    /// A run folder that can not be made, found or read.
    #[error(transparent)]
    RunFolder(#[from] crate::trainer::run_folder::RunFolderError),

    /// A checkpoint that can not be written or read.
    #[error(transparent)]
    Checkpoint(#[from] crate::trainer::checkpoint::CheckpointError),

    /// A checkpoint's content that does not fit the run.
    #[error(transparent)]
    Archive(#[from] crate::trainer::archive::ArchiveError),

    /// A score that is infinite or not a number.
    #[error(transparent)]
    Score(#[from] crate::eval::NonFiniteScore),

    /// A loss or gradient that is infinite or not a number; the state is the one before this batch.
    #[error(
        "the {what} is not finite in epoch {epoch}, batch {batch}; the state before that batch is kept, try a smaller train.lr or set train.clip_norm"
    )]
    NonFinite {
        /// The epoch, from 1.
        epoch: u32,
        /// The batch within the epoch, from 0.
        batch: usize,
        /// "loss" or "gradient".
        what: &'static str,
    },

    /// The same while ranks step apart (`gradient.mode = "racom"`): they stand at different batches.
    #[error(
        "the {what} is not finite in epoch {epoch}, batch {batch}; try a smaller train.lr or set train.clip_norm; a checkpoint from before it, if the run made one, is kept"
    )]
    NonFiniteApart {
        /// The epoch, from 1.
        epoch: u32,
        /// The batch within the epoch, from 0.
        batch: usize,
        /// "loss" or "gradient".
        what: &'static str,
    },

    /// Ended by a signal after a checkpoint.
    #[error("stopped on request in epoch {epoch} after {batch} batches; go on with: tidemill train --resume {}", run.display())]
    Stopped {
        /// The epoch, from 1.
        epoch: u32,
        /// Batches of the epoch that are done.
        batch: usize,
        /// The run's folder.
        run: PathBuf,
    },

    /// Runs of a sweep failed; the others are done.
    #[error(
        "{failed} of {runs} runs failed, the first of them {first}: {problem}; mend what it names and start the same sweep again, which keeps the finished runs"
    )]
    Sweep {
        /// Runs that failed.
        failed: usize,
        /// Runs in all.
        runs: usize,
        /// The first one's folder.
        first: String,
        /// Its error.
        problem: String,
    },

    /// A sweep ended by a signal, its running runs after a checkpoint.
    #[error("stopped on request; the same sweep goes on from {} when it is started again", folder.display())]
    SweepStopped {
        /// The sweep's folder.
        folder: PathBuf,
    },

    /// A rank is gone or failed, and with it the run.
    #[error("rank {rank} {loss}")]
    PeerLost {
        /// The rank, from 0.
        rank: usize,
        /// How it was lost.
        loss: Loss,
    },

    /// A message of a pass that this rank has ended.
    #[error("a message from rank {from} is no longer waited for: the pass has ended")]
    MessageClosed {
        /// Its sender.
        from: usize,
    },

    /// Several ranks were started, or MPI was asked for and can not be had.
    #[error("{problem}; {mend}")]
    Comms {
        /// What is wrong.
        problem: String,
        /// What to do instead.
        mend: String,
    },
}

impl Error {
    /// Wraps an error of the file system with what was done to which path; for `map_err`.
    pub fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error + use<> {
        let path = path.to_path_buf();
        move |source| Error::Io { doing, path, source }
    }

    /// 1 for a failed run, 2 for bad input (usage, configuration, data), 3 when stopped on request.
    pub fn exit_code(&self) -> u8 {
        use crate::trainer::run_folder::RunFolderError as Folder;
        match self {
            Error::RunFolder(Folder::File(_)) => 1,
            Error::Data(tidemill_data::Error::Io { source, .. })
                if source.kind() == std::io::ErrorKind::StorageFull =>
            {
                1
            }
            Error::Data(_)
            | Error::Toml { .. }
            | Error::Config(_)
            | Error::Usage { .. }
            | Error::RunFolder(_)
            | Error::OtherRun { .. } => 2,
            Error::Device { .. } | Error::Models(tidemill_models::Error::InvalidConfig { .. }) => 2,
            Error::Io { doing: "read", source, .. } if source.kind() == std::io::ErrorKind::NotFound => 2,
            Error::Stopped { .. } | Error::SweepStopped { .. } => 3,
            Error::PeerLost { loss: Loss::Failed { exit_code, .. }, .. } => *exit_code,
            _ => 1,
        }
    }

    /// The error and its causes as one sentence.
    pub fn sentence(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            let words = error.to_string();
            if !text.contains(&words) {
                text = format!("{text}: {words}");
            }
            cause = error.source();
        }
        text.replace('\n', " ")
    }
}

/// How a rank was lost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Loss {
    /// It told the others of its error.
    Failed {
        /// The error's sentence.
        sentence: String,
        /// What the rank's process ends with.
        exit_code: u8,
    },
    /// One of its threads panicked.
    Panicked,
    /// Its part of the program ended without a word.
    Dropped,
    /// It finished although another rank still waited for a message of its.
    Departed,
    /// It gave no sign of life for so long.
    Silent {
        /// The time.
        seconds: f64,
    },
    /// MPI can not reach it.
    Unreachable {
        /// MPI's own words.
        problem: String,
    },
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const RESUME: &str = "go on with: tidemill train --resume RUN";
        match self {
            Loss::Failed { sentence, .. } => write!(f, "failed: {sentence}"),
            Loss::Panicked => write!(f, "panicked; its own messages say where"),
            Loss::Dropped => write!(f, "ended before the run did; its own messages say why"),
            Loss::Departed => write!(f, "finished before the other ranks did; its own messages say why"),
            Loss::Silent { seconds } => {
                write!(f, "gave no sign of life for {seconds:.1} s; see to its host, then {RESUME}")
            }
            Loss::Unreachable { problem } => {
                write!(f, "can not be reached ({problem}); see to its host, then {RESUME}")
            }
        }
    }
}

/// A configuration key that can not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}{key}{fault}")]
pub struct ConfigError {
    /// Where the value was set.
    pub origin: Origin,
    /// The full key, such as `train.batch_size`.
    pub key: String,
    /// What is wrong and how to mend it.
    pub fault: Fault,
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Error {
        Error::Config(Box::new(error))
    }
}

/// Where a configuration value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A line of a TOML file, from 1.
    Line(PathBuf, usize),
    /// `--set` on the command line.
    Set,
    /// The preset; also values set by a program.
    Preset,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Line(path, line) => write!(f, "{}, line {line}: ", path.display()),
            Origin::Set => f.write_str("--set "),
            Origin::Preset => Ok(()),
        }
    }
}

/// What is wrong with a configuration key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No such key; the nearest one, if any is near.
    Unknown {
        /// A key that exists.
        nearest: Option<String>,
    },
    /// A value of the wrong type or outside its words.
    Type {
        /// The reader's words.
        message: String,
    },
    /// A value that is impossible by itself or beside others.
    Impossible {
        /// The value as TOML.
        value: String,
        /// Why it can not be.
        problem: String,
        /// What to set instead.
        mend: String,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Unknown { nearest: Some(key) } => write!(f, " is no key; the nearest one is {key}"),
            Fault::Unknown { nearest: None } => {
                f.write_str(" is no key, nor near to one; the config.toml of any run folder holds every key")
            }
            Fault::Type { message } => write!(f, ": {message}"),
            Fault::Impossible { value, problem, mend } if problem.is_empty() => write!(f, " = {value}: {mend}"),
            Fault::Impossible { value, problem, mend } => write!(f, " = {value}: {problem}; {mend}"),
        }
    }
}
