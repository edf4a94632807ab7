//! What the user sees while a run works: a bar on a terminal, plain lines elsewhere, nothing when quiet.
//!
//! Shown are the phase (`epoch 2/10`, `val`), events done, loss, events/s and the time left. Rate and time left are those of
//! the phase, from the events done since it began here, so a resumed epoch starts fresh.
//!
//! Invariants: progress goes to the writer given or to the terminal's stderr, never to stdout; a writer that fails is ignored,
//! since a closed terminal must not end a run; a report within the interval costs a comparison of clocks.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// How often the bar is redrawn.
const BAR_INTERVAL: Duration = Duration::from_millis(100);

/// How often a plain line is written.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Reports a run's progress, phase by phase.
#[derive(Debug)]
pub struct Progress {
    display: Display,
    interval: Duration,
    phase: Option<Phase>,
}

enum Display {
    Bar(Option<ProgressBar>),
    Lines(Box<dyn Write + Send>),
    Quiet,
}

impl fmt::Debug for Display {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Display::Bar(_) => "Bar",
            Display::Lines(_) => "Lines",
            Display::Quiet => "Quiet",
        })
    }
}

/// A stretch of work with a known number of events.
#[derive(Debug)]
struct Phase {
    name: String,
    total: u64,
    first: u64,
    started: Instant,
    shown: Instant,
    latest: Status,
}

/// How far a phase is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Status {
    done: u64,
    loss: Option<f64>,
}

impl Progress {
    /// On stderr: a bar if it is a terminal, lines otherwise, nothing if `quiet` (as all ranks but the first are).
    pub fn new(quiet: bool) -> Progress {
        match (quiet, io::stderr().is_terminal()) {
            (true, _) => Progress::quiet(),
            (false, true) => Progress::with(Display::Bar(None), BAR_INTERVAL),
            (false, false) => Progress::lines(Box::new(io::stderr()), LINE_INTERVAL),
        }
    }

    /// Plain lines to a writer, at most one an interval within a phase, and one at its end.
    pub fn lines(writer: Box<dyn Write + Send>, interval: Duration) -> Progress {
        Progress::with(Display::Lines(writer), interval)
    }

    /// Nothing at all.
    pub fn quiet() -> Progress {
        Progress::with(Display::Quiet, Duration::MAX)
    }

    fn with(display: Display, interval: Duration) -> Progress {
        Progress { display, interval, phase: None }
    }

    /// Starts a phase of `total` events of which `done` are done already; finishes the one before.
    pub fn start(&mut self, name: impl Into<String>, total: u64, done: u64) {
        self.finish();
        let (name, now) = (name.into(), Instant::now());
        if let Display::Bar(bar) = &mut self.display {
            *bar = Some(new_bar(&name, total, done));
        }
        let latest = Status { done, loss: None };
        self.phase = Some(Phase { name, total, first: done, started: now, shown: now, latest });
    }

    /// Reports `done` events of the phase and, in training, the loss to show.
    pub fn advance(&mut self, done: u64, loss: Option<f64>) {
        let Some(phase) = &mut self.phase else { return };
        phase.latest = Status { done, loss };
        if matches!(self.display, Display::Quiet) {
            return;
        }
        let now = Instant::now();
        if now.duration_since(phase.shown) >= self.interval {
            phase.shown = now;
            self.show(now);
        }
    }

    /// Finishes the phase with a last line; on a terminal the bar gives way to it.
    pub fn finish(&mut self) {
        let Some(phase) = self.phase.take() else { return };
        let line = phase.line(Instant::now());
        if let Display::Bar(bar) = &mut self.display
            && let Some(bar) = bar.take()
        {
            bar.finish_and_clear();
        }
        self.line(&line);
    }

    /// Writes a line of its own, such as a result or a warning, without tearing the bar.
    pub fn line(&mut self, line: &str) {
        // A closed stderr is no reason to end a run.
        match &mut self.display {
            Display::Bar(Some(bar)) => bar.println(line),
            Display::Bar(None) => drop(writeln!(io::stderr(), "{line}")),
            Display::Lines(writer) => drop(writeln!(writer, "{line}").and_then(|()| writer.flush())),
            Display::Quiet => {}
        }
    }

    fn show(&mut self, now: Instant) {
        let Some(phase) = &self.phase else { return };
        match &self.display {
            Display::Bar(Some(bar)) => {
                bar.set_message(phase.figures(now));
                bar.set_position(phase.latest.done);
            }
            Display::Lines(_) => {
                let line = phase.line(now);
                self.line(&line);
            }
            _ => {}
        }
    }
}

impl Drop for Progress {
    /// A bar that is left, by an error or a stop, is cleared: what follows starts on a clean line.
    fn drop(&mut self) {
        if let Display::Bar(Some(bar)) = &self.display {
            bar.finish_and_clear();
        }
    }
}

fn new_bar(name: &str, total: u64, done: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr()).with_position(done);
    let style =
        ProgressStyle::with_template("{prefix} {wide_bar:.cyan/dim} {percent:>3}% {msg}").expect("a fixed template");
    bar.with_prefix(name.to_string()).with_style(style)
}

impl Phase {
    /// `epoch 2/10  44,000/110,232 events (40%)  loss 0.6931  14,200 events/s  0:04 left`
    fn line(&self, now: Instant) -> String {
        let percent = if self.total == 0 { 100 } else { u128::from(self.latest.done) * 100 / u128::from(self.total) };
        let (done, total) = (grouped(self.latest.done), grouped(self.total));
        format!("{}  {done}/{total} events ({percent}%)  {}", self.name, self.figures(now))
    }

    fn figures(&self, now: Instant) -> String {
        let seconds = now.duration_since(self.started).as_secs_f64();
        let here = self.latest.done.saturating_sub(self.first);
        let left = self.total.saturating_sub(self.latest.done);
        let mut parts = Vec::with_capacity(3);
        parts.extend(self.latest.loss.map(|loss| format!("loss {loss:.4}")));
        if here > 0 && seconds > 0.0 {
            let rate = here as f64 / seconds;
            parts.push(format!("{} events/s", grouped(rate.round() as u64)));
            parts.push(if left == 0 {
                format!("in {}", clock(seconds))
            } else {
                format!("{} left", clock(left as f64 / rate))
            });
        }
        parts.join("  ")
    }
}

/// `1234567` as `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Seconds as `m:ss` or `h:mm:ss`, rounded up: work left is never shown as none.
fn clock(seconds: f64) -> String {
    let seconds = seconds.ceil() as u64;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no panic").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Buffer {
        fn lines(&self) -> Vec<String> {
            String::from_utf8(self.0.lock().expect("no panic").clone())
                .expect("text")
                .lines()
                .map(String::from)
                .collect()
        }
    }

    fn phase(total: u64, first: u64, done: u64, loss: Option<f64>) -> Phase {
        let now = Instant::now();
        Phase { name: "epoch 2/10".into(), total, first, started: now, shown: now, latest: Status { done, loss } }
    }

    #[test]
    fn a_line_says_where_the_phase_is() {
        let at = |phase: &Phase, seconds| phase.line(phase.started + Duration::from_secs(seconds));
        let half = phase(110_232, 0, 44_000, Some(std::f64::consts::LN_2));
        assert_eq!(at(&half, 4), "epoch 2/10  44,000/110,232 events (39%)  loss 0.6931  11,000 events/s  0:07 left");
        let resumed = phase(1000, 900, 950, None);
        assert_eq!(at(&resumed, 10), "epoch 2/10  950/1,000 events (95%)  5 events/s  0:10 left");
        let ended = phase(1000, 0, 1000, None);
        assert_eq!(at(&ended, 3700), "epoch 2/10  1,000/1,000 events (100%)  0 events/s  in 1:01:40");
        assert_eq!(at(&phase(0, 0, 0, None), 1), "epoch 2/10  0/0 events (100%)  ");
    }

    #[test]
    fn groups_digits() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (12_345_678, "12,345,678")] {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn lines_come_at_the_interval_and_at_the_end() {
        let buffer = Buffer::default();
        let mut progress = Progress::lines(Box::new(buffer.clone()), Duration::from_secs(3600));
        progress.start("epoch 1/2", 400, 0);
        (1..=4).for_each(|batch| progress.advance(batch * 100, Some(0.5)));
        assert!(buffer.lines().is_empty(), "within the interval");
        progress.start("val", 50, 0);
        progress.line("a warning");
        progress.finish();
        progress.finish();
        progress.advance(7, None);
        let lines = buffer.lines();
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[0].starts_with("epoch 1/2  400/400 events (100%)  loss 0.5000  "), "{lines:?}");
        assert_eq!(lines[1..], ["a warning".to_string(), "val  0/50 events (0%)  ".to_string()]);

        let mut progress = Progress::lines(Box::new(buffer.clone()), Duration::ZERO);
        progress.start("epoch 2/2", 400, 0);
        (1..=4).for_each(|batch| progress.advance(batch * 100, Some(0.5)));
        assert_eq!(buffer.lines().len(), 3 + 4);
    }

    #[test]
    fn a_writer_that_fails_is_ignored() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }

            fn flush(&mut self) -> io::Result<()> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
        }
        let mut progress = Progress::lines(Box::new(Closed), Duration::ZERO);
        progress.start("epoch 1/1", 10, 0);
        progress.advance(10, None);
        progress.finish();
    }

    #[test]
    fn a_bar_is_filled_and_cleared() {
        let mut progress = Progress::with(Display::Bar(None), Duration::ZERO);
        progress.start("epoch 1/1", 10, 4);
        progress.advance(7, Some(0.25));
        let Display::Bar(Some(bar)) = &progress.display else { panic!("a bar") };
        assert_eq!((bar.position(), bar.length(), bar.prefix()), (7, Some(10), "epoch 1/1".to_string()));
        assert!(bar.message().starts_with("loss 0.2500  "), "{}", bar.message());
        progress.phase = None;
        drop(progress);
    }
}
