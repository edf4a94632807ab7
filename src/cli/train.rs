//! `tidemill train`: from a configuration to a trained model in a run folder.

use super::{log_to, print, table};
use crate::comms::{Communicator, Launch, together};
use crate::config::Config;
use crate::device;
use crate::error::{Error, Result};
use crate::trainer::distance::Baseline;
use crate::trainer::signals::StopRequest;
use crate::trainer::{Console, Trainer};
use std::path::{Path, PathBuf};

/// Train and evaluate a model; results go to standard output and to a run folder.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tidemill train experiments/wikipedia-tgn.toml --set data.path=wikipedia.csv.gz --set train.epochs=5
  tidemill train --resume runs/wikipedia-tgn-1
  tidemill train my.toml --ranks 4 --set partition.strategy=hash --baseline runs/my-1")]
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

    /// Goes on with a run; only epochs, patience, logging and threads may be set anew; the number of ranks may be another
    #[arg(long, value_name = "RUN_DIR")]
    pub(super) resume: Option<PathBuf>,

    /// A finished run over the same data, usually the exact one: the result says how far this run is from it
    #[arg(long, value_name = "RUN_DIR")]
    pub(super) baseline: Option<PathBuf>,

    /// Writes what each stage did when, as a Chrome trace (open it in Perfetto or chrome://tracing)
    #[arg(long, value_name = "FILE.json")]
    pub(super) trace: Option<PathBuf>,

    /// Ranks in this one process, as threads; several processes are started with mpirun
    #[arg(long, value_name = "P", default_value_t = 1)]
    pub(super) ranks: usize,

    /// Prints results and errors only
    #[arg(long)]
    pub(super) quiet: bool,
}

/// Runs the command: alone, on one of the ranks that mpirun started, or on ranks of its own.
pub(super) fn run(args: Args) -> Result<()> {
    let launch = Launch::from_env()?;
    device::passive_wait();
    let config = config(&args)?;
    let baseline = args.baseline.as_deref().filter(|_| launch.rank == 0).map(Baseline::open).transpose()?;
    if let Some(path) = args.trace.as_ref().filter(|_| launch.rank == 0) {
        std::fs::write(path, "").map_err(Error::io("write", path))?; // a path that can not be written is told at once
    }
    let stop = StopRequest::on_signals(launch.world > 1).map_err(|source| Error::Io {
        doing: "catch signals for",
        path: PathBuf::from("this process"),
        source,
    })?;
    if args.ranks != 1 {
        return on_threads((&args, baseline.as_ref()), launch, config, &stop);
    }
    let comm = config.comm.clone();
    together(&comm, |comm| {
        on_rank((&args, baseline.as_ref()), config, comm.clone(), Console { quiet: args.quiet, stop })
    })
}

fn config(args: &Args) -> Result<Config> {
    match (&args.resume, &args.config) {
        (Some(folder), _) => Config::resume(&folder.join("config.toml"), &args.set),
        (None, Some(path)) => Config::load(path, &args.set),
        (None, None) => Err(Error::Usage {
            problem: "there is no configuration".to_owned(),
            mend: "name a file, as in tidemill train experiments/quickstart.toml".to_owned(),
        }),
    }
}

/// Trains on ranks that are threads of this process; the first error is the run's.
fn on_threads(given: Given<'_>, launch: Launch, mut config: Config, stop: &StopRequest) -> Result<()> {
    let args = given.0;
    if launch.world > 1 || args.ranks == 0 || args.ranks > MOST_THREADS {
        return Err(Error::Usage {
            problem: format!("--ranks {} is no number of ranks for this process", args.ranks),
            mend: format!("give 1 to {MOST_THREADS}, and start one process"),
        });
    }
    if config.threads == 0 {
        config.threads = (device::thread_count(0, launch) / args.ranks).max(1);
    }
    let run = |comm: Communicator| {
        let console = Console { quiet: args.quiet, stop: stop.clone() };
        let done = on_rank(given, config.clone(), comm.clone(), console);
        match done {
            Ok(()) => comm.finish(),
            Err(error) => {
                comm.abandon(&error);
                Err(error)
            }
        }
    };
    let ends: Vec<Result<()>> = std::thread::scope(|scope| {
        let run = &run;
        let ranks = Communicator::local(args.ranks, &config.comm).into_iter();
        let ranks: Vec<_> = ranks.map(|comm| scope.spawn(move || run(comm))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    let own = |end: &Result<()>| !matches!(end, Err(Error::PeerLost { .. }) | Ok(()));
    let first = ends.iter().position(own).or_else(|| ends.iter().position(Result::is_err)).unwrap_or(0);
    ends.into_iter().nth(first).unwrap_or(Ok(()))
}

/// Ranks as threads beyond which a number is a slip of the keyboard.
const MOST_THREADS: usize = 64;

/// What the command line says, and the run to compare with; rank 0 alone has that.
type Given<'a> = (&'a Args, Option<&'a Baseline>);

/// Trains on one rank.
fn on_rank((args, baseline): Given<'_>, config: Config, comm: Communicator, console: Console) -> Result<()> {
    let name = args.config.as_deref().map(run_name).unwrap_or_default();
    let rank = comm.rank();
    let mut trainer = Trainer::on_rank(config, comm)?;
    let baseline = baseline.filter(|_| rank == 0);
    baseline.map_or(Ok(()), |baseline| trainer.check_baseline(baseline))?;
    match &args.resume {
        Some(folder) => trainer.resume_run(folder, console)?,
        None => trainer.start_run(args.out.as_deref(), &name, console)?,
    }
    if args.ranks == 1 || rank == 0 {
        log_to(trainer.run_folder().expect("the run has a folder"), rank)?;
        device::hint_at_cores(Launch::from_env()?);
    }
    if args.trace.is_some() {
        trainer.keep_trace();
    }
    let mut summary = trainer.fit()?;
    if rank != 0 {
        return Ok(());
    }
    if let Some(baseline) = baseline {
        trainer.compare(&mut summary, baseline)?;
    }
    if let Some(path) = &args.trace {
        trainer.write_trace(path)?;
    }
    let folder = trainer.run_folder().expect("the run has a folder");
    print(&table::of(&summary, folder))
}

/// A run is named after its configuration file.
pub(super) fn run_name(config: &Path) -> String {
    config.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}
