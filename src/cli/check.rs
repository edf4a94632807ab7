//! `tidemill check`: faults and oddities of a file of events.

use super::{Progress, ReadArgs, print};
use crate::error::{Error, Result};
use std::path::PathBuf;
use tidemill_data::Watch;

/// Check a file of events: errors that training would end with, and warnings.
///
/// Each is told with its row (1 is the first data row), value and mend; at most 20 of a kind are printed, all are counted.
/// Exits 2 if there is an error.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tidemill check wikipedia.csv.gz
  tidemill check orders.parquet --set data.columns.src=buyer --set data.columns.dst=shop --json")]
pub(super) struct Args {
    /// File of events, in any supported format
    #[arg(value_name = "DATA")]
    data: PathBuf,

    /// Prints one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    read: ReadArgs,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> Result<()> {
    let config = args.read.config(&args.data)?;
    let mut bar = Progress::new(&args.data, false);
    let watch = Watch { notice: &mut |_| {}, progress: &mut |read, of| bar.at(read, of), scratch: None };
    let report = tidemill_data::check(&config, watch)?;
    bar.finish();
    let text = if args.json {
        serde_json::to_string_pretty(&report).expect("a report is plain numbers and strings")
    } else {
        report.to_string()
    };
    print(&format!("{text}\n"))?;
    if report.passes() {
        return Ok(());
    }
    let errors: u64 = report.errors.iter().map(|finding| finding.count).sum();
    Err(Error::Usage {
        problem: format!("{}: {errors} errors found", args.data.display()),
        mend: "mend the rows that are listed and check again".to_owned(),
    })
}
