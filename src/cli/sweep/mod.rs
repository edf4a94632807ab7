//! `tidemill sweep`: a grid of configurations, each of some seeds, a run folder each, and one table of them all.
//!
//! The folder says how far a sweep is: a run with a summary is finished, one with a checkpoint goes on, any other begins anew. Each
//! run is a process of its own, so none leaves anything to the next. Deliberately absent: choosing the next point by the results
//! so far.

mod grid;
mod runs;
mod table;

use super::{print, train};
use crate::comms::Launch;
use crate::config::Config;
use crate::device;
use crate::error::{Error, Result};
use crate::trainer::durable;
use crate::trainer::signals::StopRequest;
use grid::{Axis, Planned};
use runs::{Ended, Jobs};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use table::Column;

/// Train every combination of some settings, each with some seeds, and put the results in one table.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A sweep that was stopped goes on when it is started again: finished runs are kept, half ones go on from their checkpoints.

Examples:
  tidemill sweep experiments/wikipedia-tgn.toml --set train.lr=1e-4,3e-4 --set train.batch_size=200,600 --seeds 3
  tidemill sweep my.toml --set 'sampler.neighbors=[10],[10,10]' --set train.epochs=5 --jobs 2 --out sweeps/neighbors
  tidemill sweep my.toml --set partition.strategy=hash,fennel --ranks 4 --columns test.ap,comm.bytes_total,stages.state.network_s")]
pub(super) struct Args {
    /// Configuration file; a preset and what differs from it
    #[arg(value_name = "CONFIG.toml")]
    config: PathBuf,

    /// A key and its values, parted by commas, as in train.lr=1e-4,3e-4; commas in quotes and brackets part nothing. One value
    /// sets the key in all runs
    #[arg(long = "set", value_name = "KEY=VALUE,...")]
    set: Vec<String>,

    /// Runs of each combination, with seeds counted up from the configuration's
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    seeds: u32,

    /// Runs at once; the cores are shared evenly among them
    #[arg(long, value_name = "J", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: u16,

    /// Ranks of each run, as threads of its process
    #[arg(long, value_name = "P", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    ranks: u16,

    /// The sweep's folder [default: sweeps/NAME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Columns of the table: places in summary.json, as test.ap, epochs.last.loss, epochs.mean.seconds or stages.state.busy_s
    #[arg(long, value_name = "PATH,...", value_delimiter = ',')]
    columns: Vec<String>,

    /// Prints the table and errors only
    #[arg(long)]
    pub(super) quiet: bool,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> Result<()> {
    Launch::from_env()?.require_alone()?;
    device::passive_wait(); // the runs inherit its settings, and need not start twice
    let axes = args.set.iter().map(|set| Axis::parse(set)).collect::<Result<Vec<_>>>()?;
    let planned = grid::plan(&args.config, &axes, args.seeds)?;
    let name = train::run_name(&args.config);
    let folder = args.out.clone().unwrap_or_else(|| Path::new("sweeps").join(name));
    runs::refuse_others(&folder, &planned, usize::from(args.ranks))?;
    durable::create_folders(&folder).map_err(crate::trainer::run_folder::RunFolderError::from)?;
    let stop = StopRequest::on_signals(false).map_err(|source| Error::Io {
        doing: "catch signals for",
        path: PathBuf::from("this process"),
        source,
    })?;
    let jobs = Jobs {
        config: args.config.clone(),
        folder: folder.clone(),
        at_once: usize::from(args.jobs),
        ranks: usize::from(args.ranks),
        quiet: args.quiet,
        stop,
    };
    let ended = jobs.run(&planned)?;
    report(args, &axes, &planned, &ended, &folder)
}

/// The table on standard output and in the sweep's folder; an error if not every run is there.
fn report(args: &Args, axes: &[Axis], planned: &[Planned], ended: &[Ended], folder: &Path) -> Result<()> {
    let columns: Vec<Column> = match &args.columns[..] {
        [] => Column::usual(ended),
        given => given.iter().map(|path| Column::new(path)).collect(),
    };
    for column in columns.iter().filter(|column| !column.is_in_any(ended)) {
        tracing::warn!("no run's summary.json has `{}`: its column is empty", column.0);
    }
    let swept: Vec<&str> = axes.iter().filter(|axis| axis.values.len() > 1).map(|axis| axis.key.as_str()).collect();
    let markdown = table::markdown(&swept, &columns, planned, ended);
    let write = |name: &str, text: &str| {
        durable::write_bytes(&folder.join(name), text.as_bytes())
            .map(drop)
            .map_err(crate::trainer::run_folder::RunFolderError::from)
    };
    write("sweep.md", &markdown)?;
    write("sweep.csv", &table::csv(&swept, &columns, planned, ended))?;
    write("runs.csv", &table::runs_csv(&swept, &columns, planned, ended))?;
    print(&markdown)?;
    let failed: Vec<usize> = (0..ended.len()).filter(|&run| matches!(ended[run], Ended::Failed(_))).collect();
    if ended.iter().any(|ended| matches!(ended, Ended::Open)) {
        return Err(Error::SweepStopped { folder: folder.to_owned() });
    }
    match failed.first() {
        Some(&first) => {
            let Ended::Failed(problem) = &ended[first] else { unreachable!("as filtered") };
            let (failed, runs) = (failed.len(), ended.len());
            Err(Error::Sweep { failed, runs, first: planned[first].name.clone(), problem: problem.clone() })
        }
        None => Ok(()),
    }
}

/// Whether a finished or half run is the planned one: the same values, but for the number of threads and what the run has
/// measured by itself.
fn same_run(there: &Config, planned: &Config) -> bool {
    let mut there = Config { threads: planned.threads, ..there.clone() };
    let (written, given) = (&mut there.calibration, &planned.calibration);
    for (written, given) in [
        (&mut written.latency_s, given.latency_s),
        (&mut written.bytes_per_s, given.bytes_per_s),
        (&mut written.update_s, given.update_s),
    ] {
        *written = if given == 0.0 { 0.0 } else { *written };
    }
    there == *planned
}

/// Names that occur more than once.
fn repeated(names: impl Iterator<Item = String>) -> Option<String> {
    let mut seen = BTreeSet::new();
    let mut names = names;
    names.find(|name| !seen.insert(name.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_known_by_its_values() {
        let planned = Config::default();
        let mut there = Config { threads: 7, ..planned.clone() };
        there.calibration.latency_s = 1e-5;
        assert!(same_run(&there, &planned));
        let given = there.clone();
        there.calibration.latency_s = 2e-5;
        assert!(!same_run(&there, &given), "it was given, not measured");
        there = planned.clone();
        there.train.epochs += 1;
        assert!(!same_run(&there, &planned));
        assert_eq!(repeated(["a", "b", "a"].map(String::from).into_iter()), Some("a".to_owned()));
        assert_eq!(repeated(["a", "b"].map(String::from).into_iter()), None);
    }
}
