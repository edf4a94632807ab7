//! `tidemill eval`: scores a run again.

use super::{print, table};
use crate::comms::Launch;
use crate::config::Config;
use crate::device;
use crate::error::Result;
use crate::trainer::Trainer;
use std::path::PathBuf;

/// Score a finished run again, with its best state.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tidemill eval runs/wikipedia-tgn-1
  tidemill eval runs/wikipedia-tgn-1 --split val --set eval.candidates=all_nodes")]
pub(super) struct Args {
    /// The run's folder
    #[arg(value_name = "RUN_DIR")]
    pub(super) run: PathBuf,

    /// Which events to score
    #[arg(long, value_enum, default_value_t = Split::Test)]
    pub(super) split: Split,

    /// Overrides one key of the run's configuration, as in eval.candidates=all_nodes; may be given many times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(super) set: Vec<String>,

    /// Prints results and errors only
    #[arg(long)]
    pub(super) quiet: bool,
}

/// The events to score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Split {
    /// The validation split.
    Val,
    /// The test split, after the validation events have passed through the state.
    Test,
}

/// Runs the command.
pub(super) fn run(args: Args) -> Result<()> {
    Launch::from_env()?.require_alone()?;
    device::passive_wait();
    let config = Config::rescore(&args.run.join("config.toml"), &args.set)?;
    let name = config.name();
    let mut trainer = Trainer::new(config)?;
    trainer.open_best(&args.run)?;
    let (val, test) = trainer.score_best(args.split == Split::Test)?;
    let rows = [("val", Some(&val)), ("test", test.as_ref())];
    let shown = &rows[usize::from(args.split == Split::Test)..][..1];
    print(&format!("{} as {name}\n{}", args.run.display(), table::splits_table(shown)))
}
