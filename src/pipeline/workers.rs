//! The event and the state stage on threads of their own, ahead of the trainer's loop.
//!
//! ```text
//!  event worker --plans--> state worker --ready batches--> trainer's loop
//!                               ^                                |
//!                               +------- state frontier ---------+   advances at each state commit
//! ```
//!
//! A batch's features and indices are prepared at once; its state is read when the frontier says that the commit before it
//! has happened, so results are those of the stages run inline. Dropping the workers, in the middle of a pass or after it,
//! closes the queues and the frontier, and joins; a stage that panicked makes its panic the caller's.

use super::adaptive::{QueueLengths, Sizer};
use super::event::{BatchPlan, EventStage, Pass};
use super::footprint::{plan_bytes, ready_bytes};
use super::frontier::Frontier;
use super::handover::Handover;
use super::state::{ReadyBatch, StateReader};
use crate::device;
use crate::error::Result;
use crate::memory::NodeMemory;
use crate::queue::{Gauge, Receiver, Sender};
use crate::stats::{self, Seen, Stage, Stall, Timeline};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

/// The stages that work ahead.
pub struct Stages {
    /// Stage 1.
    pub event: EventStage,
    /// Stage 2, but for its writes.
    pub reader: StateReader,
}

impl Stages {
    /// Plans a batch and reads its state, on the caller's thread.
    ///
    /// # Errors
    /// A lost peer.
    pub fn make(
        &mut self,
        pass: &Pass,
        batch: usize,
        memory: &Mutex<NodeMemory>,
        times: &mut Timeline,
    ) -> Result<ReadyBatch> {
        let plan = times.time(Stage::Event, batch, || self.event.plan(pass, batch));
        times.time(Stage::State, batch, || {
            let mut prepared = self.reader.prepare(plan)?;
            self.reader.bring(&mut prepared, memory)?;
            Ok(self.reader.read(prepared, &mut super::lock(memory)))
        })
    }
}

/// Two running workers.
pub struct Workers {
    ready: Option<Receiver<Result<ReadyBatch>>>,
    frontier: Arc<Frontier>,
    handover: Arc<Handover>,
    event: JoinHandle<(EventStage, Timeline)>,
    state: JoinHandle<(StateReader, Timeline)>,
    plans: Gauge<BatchPlan>,
    readies: Gauge<Result<ReadyBatch>>,
}

/// How a pass is run.
pub struct Ahead {
    /// Plans that may ever wait for the state stage.
    pub plans: usize,
    /// How many may wait now.
    pub lengths: QueueLengths,
    /// Batches that a state read may be behind the commit it would see in order.
    pub staleness: usize,
}

impl Workers {
    /// Starts both workers on some batches of a pass.
    pub fn start(
        stages: Stages,
        memory: Arc<Mutex<NodeMemory>>,
        pass: Pass,
        batches: Range<usize>,
        ahead: Ahead,
        timeline: &Timeline,
    ) -> Workers {
        let (plan_sender, plan_receiver, plan_sizer) = ahead.lengths.open(stats::Queue::Plans, ahead.plans);
        let (ready_sender, ready_receiver, ready_sizer) =
            ahead.lengths.open(stats::Queue::Batches, 1 + ahead.staleness);
        let (plans, readies) = (plan_sender.gauge(), ready_sender.gauge());
        let frontier = Arc::new(Frontier::default());
        let training = pass.is_training();
        let Stages { event, reader } = stages;
        let times = timeline.twin();
        let event = spawn(Stage::Event, move || plan_all(event, &pass, batches, (plan_sender, plan_sizer), times));
        let (times, commits) = (timeline.twin(), frontier.clone());
        let handover = Arc::new(Handover::new(super::lock(&memory).shape().device));
        let see = See { commits, handover: handover.clone(), staleness: ahead.staleness, training };
        let queues = (plan_receiver, ready_sender, ready_sizer);
        let state = spawn(Stage::State, move || read_all(reader, &memory, see, queues, times));
        Workers { ready: Some(ready_receiver), frontier, handover, event, state, plans, readies }
    }

    /// The next ready batch; `None` after the last, or if a worker panicked.
    pub fn next_batch(&mut self, times: &mut Timeline) -> Option<Result<ReadyBatch>> {
        let ready = self.ready.as_mut()?;
        let batch = times.wait(Stage::Gradient, Stall::Empty, || ready.recv())?;
        if let Ok(batch) = &batch {
            self.handover.take_over(batch);
        }
        Some(batch)
    }

    /// A batch is about to have its state commit.
    pub fn committing(&self) {
        self.handover.before_commit();
    }

    /// A batch has had its state commit.
    pub fn committed(&self) {
        self.handover.after_commit();
        self.frontier.advance();
    }

    /// Ends both workers, wherever they are, and gives the stages back.
    ///
    /// # Panics
    /// With a worker's own panic, if it had one.
    pub fn join(mut self, timeline: &mut Timeline) -> Stages {
        self.close();
        let (event, event_times) = self.event.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let (reader, state_times) = self.state.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        timeline.merge(event_times);
        timeline.merge(state_times);
        timeline.add_queue(stats::Queue::Plans, &self.plans.stats());
        timeline.add_queue(stats::Queue::Batches, &self.readies.stats());
        Stages { event, reader }
    }

    /// Ends both workers and forgets what they were doing, their panics included.
    pub fn end(mut self) {
        self.close();
        let _ = (self.event.join(), self.state.join());
    }

    /// Lets both workers go, whatever they wait for.
    fn close(&mut self) {
        self.ready = None;
        self.frontier.close();
    }
}

pub(super) fn spawn<T: Send + 'static>(stage: Stage, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let work = move || {
        device::work_beside_the_model(stage != Stage::Sync);
        work()
    };
    thread::Builder::new().name(format!("{}-stage", stage.name())).spawn(work).expect("the system can start a thread")
}

fn plan_all(
    mut event: EventStage,
    pass: &Pass,
    batches: Range<usize>,
    (mut plans, mut sizer): (Sender<BatchPlan>, Sizer<BatchPlan>),
    mut times: Timeline,
) -> (EventStage, Timeline) {
    for batch in batches {
        let plan = times.time(Stage::Event, batch, || event.plan(pass, batch));
        sizer.passes(|| plan_bytes(&plan));
        if times.wait(Stage::Event, Stall::Full, || plans.send(plan).is_err()) {
            break;
        }
    }
    (event, times)
}

/// What the state stage must see before it reads.
struct See {
    commits: Arc<Frontier>,
    handover: Arc<Handover>,
    staleness: usize,
    training: bool,
}

fn read_all(
    mut reader: StateReader,
    memory: &Mutex<NodeMemory>,
    see: See,
    (mut plans, mut ready, mut sizer): (Receiver<BatchPlan>, Sender<Result<ReadyBatch>>, Sizer<Result<ReadyBatch>>),
    mut times: Timeline,
) -> (StateReader, Timeline) {
    see.handover.own_stream();
    let first = super::lock(memory).commits();
    let mut before = 0usize; // batches of this run whose commits come before the one at hand
    while let Some(plan) = times.wait(Stage::State, Stall::Empty, || plans.recv()) {
        let batch = plan.batch;
        // Nodes that change hands, and replicas that go or are corrected, take every commit before the batch along.
        let settles = plan.exchange.opens_window.is_some() || plan.exchange.correct.is_some();
        let staleness = if settles { 0 } else { see.staleness };
        let prepared = times.time(Stage::State, batch, || reader.prepare(plan));
        let may_read =
            times.wait(Stage::State, Stall::Hazard, || see.commits.wait_for(before.saturating_sub(staleness)));
        if !may_read {
            break;
        }
        let read = times.time(Stage::State, batch, || {
            let mut prepared = prepared?;
            reader.bring(&mut prepared, memory)?;
            let mut memory = super::lock(memory);
            see.handover.before_read();
            let read = reader.read(prepared, &mut memory);
            Ok((ReadyBatch { arrived: Some(see.handover.after_read()), ..read }, memory.commits() - first))
        });
        let read = read.map(|(batch, seen)| {
            if see.training {
                times.saw(Seen::State, before - seen);
            }
            batch
        });
        let failed = read.is_err();
        sizer.passes(|| read.as_ref().map_or(0, ready_bytes));
        if times.wait(Stage::State, Stall::Full, || ready.send(read).is_err()) || failed {
            break;
        }
        before += 1;
    }
    (reader, times)
}
