//! `tidemill train`: from a configuration to a trained model in a run folder.

use super::{log_to, print, table};
use crate::comms::Launch;
use crate::config::Config;
use crate::device;
use crate::error::{Error, Result};
use crate::trainer::signals::StopRequest;
use crate::trainer::{Console, Trainer};
use std::path::{Path, PathBuf};

/// Train and evaluate a model; results go to standard output and to a run folder.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tidemill train experiments/wikipedia-tgn.toml --set data.path=wikipedia.csv.gz --set train.epochs=5
  tidemill train --resume runs/wikipedia-tgn-1")]
pub(super) struct Args {
    /// Configuration file; a preset and what differs from it
    #[arg(value_name = "CONFIG.toml", required_unless_present = "resume", conflicts_with = "resume")]
    pub(super) config: Option<PathBuf>,

    /// Overrides one key of the configuration, as in train.batch_size=600; may be given many times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(super) set: Vec<String>,

    /// Run folder to make [default: runs/NAME-N]; one that holds anything is refused
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    pub(super) out: Option<PathBuf>,

    /// Goes on with a run; only epochs, patience, logging and threads may be set anew
    #[arg(long, value_name = "RUN_DIR")]
    pub(super) resume: Option<PathBuf>,

    /// Writes what each stage did when, as a Chrome trace (open it in Perfetto or chrome://tracing)
    #[arg(long, value_name = "FILE.json")]
    pub(super) trace: Option<PathBuf>,

    /// Prints results and errors only
    #[arg(long)]
    pub(super) quiet: bool,
}

/// Runs the command.
pub(super) fn run(args: Args) -> Result<()> {
    let launch = Launch::from_env()?;
    launch.require_alone()?;
    device::passive_wait();
    let config = match (&args.resume, &args.config) {
        (Some(folder), _) => Config::resume(&folder.join("config.toml"), &args.set)?,
        (None, Some(path)) => Config::load(path, &args.set)?,
        (None, None) => {
            return Err(Error::Usage {
                problem: "there is no configuration".to_owned(),
                mend: "name a file, as in tidemill train experiments/quickstart.toml".to_owned(),
            });
        }
    };
    if let Some(path) = &args.trace {
        std::fs::write(path, "").map_err(Error::io("write", path))?; // a path that can not be written is told at once
    }
    let stop = StopRequest::on_signals(false).map_err(|source| Error::Io {
        doing: "catch signals for",
        path: PathBuf::from("this process"),
        source,
    })?;
    let console = Console { quiet: args.quiet, stop };
    let name = args.config.as_deref().map(run_name).unwrap_or_default();
    let mut trainer = Trainer::new(config)?;
    match &args.resume {
        Some(folder) => trainer.resume_run(folder, console)?,
        None => trainer.start_run(args.out.as_deref(), &name, console)?,
    }
    log_to(trainer.run_folder().expect("the run has a folder"), launch.rank)?;
    device::hint_at_cores(launch);
    if args.trace.is_some() {
        trainer.keep_trace();
    }
    let summary = trainer.fit()?;
    if let Some(path) = &args.trace {
        trainer.write_trace(path)?;
    }
    let folder = trainer.run_folder().expect("the run has a folder");
    print(&table::of(&summary, folder))
}

/// A run is named after its configuration file.
fn run_name(config: &Path) -> String {
    config.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}
