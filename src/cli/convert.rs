//! `tidemill convert`: any supported file to the event stream.

use super::{ReadArgs, print, refuse_existing};
use crate::error::Result;
use std::path::{Path, PathBuf};

/// Convert a file of events to an Arrow event stream, which loads at once and needs little memory.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tidemill convert wikipedia.csv.gz wikipedia.arrow
  tidemill convert orders.parquet orders.arrow --set data.columns.src=buyer --set data.columns.dst=shop
  tidemill convert collegemsg.csv messages.arrow --random-features 172 --seed 1")]
pub(super) struct Args {
    /// File of events, in any supported format
    #[arg(value_name = "IN")]
    input: PathBuf,

    /// Event stream to write
    #[arg(value_name = "OUT.arrow")]
    output: PathBuf,

    /// Replaces the edge features by D standard normal numbers an event
    #[arg(long, value_name = "D", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    random_features: Option<u32>,

    /// Seed of the random features
    #[arg(long, value_name = "S", default_value_t = 0, requires = "random_features")]
    seed: u64,

    #[command(flatten)]
    read: ReadArgs,

    /// Prints results and errors only
    #[arg(long)]
    pub(super) quiet: bool,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> Result<()> {
    refuse_existing(&args.output)?;
    let mut stream = args.read.load(&args.input, Some(folder_of(&args.output)), args.quiet)?;
    if let Some(width) = args.random_features {
        stream = stream.with_random_features(width as usize, args.seed)?;
    }
    stream.write(&args.output)?;
    print(&format!(
        "{0} (with {1} beside it: keep the two together): {2} events, {3} nodes, {4} edge features, sha256 {5}\n",
        args.output.display(),
        args.output.with_extension("nodes.arrow").display(),
        stream.len(),
        stream.nodes(),
        stream.feature_dim(),
        stream.hash()
    ))
}

/// The folder that a file will lie in.
fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}
