//! What the stages did with their time: busy, and waiting for what.
//!
//! A wait for another rank's message happens somewhere below a stage's work, on the stage's thread. [`waited_for_message`] notes it
//! there, and the stage that next accounts for its time on that thread books it as [`Stall::Network`], not as work.

use crate::device;
use crate::queue::QueueStats;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// The four stages of the pipeline, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Batches, negatives, samples, masks.
    Event,
    /// State reads, feature gathers, copies to the device.
    State,
    /// Forward, state commit, backward.
    Gradient,
    /// Gradient exchange, optimizer.
    Sync,
}

impl Stage {
    /// All stages in order.
    pub const ALL: [Stage; 4] = [Stage::Event, Stage::State, Stage::Gradient, Stage::Sync];

    /// The stage's name in reports.
    pub fn name(self) -> &'static str {
        ["event", "state", "gradient", "sync"][self as usize]
    }
}

/// Why a stage waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stall {
    /// The queue behind it is full.
    Full,
    /// The queue before it is empty.
    Empty,
    /// A commit that it must see has not happened.
    Hazard,
    /// A message from another rank is not there.
    Network,
}

impl Stall {
    /// All causes, in order.
    pub const ALL: [Stall; 4] = [Stall::Full, Stall::Empty, Stall::Hazard, Stall::Network];

    /// The cause's name in reports.
    pub fn name(self) -> &'static str {
        ["full", "empty", "hazard", "network"][self as usize]
    }
}

thread_local! {
    /// Waits for messages that no stage has booked yet: when each began, and how long it was.
    static WAITS: RefCell<Vec<(Instant, Duration)>> = const { RefCell::new(Vec::new()) };
}

/// Waits kept on a thread that never books them.
const MOST_WAITS: usize = 1 << 12;

/// This thread has waited for a message of a batch since `start`.
pub fn waited_for_message(start: Instant, length: Duration) {
    WAITS.with_borrow_mut(|waits| {
        if waits.len() == MOST_WAITS {
            waits.clear(); // whoever books has not looked for thousands of messages, and never will
        }
        waits.push((start, length));
    });
}

/// The queues between stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Plans, from the event to the state stage.
    Plans,
    /// Batches with their state read, from the state to the gradient stage.
    Batches,
    /// Gradients, to the sync stage where it is a worker.
    Gradients,
}

impl Queue {
    /// All queues in order.
    pub const ALL: [Queue; 3] = [Queue::Plans, Queue::Batches, Queue::Gradients];

    /// The queue's name in reports.
    pub fn name(self) -> &'static str {
        ["plans", "batches", "gradients"][self as usize]
    }
}

/// One stretch of work on a batch, or of waiting.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Whose.
    pub stage: Stage,
    /// What it did.
    pub what: Doing,
    /// Since the timeline's start.
    pub start: Duration,
    /// How long.
    pub length: Duration,
}

/// What a stage did for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Work on a batch of its pass, from 0. Waits for messages lie within it.
    Batch(usize),
    /// Nothing, for this cause.
    Waiting(Stall),
    /// No work: an exchange was under way while the stages worked, with this batch as its last.
    InFlight(usize),
}

/// Waits shorter than this are counted, but left out of traces.
const SHORTEST_SPAN: Duration = Duration::from_micros(20);

/// What a stage reads that an earlier batch wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Node memory and mail.
    State,
    /// The model's parameters.
    Parameters,
}

/// Times of all stages. Each worker keeps one of its own; they are merged when it ends.
#[derive(Clone, Debug)]
pub struct Timeline {
    origin: Instant,
    busy: [Duration; 4],
    stalls: [[Duration; 4]; 4],
    staleness: [Vec<u64>; 2],
    queues: [QueueStats; 3],
    spans: Option<Vec<Span>>,
}

impl Default for Timeline {
    fn default() -> Timeline {
        let (busy, stalls, staleness, queues) = Default::default();
        Timeline { origin: Instant::now(), busy, stalls, staleness, queues, spans: None }
    }
}

impl Timeline {
    /// Keeps every span from now on, for a trace.
    pub fn keep_spans(&mut self) {
        self.spans.get_or_insert_default();
    }

    /// An empty timeline with the same start, for a worker.
    pub fn twin(&self) -> Timeline {
        Timeline { origin: self.origin, spans: self.spans.as_ref().map(|_| Vec::new()), ..Timeline::default() }
    }

    /// Does `work` on a stage's account.
    pub fn time<T>(&mut self, stage: Stage, batch: usize, work: impl FnOnce() -> T) -> T {
        let (_range, start) = (device::range(stage.name(), batch), Instant::now());
        self.book_messages(Stage::Gradient, start); // the one stage that waits outside of its accounts: at its commits
        let result = work();
        self.add(stage, batch, start);
        result
    }

    /// A stage was busy on a batch since `start`, but for the messages that it waited for.
    pub fn add(&mut self, stage: Stage, batch: usize, start: Instant) {
        let length = start.elapsed();
        self.keep(stage, Doing::Batch(batch), start, length);
        let waited = self.book_messages(stage, start);
        self.busy[stage as usize] += length.saturating_sub(waited);
    }

    /// An exchange of gradients has been under way since `start`, up to those of `batch`; nobody's time.
    pub fn add_exchange(&mut self, batch: usize, start: Instant) {
        self.keep(Stage::Sync, Doing::InFlight(batch), start, start.elapsed());
    }

    /// Books this thread's waits for messages on a stage's account; how long those from `start` on were.
    fn book_messages(&mut self, stage: Stage, start: Instant) -> Duration {
        WAITS.with_borrow_mut(|waits| {
            let mut within = Duration::ZERO;
            for (began, length) in waits.drain(..) {
                self.stalls[stage as usize][Stall::Network as usize] += length;
                self.keep(stage, Doing::Waiting(Stall::Network), began, length);
                within += if began >= start { length } else { Duration::ZERO };
            }
            within
        })
    }

    /// Waits on a stage's account.
    pub fn wait<T>(&mut self, stage: Stage, stall: Stall, wait: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        self.book_messages(stage, start);
        let result = wait();
        let length = start.elapsed();
        self.add_stall(stage, stall, length);
        self.keep(stage, Doing::Waiting(stall), start, length);
        result
    }

    /// A stage has waited.
    pub fn add_stall(&mut self, stage: Stage, stall: Stall, waited: Duration) {
        self.stalls[stage as usize][stall as usize] += waited;
    }

    fn keep(&mut self, stage: Stage, what: Doing, start: Instant, length: Duration) {
        let shown = !matches!(what, Doing::Waiting(_)) || length >= SHORTEST_SPAN;
        if let Some(spans) = self.spans.as_mut().filter(|_| shown) {
            spans.push(Span { stage, what, start: start.saturating_duration_since(self.origin), length });
        }
    }

    /// A training batch has read what was `behind` commits older than it would be in order.
    pub fn saw(&mut self, what: Seen, behind: usize) {
        let histogram = &mut self.staleness[what as usize];
        histogram.resize(histogram.len().max(behind + 1), 0);
        histogram[behind] += 1;
    }

    /// How many training batches read something k commits old, by k.
    pub fn staleness(&self, what: Seen) -> &[u64] {
        &self.staleness[what as usize]
    }

    /// A queue has ended.
    pub fn add_queue(&mut self, queue: Queue, stats: &QueueStats) {
        self.queues[queue as usize].add(stats);
    }

    /// What all queues of this name went through.
    pub fn queue(&self, queue: Queue) -> &QueueStats {
        &self.queues[queue as usize]
    }

    /// Adds a worker's timeline.
    pub fn merge(&mut self, other: Timeline) {
        for stage in 0..4 {
            self.busy[stage] += other.busy[stage];
            for stall in 0..Stall::ALL.len() {
                self.stalls[stage][stall] += other.stalls[stage][stall];
            }
        }
        self.queues.iter_mut().zip(&other.queues).for_each(|(own, other)| own.add(other));
        for (own, other) in self.staleness.iter_mut().zip(&other.staleness) {
            own.resize(own.len().max(other.len()), 0);
            own.iter_mut().zip(other).for_each(|(own, other)| *own += other);
        }
        if let (Some(spans), Some(more)) = (&mut self.spans, other.spans) {
            spans.extend(more);
        }
    }

    /// Time a stage was busy.
    pub fn busy(&self, stage: Stage) -> Duration {
        self.busy[stage as usize]
    }

    /// Time a stage waited for one cause.
    pub fn stall(&self, stage: Stage, stall: Stall) -> Duration {
        self.stalls[stage as usize][stall as usize]
    }

    /// Time a stage waited.
    pub fn waited(&self, stage: Stage) -> Duration {
        self.stalls[stage as usize].iter().sum()
    }

    /// The spans kept, in no order.
    pub fn spans(&self) -> &[Span] {
        self.spans.as_deref().unwrap_or_default()
    }

    /// The spans as a Chrome trace (`chrome://tracing`, Perfetto): one row a stage and one for exchanges under way, times in
    /// microseconds. Waits are of the category `wait` and named after their cause.
    pub fn chrome_trace(&self) -> serde_json::Value {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let rows = Stage::ALL.map(Stage::name).into_iter().chain(["exchange"]);
        let event = |span: &Span| {
            let (row, category, name, arguments) = match span.what {
                Doing::Batch(batch) => {
                    let name = format!("{} {batch}", span.stage.name());
                    (span.stage as usize, span.stage.name(), name, serde_json::json!({ "batch": batch }))
                }
                Doing::Waiting(stall) => (span.stage as usize, "wait", stall.name().to_owned(), serde_json::json!({})),
                Doing::InFlight(batch) => {
                    (Stage::ALL.len(), "exchange", format!("exchange {batch}"), serde_json::json!({ "batch": batch }))
                }
            };
            serde_json::json!({
                "ph": "X", "pid": 0, "tid": row, "cat": category, "name": name, "args": arguments,
                "ts": micros(span.start), "dur": micros(span.length),
            })
        };
        let names = rows.enumerate().map(|(row, name)| {
            serde_json::json!({ "ph": "M", "pid": 0, "tid": row, "name": "thread_name", "args": { "name": name } })
        });
        serde_json::json!({ "traceEvents": names.chain(self.spans().iter().map(event)).collect::<Vec<_>>() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_for_messages_are_no_work() {
        let mut times = Timeline::default();
        times.keep_spans();
        let wait = |length: u64| waited_for_message(Instant::now(), Duration::from_millis(length));
        wait(3); // at a commit, before the next account
        times.time(Stage::State, 5, || {
            std::thread::sleep(Duration::from_millis(12));
            wait(4);
        });
        let network = |times: &Timeline, stage| times.stall(stage, Stall::Network).as_millis();
        assert_eq!((network(&times, Stage::Gradient), network(&times, Stage::State)), (3, 4));
        assert!((8..12).contains(&(times.busy(Stage::State).as_millis())), "{times:?}");
        wait(2);
        times.wait(Stage::Gradient, Stall::Empty, || std::thread::sleep(Duration::from_millis(1)));
        assert_eq!((network(&times, Stage::Gradient), times.waited(Stage::State).as_millis()), (5, 4));
        let trace = times.chrome_trace();
        let events = trace["traceEvents"].as_array().expect("a list");
        let count = |name: &str| events.iter().filter(|event| event["name"] == name && event["ph"] == "X").count();
        assert_eq!((count("network"), count("empty"), count("state 5"), count("full")), (3, 1, 1, 0));
        assert!(events.iter().filter(|event| event["cat"] == "wait").all(|event| event["args"]["batch"].is_null()));
    }
}
