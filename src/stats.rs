//! What the stages did with their time: busy, and waiting for what.

use crate::device;
use crate::queue::QueueStats;
use serde::{Deserialize, Serialize};
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

/// One stretch of work on a batch.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Who worked.
    pub stage: Stage,
    /// On which batch of its pass, from 0.
    pub batch: usize,
    /// Since the timeline's start.
    pub start: Duration,
    /// How long.
    pub length: Duration,
    /// Whether it is an exchange that was under way while the stages worked, `batch` the last batch in it.
    pub in_flight: bool,
}

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
    stalls: [[Duration; 3]; 4],
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
        let result = work();
        self.add(stage, batch, start);
        result
    }

    /// A stage was busy on a batch since `start`.
    pub fn add(&mut self, stage: Stage, batch: usize, start: Instant) {
        let length = start.elapsed();
        self.busy[stage as usize] += length;
        if let Some(spans) = &mut self.spans {
            spans.push(Span { stage, batch, start: start - self.origin, length, in_flight: false });
        }
    }

    /// An exchange of gradients has been under way since `start`, up to those of `batch`; nobody's time.
    pub fn add_exchange(&mut self, batch: usize, start: Instant) {
        if let Some(spans) = &mut self.spans {
            let (start, length) = (start - self.origin, start.elapsed());
            spans.push(Span { stage: Stage::Sync, batch, start, length, in_flight: true });
        }
    }

    /// Waits on a stage's account.
    pub fn wait<T>(&mut self, stage: Stage, stall: Stall, wait: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = wait();
        self.add_stall(stage, stall, start.elapsed());
        result
    }

    /// A stage has waited.
    pub fn add_stall(&mut self, stage: Stage, stall: Stall, waited: Duration) {
        self.stalls[stage as usize][stall as usize] += waited;
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
            for stall in 0..3 {
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
    /// microseconds.
    pub fn chrome_trace(&self) -> serde_json::Value {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let rows = Stage::ALL.map(Stage::name).into_iter().chain(["exchange"]);
        let event = |span: &Span| {
            let (row, name) = if span.in_flight { (4, "exchange") } else { (span.stage as usize, span.stage.name()) };
            serde_json::json!({
                "ph": "X", "pid": 0, "tid": row, "cat": name,
                "name": format!("{name} {}", span.batch), "args": { "batch": span.batch },
                "ts": micros(span.start), "dur": micros(span.length),
            })
        };
        let names = rows.enumerate().map(|(row, name)| {
            serde_json::json!({ "ph": "M", "pid": 0, "tid": row, "name": "thread_name", "args": { "name": name } })
        });
        serde_json::json!({ "traceEvents": names.chain(self.spans().iter().map(event)).collect::<Vec<_>>() })
    }
}
