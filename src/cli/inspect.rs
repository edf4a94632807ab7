//! `tidemill inspect`: what a file of events holds.

use super::{ReadArgs, print};
use crate::error::{Error, Result};
use std::path::PathBuf;
use tidemill_data::drawing::Drawing;
use tidemill_data::statistics::Statistics;

/// Describe a file of events: size, time span, ties, repeats, degrees, columns.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tidemill inspect wikipedia.csv.gz\n  tidemill inspect wikipedia.csv.gz --html wikipedia.html"
)]
pub(super) struct Args {
    /// File of events, in any supported format
    #[arg(value_name = "DATA")]
    data: PathBuf,

    /// Prints one JSON object
    #[arg(long)]
    json: bool,

    /// Draws degrees, gaps between events and the event rate on a page of its own
    #[arg(long, value_name = "FILE.html")]
    html: Option<PathBuf>,

    #[command(flatten)]
    read: ReadArgs,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> Result<()> {
    let stream = args.read.load(&args.data, None, false)?;
    let statistics = Statistics::of(&stream);
    if let Some(path) = &args.html {
        let page = tidemill_data::drawing::page(&statistics, &Drawing::of(&stream));
        std::fs::write(path, page).map_err(Error::io("write", path))?;
    }
    let text = if args.json {
        serde_json::to_string_pretty(&statistics).expect("statistics are plain numbers and strings")
    } else {
        statistics.to_string()
    };
    print(&format!("{}\n", text.trim_end()))
}
