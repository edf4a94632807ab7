//! The four stages through which every batch goes: event, state, gradient, sync (MQ-GNN, arXiv:2601.04707, has queues for
//! static graphs; a memory model adds that batch k+1 reads what batch k writes).
//!
//! The trainer's loop *is* the gradient stage: it takes ready batches from here and gives back two commits, of the state
//! once the forward pass is done and of the parameters once the optimizer has stepped. Training and evaluation take the same
//! way. The stages before it run inline (`pipeline.serial`) or on workers that run ahead over bounded queues; a batch's state
//! is read only once the commit before it has happened, so both give the same bits. With `pipeline.staleness = s > 0` a batch's
//! state may lack the commits of the s batches before, its parameters their steps, and the endpoints' rows are read again at the
//! state commit.

pub mod commit;
mod config;
pub mod event;
pub mod frontier;
pub mod gather;
mod slots;
pub mod state;
pub mod sync;
pub mod workers;

pub use config::PipelineConfig;

use crate::memory::NodeMemory;
use crate::stats::{Seen, Stage, Timeline};
use event::Pass;
use state::{CommitRows, ReadyBatch, StateWriter};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use tidemill_models::input::Embedded;
use tidemill_models::model::Model;
use workers::{Ahead, Stages, Workers};

/// The stages before and after the model.
pub struct Pipeline {
    config: PipelineConfig,
    memory: Arc<Mutex<NodeMemory>>,
    writer: StateWriter,
    running: Running,
    staleness: usize,
    timeline: Timeline,
}

/// Who has the stages.
enum Running {
    Inline(Box<Stages>, Option<(Pass, Range<usize>)>),
    Ahead(Workers),
    /// Between two of the others.
    Moving,
}

impl Pipeline {
    /// A pipeline without a pass.
    pub fn new(config: &PipelineConfig, stages: Stages, writer: StateWriter, memory: NodeMemory) -> Pipeline {
        Pipeline {
            config: config.clone(),
            memory: Arc::new(Mutex::new(memory)),
            writer,
            running: Running::Inline(Box::new(stages), None),
            staleness: 0,
            timeline: Timeline::default(),
        }
    }

    /// Starts a pass, at any batch of it; one that still runs is ended.
    pub fn start(&mut self, pass: Pass, batches: Range<usize>) {
        let stages = self.take_stages();
        let training = pass.epoch > 0;
        self.staleness = if training && !self.config.serial { self.config.staleness as usize } else { 0 };
        self.running = if self.config.serial {
            Running::Inline(stages, Some((pass, batches)))
        } else {
            let ahead = Ahead { plans: self.config.queue_max, staleness: self.staleness };
            Running::Ahead(Workers::start(*stages, self.memory.clone(), pass, batches, ahead, &self.timeline))
        };
    }

    /// The next batch of the pass, planned, sampled and with its state read; `None` at the end.
    ///
    /// # Panics
    /// With the panic of a stage's worker, if it had one.
    pub fn next_batch(&mut self) -> Option<ReadyBatch> {
        let next = match &mut self.running {
            Running::Inline(stages, Some((pass, batches))) => {
                if pass.epoch > 0 {
                    self.timeline.saw(Seen::State, 0);
                }
                let batch = batches.next()?;
                let times = &mut self.timeline;
                let plan = times.time(Stage::Event, batch, || stages.event.plan(pass, batch));
                let memory = lock(&self.memory);
                Some(times.time(Stage::State, batch, || stages.reader.read(stages.reader.prepare(plan), &memory)))
            }
            Running::Ahead(workers) => workers.next_batch(),
            _ => None,
        };
        if next.is_none() {
            self.stop();
        }
        next
    }

    /// Ends the pass, wherever it is.
    pub fn stop(&mut self) {
        self.running = Running::Inline(self.take_stages(), None);
    }

    /// The state commit: the batch's endpoints get their new rows, their mail is cleared, the batch's mails are stored.
    pub fn commit_state(&mut self, batch: &ReadyBatch, embedded: &Embedded, model: &dyn Model) {
        let rows = if self.staleness > 0 { CommitRows::ReadAgain } else { CommitRows::AsRead };
        self.writer.commit(&mut lock(&self.memory), batch, embedded, model, rows);
        if let Running::Ahead(workers) = &self.running {
            workers.committed();
        }
    }

    /// The parameter commit: the batch can no longer be taken back.
    pub fn commit_parameters(&mut self) {
        self.memory().settle();
    }

    /// Takes back the state commits that no parameter commit followed, and ends the pass.
    pub fn roll_back(&mut self) {
        self.stop();
        self.memory().roll_back();
    }

    /// Batches that the pass under way may be behind each of its two frontiers, the state's and the parameters'. 0 where
    /// stages run inline, and in evaluation, whose scores are always exact.
    pub fn staleness(&self) -> usize {
        self.staleness
    }

    /// The node memory; the stages do not write it, and wait while this is held.
    pub fn memory(&self) -> MutexGuard<'_, NodeMemory> {
        lock(&self.memory)
    }

    /// The stages' times.
    pub fn timeline(&mut self) -> &mut Timeline {
        &mut self.timeline
    }

    fn take_stages(&mut self) -> Box<Stages> {
        match std::mem::replace(&mut self.running, Running::Moving) {
            Running::Inline(stages, _) => stages,
            Running::Ahead(workers) => Box::new(workers.join(&mut self.timeline)),
            Running::Moving => unreachable!("a worker's panic ended the pipeline"),
        }
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        if let Running::Ahead(workers) = std::mem::replace(&mut self.running, Running::Moving) {
            workers.end();
        }
    }
}

fn lock(memory: &Mutex<NodeMemory>) -> MutexGuard<'_, NodeMemory> {
    memory.lock().unwrap_or_else(std::sync::PoisonError::into_inner) // a reader's panic leaves the state as it was
}
