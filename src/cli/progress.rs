//! Progress of a long reading: a bar on a terminal, a line now and then elsewhere, on standard error.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// How far a file is read.
pub(super) struct Progress {
    name: String,
    quiet: bool,
    bar: Option<ProgressBar>,
    told: Instant,
}

impl Progress {
    pub(super) fn new(path: &Path, quiet: bool) -> Progress {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Progress { name, quiet, bar: None, told: Instant::now() }
    }

    /// `read` of `of`, in bytes or rows.
    pub(super) fn at(&mut self, read: u64, of: u64) {
        if self.quiet || of == 0 {
            return;
        }
        if std::io::stderr().is_terminal() {
            let bar = self.bar.get_or_insert_with(|| {
                let style = ProgressStyle::with_template("{msg} [{bar:40}] {percent} %, {eta} left");
                let bar = ProgressBar::new(of).with_message(self.name.clone());
                bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
            });
            bar.set_position(read);
        } else if self.told.elapsed() >= LINE_EVERY {
            self.told = Instant::now();
            tracing::info!("{}: {:.0} % read", self.name, 100.0 * read as f64 / of as f64);
        }
    }

    /// Takes the bar away.
    pub(super) fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}
