//! A sweep's runs as processes of the same program, some at once.

use super::grid::Planned;
use super::same_run;
use crate::config::Config;
use crate::device;
use crate::error::{Error, Result};
use crate::trainer::run_folder::RunFolder;
use crate::trainer::signals::StopRequest;
use serde_json::Value;
use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Ended {
    /// With this `summary.json`.
    Done(Value),
    /// With this error.
    Failed(String),
    /// It did not: the sweep was stopped.
    Open,
}

/// How runs are made.
pub(super) struct Jobs {
    pub(super) config: PathBuf,
    pub(super) folder: PathBuf,
    pub(super) at_once: usize,
    pub(super) ranks: usize,
    pub(super) quiet: bool,
    pub(super) stop: StopRequest,
}

/// How long a request to stop may wait to be seen.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Refuses a folder whose runs are of another sweep.
pub(super) fn refuse_others(folder: &Path, planned: &[Planned], ranks: usize) -> Result<()> {
    for run in planned {
        let Ok(there) = RunFolder::open(&folder.join(&run.name)) else { continue };
        let other = |what: &str| {
            Err(Error::Usage {
                problem: format!("{} holds a run with {what}", there.path().display()),
                mend: "remove it, or name another folder with --out".to_owned(),
            })
        };
        if !same_run(&Config::from_toml(&there.read_config()?)?, &run.config) {
            return other("another configuration");
        }
        match summary(there.path()) {
            Some(summary) if summary["ranks"] != ranks => return other(&format!("{} ranks", summary["ranks"])),
            _ => {}
        }
    }
    Ok(())
}

fn summary(run: &Path) -> Option<Value> {
    serde_json::from_slice(&std::fs::read(run.join("summary.json")).ok()?).ok()
}

impl Jobs {
    /// Makes every run that is not finished, in order; none stops another.
    pub(super) fn run(&self, planned: &[Planned]) -> Result<Vec<Ended>> {
        let program = std::env::current_exe().map_err(Error::io("find", Path::new("this program")))?;
        let mut ended: Vec<Ended> =
            planned.iter().map(|run| summary(&self.folder.join(&run.name)).map_or(Ended::Open, Ended::Done)).collect();
        let open: Vec<usize> = (0..planned.len()).filter(|&run| ended[run] == Ended::Open).collect();
        self.tell(&format!("{} runs, {} of them finished before", planned.len(), planned.len() - open.len()));
        let (next, running) = (AtomicUsize::new(0), Mutex::new(BTreeSet::new()));
        let (done, results) = mpsc::channel();
        std::thread::scope(|scope| {
            for _ in 0..self.at_once.min(open.len()) {
                let (done, open, next, running, program) = (done.clone(), &open, &next, &running, &program);
                scope.spawn(move || {
                    while let Some(&run) = open.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let start = Instant::now();
                        let end = self.one(program, &planned[run], running);
                        let _ = done.send((run, end, start.elapsed()));
                    }
                });
            }
            drop(done);
            self.collect(&results, planned, &mut ended, &running);
        });
        Ok(ended)
    }

    /// Takes in results until no job is left; a request to stop is handed on to the running ones.
    fn collect(
        &self,
        results: &mpsc::Receiver<(usize, Ended, Duration)>,
        planned: &[Planned],
        ended: &mut [Ended],
        running: &Mutex<BTreeSet<u32>>,
    ) {
        let mut told = BTreeSet::new();
        loop {
            match results.recv_timeout(LOOK_EVERY) {
                Ok((run, end, took)) => {
                    let how = match &end {
                        Ended::Done(summary) => format!("test AP {}", summary["test"]["ap"]),
                        Ended::Failed(problem) => format!("failed: {problem}"),
                        Ended::Open => "stopped".to_owned(),
                    };
                    self.tell(&format!("{}: {how}, {:.1} s", planned[run].name, took.as_secs_f64()));
                    ended[run] = end;
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
            if self.stop.requested() {
                for &child in lock(running).iter().filter(|&&child| told.insert(child)) {
                    // SAFETY: takes numbers; the process is a child that nobody has waited for yet.
                    unsafe { libc::kill(child.cast_signed(), libc::SIGTERM) };
                }
            }
        }
    }

    fn one(&self, program: &Path, run: &Planned, running: &Mutex<BTreeSet<u32>>) -> Ended {
        if self.stop.requested() {
            return Ended::Open;
        }
        let folder = self.folder.join(&run.name);
        let child = {
            let mut running = lock(running);
            match self.command(program, run, &folder).spawn() {
                Ok(child) => {
                    running.insert(child.id());
                    child
                }
                Err(error) => return Ended::Failed(format!("the program can not be started: {error}")),
            }
        };
        let id = child.id();
        let output = child.wait_with_output();
        lock(running).remove(&id);
        let output = match output {
            Ok(output) => output,
            Err(error) => return Ended::Failed(error.to_string()),
        };
        match output.status.code() {
            Some(0) => summary(&folder).map_or(Ended::Failed("it left no summary.json".to_owned()), Ended::Done),
            Some(STOPPED) if self.stop.requested() => Ended::Open,
            _ => {
                let said = String::from_utf8_lossy(&output.stderr);
                let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
                Ended::Failed(format!("{} ({})", last.trim_start_matches("error: "), output.status))
            }
        }
    }

    fn command(&self, program: &Path, run: &Planned, folder: &Path) -> Command {
        let mut command = Command::new(program);
        command.arg("train").arg("--quiet").args(["--ranks", &self.ranks.to_string()]);
        match RunFolder::open(folder) {
            Ok(_) => {
                command.arg("--resume").arg(folder);
            }
            Err(_) => {
                command.arg(&self.config).arg("--out").arg(folder);
                for set in &run.sets {
                    command.args(["--set", set]);
                }
            }
        }
        command.args(["--set", &format!("threads={}", self.threads(&run.config))]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        // SAFETY: between fork and exec only the one system call is made.
        unsafe {
            command.pre_exec(|| {
                // A run does not outlive its sweep: the next one would find it half and go on with it.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
                Ok(())
            });
        }
        command
    }

    /// Threads of each rank of a run: as configured, or its share of the cores.
    fn threads(&self, config: &Config) -> usize {
        if config.threads > 0 {
            return config.threads;
        }
        (device::thread_count(0, crate::comms::Launch::ALONE) / (self.at_once * self.ranks)).max(1)
    }

    fn tell(&self, line: &str) {
        if !self.quiet {
            tracing::info!("{line}");
        }
    }
}

/// What a run that was stopped on request ends with.
const STOPPED: i32 = 3;

fn lock(running: &Mutex<BTreeSet<u32>>) -> std::sync::MutexGuard<'_, BTreeSet<u32>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}
