//! Requests to stop: a signal sets a flag, and the training loop ends at the next batch border with a checkpoint.
//!
//! Alone, SIGINT, SIGTERM and SIGUSR1 ask for that, and a second SIGINT ends the process at once. Under mpirun only SIGUSR1
//! does: mpirun forwards it to all ranks, whereas it follows SIGTERM with SIGKILL after a second, too soon for a collective.
//!
//! Invariants: handlers only store to atomics; a request is never withdrawn.

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The exit status of a process ended by SIGINT, as shells report it.
const INTERRUPTED: i32 = 128 + SIGINT;

/// Stands for a request that no signal made.
const NO_SIGNAL: usize = usize::MAX;

/// Whether the run was asked to stop; clones share the request.
#[derive(Clone, Debug, Default)]
pub struct StopRequest {
    /// The signal's number; 0 while there is no request.
    signal: Arc<AtomicUsize>,
}

impl StopRequest {
    /// A request that no signal sets.
    pub fn new() -> StopRequest {
        StopRequest::default()
    }

    /// Installs the handlers for a run alone or under mpirun; they stay for the life of the process.
    ///
    /// # Errors
    /// If the system refuses a handler.
    pub fn on_signals(under_mpirun: bool) -> io::Result<StopRequest> {
        let request = StopRequest::new();
        let signals: &[i32] = if under_mpirun { &[SIGUSR1] } else { &[SIGINT, SIGTERM, SIGUSR1] };
        if !under_mpirun {
            // Registered first, so the first SIGINT finds the flag unset and only sets it.
            let interrupted = Arc::new(AtomicBool::new(false));
            flag::register_conditional_shutdown(SIGINT, INTERRUPTED, Arc::clone(&interrupted))?;
            flag::register(SIGINT, interrupted)?;
        }
        for &signal in signals {
            flag::register_usize(signal, Arc::clone(&request.signal), signal as usize)?;
        }
        Ok(request)
    }

    /// Asks the run to stop, without a signal.
    pub fn stop(&self) {
        self.signal.store(NO_SIGNAL, Ordering::Relaxed);
    }

    /// Whether the run was asked to stop.
    pub fn requested(&self) -> bool {
        self.signal.load(Ordering::Relaxed) != 0
    }

    /// The signal that asked last, for the message to the user; `None` if none did.
    pub fn signal(&self) -> Option<&'static str> {
        match i32::try_from(self.signal.load(Ordering::Relaxed)).ok()? {
            SIGINT => Some("SIGINT"),
            SIGTERM => Some("SIGTERM"),
            SIGUSR1 => Some("SIGUSR1"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command, ExitStatus, Stdio};
    use std::time::{Duration, Instant};

    const CHILD: &str = "TIDEMILL_TEST_SIGNALS";

    /// The child of the tests below: says which signal asked last, until it is ended.
    #[test]
    fn child_waits_for_signals() {
        let Ok(mode) = std::env::var(CHILD) else { return };
        let request = StopRequest::on_signals(mode == "mpirun").expect("handlers");
        eprintln!("ready");
        let start = Instant::now();
        let mut told = None;
        while start.elapsed() < Duration::from_secs(30) {
            if request.signal() != told {
                told = request.signal();
                eprintln!("{} {}", told.expect("requests stay"), request.requested());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    struct Run {
        child: Child,
        lines: std::io::Lines<BufReader<std::process::ChildStderr>>,
    }

    fn start(mode: &str) -> Run {
        let name = concat!(module_path!(), "::child_waits_for_signals").split_once("::").expect("crate").1;
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args([name, "--exact", "--nocapture"])
            .env(CHILD, mode)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("child");
        let lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let mut run = Run { child, lines };
        assert_eq!(run.line(), "ready");
        run
    }

    impl Run {
        fn line(&mut self) -> String {
            self.lines.next().expect("the child lives").expect("text")
        }

        fn send(&self, signal: &str) {
            let status =
                Command::new("kill").args(["-s", signal, &self.child.id().to_string()]).status().expect("kill");
            assert!(status.success());
        }

        fn end(mut self) -> ExitStatus {
            self.child.wait().expect("wait")
        }
    }

    #[test]
    fn nothing_is_asked_at_first_and_clones_share_a_request() {
        let request = StopRequest::new();
        assert!(!request.requested());
        request.clone().stop();
        assert!(request.requested() && request.signal().is_none());
    }

    #[test]
    fn alone_each_signal_asks_and_only_a_second_sigint_ends() {
        let mut run = start("alone");
        for signal in ["USR1", "TERM", "INT"] {
            run.send(signal);
            assert_eq!(run.line(), format!("SIG{signal} true"));
        }
        run.send("INT");
        assert_eq!(run.end().code(), Some(130));
    }

    #[test]
    fn under_mpirun_only_sigusr1_asks() {
        let mut run = start("mpirun");
        run.send("USR1");
        assert_eq!(run.line(), "SIGUSR1 true");
        run.send("TERM");
        assert_eq!(run.end().signal(), Some(SIGTERM));
    }
}
