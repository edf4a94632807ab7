//! The four stages through which every batch goes: event, state, gradient, sync (MQ-GNN, arXiv:2601.04707, has queues for
//! static graphs; a memory model adds that batch k+1 reads what batch k writes).
//!
//! The trainer's loop *is* the gradient stage: it takes ready batches from here and gives back two commits, of the state
//! once the forward pass is done and of the parameters once the optimizer has stepped. Training and evaluation take the same
//! way. Stages run inline, one batch at a time: nothing here depends on that, a stage's output is owned and can be queued.

mod config;
pub mod event;
pub mod state;
pub mod sync;

pub use config::PipelineConfig;

use crate::memory::NodeMemory;
use crate::stats::{Stage, StageTimes};
use event::{EventStage, Pass};
use state::{ReadyBatch, StateStage};
use std::ops::Range;
use tidemill_models::input::Embedded;
use tidemill_models::model::Model;

/// The stages before and after the model.
pub struct Pipeline {
    event: EventStage,
    state: StateStage,
    pass: Option<(Pass, Range<usize>)>,
    times: StageTimes,
}

impl Pipeline {
    /// A pipeline without a pass.
    pub fn new(event: EventStage, state: StateStage) -> Pipeline {
        Pipeline { event, state, pass: None, times: StageTimes::default() }
    }

    /// Starts a pass, at any batch of it.
    pub fn start(&mut self, pass: Pass, batches: Range<usize>) {
        self.pass = Some((pass, batches));
    }

    /// The next batch of the pass, planned, sampled and with its state read; `None` at the end.
    pub fn next_batch(&mut self) -> Option<ReadyBatch> {
        let (pass, batches) = self.pass.as_mut()?;
        let batch = batches.next()?;
        let plan = self.times.time(Stage::Event, || self.event.plan(pass, batch));
        Some(self.times.time(Stage::State, || self.state.read(plan)))
    }

    /// The state commit: the batch's endpoints get their new rows, their mail is cleared, the batch's mails are stored.
    pub fn commit_state(&mut self, batch: &ReadyBatch, embedded: &Embedded, model: &dyn Model) {
        self.times.time(Stage::State, || self.state.commit(&batch.plan, embedded, model));
    }

    /// The parameter commit: the batch can no longer be taken back.
    pub fn commit_parameters(&mut self) {
        self.state.memory_mut().settle();
    }

    /// Takes back the state commits that no parameter commit followed.
    pub fn roll_back(&mut self) {
        self.state.memory_mut().roll_back();
    }

    /// The node memory.
    pub fn memory(&self) -> &NodeMemory {
        self.state.memory()
    }

    /// The node memory between passes: to reset or to restore.
    pub fn memory_mut(&mut self) -> &mut NodeMemory {
        self.state.memory_mut()
    }

    /// The stages' timers.
    pub fn times(&mut self) -> &mut StageTimes {
        &mut self.times
    }
}
