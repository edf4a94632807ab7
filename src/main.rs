//! `tidemill`: parse, run, print the error chain, exit code.

use clap::Parser;
use std::process::ExitCode;
use tidemill::cli::Cli;

fn main() -> ExitCode {
    let cli = Cli::parse();
    tidemill::cli::start_logging(cli.quiet());
    match cli.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", error.sentence());
            ExitCode::from(error.exit_code())
        }
    }
}
