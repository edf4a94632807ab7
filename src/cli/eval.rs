//! `tidemill eval`: scores a run again.

use super::{print, table};
use crate::comms::Launch;
use crate::config::Config;
use crate::device;
use crate::error::Result;
use crate::trainer::Trainer;
use crate::trainer::run_folder::RunFolder;
use std::path::PathBuf;

/// Score a finished run again, with its best state.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tidemill eval runs/wikipedia-tgn-1
  tidemill eval runs/wikipedia-tgn-1 --split val --set eval.candidates=all_nodes
  tidemill eval runs/wikipedia-tgn-1 --set eval.negatives=historical
  tidemill eval runs/wikipedia-tgn-1 --task node-classification --seeds 5")]
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

    /// What to predict; node classification is written into the run's summary.json
    #[arg(long, value_enum, default_value_t = Task::LinkPrediction)]
    pub(super) task: Task,

    /// Classifiers of nodes to train, each from a seed of its own, counted up from the run's
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) seeds: u32,

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

/// What is predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Task {
    /// Whom a source meets.
    LinkPrediction,
    /// The state of a source, as the events' labels tell it.
    NodeClassification,
}

/// Runs the command.
pub(super) fn run(args: Args) -> Result<()> {
    Launch::from_env()?.require_alone()?;
    device::passive_wait();
    let config = Config::rescore(&args.run.join("config.toml"), &args.set)?;
    let name = config.name();
    let mut trainer = Trainer::new(config)?;
    trainer.open_best(&args.run)?;
    if args.task == Task::NodeClassification {
        return classify(&mut trainer, &args, &name);
    }
    let (val, test) = trainer.score_best(args.split == Split::Test)?;
    let rows = [("val", Some(&val)), ("test", test.as_ref())];
    let shown = &rows[usize::from(args.split == Split::Test)..][..1];
    print(&format!("{} as {name}\n{}", args.run.display(), table::splits_table(shown)))
}

fn classify(trainer: &mut Trainer, args: &Args, name: &str) -> Result<()> {
    let result = trainer.classify_nodes(args.seeds)?;
    let folder = RunFolder::open(&args.run)?;
    let mut summary = folder.read_summary()?;
    summary.node_classification = Some(result.clone());
    folder.write_summary(&summary)?;
    print(&format!("{} as {name}\n{}", args.run.display(), table::node_classification(&result)))
}
