//! The command line: one file per command. Results go to standard output, everything else to standard error.

mod bench;
mod check;
mod convert;
mod eval;
mod generate;
mod inspect;
mod logging;
mod partition;
mod progress;
mod sweep;
mod table;
mod train;

pub use logging::{log_error, log_to, start_logging};

use crate::config::Config;
use crate::error::{Error, Result};
use clap::{Parser, Subcommand};
use progress::Progress;
use std::io::Write;
use std::path::{Path, PathBuf};
use tidemill_data::dataset::DataConfig;
use tidemill_data::stream::EventStream;
use tidemill_data::{Fault, FaultKind, Watch};

/// Trains memory-based temporal graph neural networks on event streams.
#[derive(Debug, Parser)]
#[command(
    name = "tidemill",
    version,
    arg_required_else_help = true,
    after_help = "\
Example:
  tidemill generate events.arrow --events 20000 --nodes 2000
  tidemill train experiments/quickstart.toml --set data.path=events.arrow

Exit codes: 0 done, 1 the run failed, 2 bad input (usage, configuration, data), 3 stopped on request after a checkpoint."
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Train(train::Args),
    Eval(eval::Args),
    Inspect(inspect::Args),
    Check(check::Args),
    Convert(convert::Args),
    Generate(generate::Args),
    Partition(partition::Args),
    Sweep(sweep::Args),
    Bench(bench::Args),
}

impl Cli {
    /// Whether only results and errors are wanted.
    pub fn quiet(&self) -> bool {
        match &self.command {
            Command::Train(args) => args.quiet,
            Command::Eval(args) => args.quiet,
            Command::Convert(args) => args.quiet,
            Command::Generate(args) => args.quiet,
            Command::Sweep(args) => args.quiet,
            Command::Inspect(_) | Command::Check(_) | Command::Partition(_) | Command::Bench(_) => false,
        }
    }

    /// Runs the command.
    ///
    /// # Errors
    /// Whatever ends it; [`Error::exit_code`] says how.
    pub fn run(self) -> Result<()> {
        match self.command {
            Command::Train(args) => train::run(args),
            Command::Eval(args) => eval::run(args),
            Command::Inspect(args) => inspect::run(&args),
            Command::Check(args) => check::run(&args),
            Command::Convert(args) => convert::run(&args),
            Command::Generate(args) => generate::run(&args),
            Command::Partition(args) => partition::run(&args),
            Command::Sweep(args) => sweep::run(&args),
            Command::Bench(args) => bench::run(&args),
        }
    }
}

/// How a command's file is read.
#[derive(Debug, clap::Args)]
struct ReadArgs {
    /// Sets a key of [data], as in data.columns.src=buyer or data.tick=ms; may be given many times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl ReadArgs {
    /// The `[data]` table for a file.
    fn config(&self, path: &Path) -> Result<DataConfig> {
        Config::data(path, &self.set)
    }

    /// Reads a stream; what the reader notices is logged. A stream of ours is read whole and held against its hash.
    ///
    /// * `scratch`: folder for features that do not fit memory.
    fn load(&self, path: &Path, scratch: Option<PathBuf>, quiet: bool) -> Result<EventStream> {
        let config = self.config(path)?;
        let mut bar = Progress::new(path, quiet);
        let mut notice = |notice: String| tracing::info!("{notice}");
        let watch = Watch { notice: &mut notice, progress: &mut |read, of| bar.at(read, of), scratch };
        let stream = tidemill_data::load_watched(&config, watch)?;
        bar.finish();
        if stream.verify() {
            Ok(stream)
        } else {
            Err(tidemill_data::Error::from(Fault::of_file(path, FaultKind::HashMismatch)).into())
        }
    }
}

/// Refuses to write over a file that exists.
fn refuse_existing(path: &Path) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    Err(Error::Usage {
        problem: format!("{} exists already", path.display()),
        mend: "remove it or name another file".to_owned(),
    })
}

/// Writes to standard output; a reader that left early (`| head`) is no error.
fn print(text: &str) -> Result<()> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::Io { doing: "write to", path: "standard output".into(), source: error })
        }
        _ => Ok(()),
    }
}
