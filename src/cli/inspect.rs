//! `tidemill inspect`: what a file of events holds.

use super::{load, print};
use crate::error::Result;
use std::path::PathBuf;
use tidemill_data::statistics::Statistics;

/// Describe a file of events: size, time span, ties, repeats, degrees, columns.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  tidemill inspect wikipedia.csv.gz")]
pub(super) struct Args {
    /// File of events, in any supported format
    #[arg(value_name = "DATA")]
    data: PathBuf,

    /// Prints one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> Result<()> {
    let stream = load(&args.data)?;
    let statistics = Statistics::of(&stream);
    let text = if args.json {
        serde_json::to_string_pretty(&statistics).expect("statistics are plain numbers and strings")
    } else {
        statistics.to_string()
    };
    print(&format!("{}\n", text.trim_end()))
}
