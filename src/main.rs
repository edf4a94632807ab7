//! `tidemill`: parse, run, print the error chain, exit code.

use clap::Parser;
use std::io::Write;
use std::process::ExitCode;
use tidemill::cli::{self, Cli};
use tidemill::comms;

fn main() -> ExitCode {
    let cli = Cli::parse();
    cli::start_logging(cli.quiet());
    // Last of all, after a panic too: mpirun ends all ranks as soon as one has failed, and each is to tell its own error first.
    let _leave = Leave;
    match cli.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // As one write: the ranks of a run share a terminal.
            let _ = std::io::stderr().write_all(format!("error: {}\n", error.sentence()).as_bytes());
            cli::log_error(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

/// Takes leave of the other ranks when it goes.
struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        comms::leave();
    }
}
