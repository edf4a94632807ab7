//! The four stages through which every batch goes: event, state, gradient, sync (MQ-GNN, arXiv:2601.04707, has queues for
//! static graphs; a memory model adds that batch k+1 reads what batch k writes).
//!
//! The trainer's loop *is* the gradient stage: it takes ready batches from here and gives back two commits, of the state
//! once the forward pass is done and of the parameters once the optimizer has stepped. Training and evaluation take the same
//! way. The stages before it run inline (`pipeline.serial`) or on workers that run ahead over bounded queues; a batch's state
//! is read only once the commit before it has happened, so both give the same bits.

mod config;
pub mod event;
pub mod exchange;
pub mod features;
pub mod frontier;
pub mod state;
pub mod sync;
pub mod wire;
pub mod workers;

pub use config::PipelineConfig;

use crate::comms::Communicator;
use crate::error::Result;
use crate::memory::NodeMemory;
use crate::partition::Rank;
use crate::stats::{Stage, Timeline};
use event::Pass;
use exchange::Peers;
use state::{ReadyBatch, StateWriter};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use tch::Tensor;
use tidemill_models::input::Embedded;
use tidemill_models::model::Model;
use workers::{Ahead, Stages, Workers};

/// The stages before and after the model.
pub struct Pipeline {
    config: PipelineConfig,
    memory: Arc<Mutex<NodeMemory>>,
    writer: StateWriter,
    running: Running,
    timeline: Timeline,
    comm: Communicator,
    /// Passes started; all ranks start the same ones.
    passes: u32,
    /// This rank's end of the running pass's messages; absent alone.
    peers: Option<Peers>,
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
    pub fn new(
        config: &PipelineConfig,
        stages: Stages,
        writer: StateWriter,
        memory: NodeMemory,
        comm: Communicator,
    ) -> Pipeline {
        Pipeline {
            config: config.clone(),
            memory: Arc::new(Mutex::new(memory)),
            writer,
            running: Running::Inline(Box::new(stages), None),
            timeline: Timeline::default(),
            comm,
            passes: 0,
            peers: None,
        }
    }

    /// Starts a pass from empty memory, at its first batch; one that still runs is ended.
    pub fn start_afresh(&mut self, pass: Pass, batches: Range<usize>) {
        self.stop();
        match &pass.partition {
            Some(partition) => self.memory().own_afresh(partition.table(0).nodes_of(self.me())),
            None => self.memory().reset(),
        }
        self.run(pass, batches, true);
    }

    /// Starts a pass, at any batch of it, from the state as it is; one that still runs is ended.
    pub fn start(&mut self, pass: Pass, batches: Range<usize>) {
        self.run(pass, batches, false);
    }

    fn run(&mut self, pass: Pass, batches: Range<usize>, blank: bool) {
        let mut stages = self.take_stages();
        stages.event.begin(&pass, blank);
        if let Some(partition) = &pass.partition {
            let peers = Peers::new(self.comm.clone(), self.passes);
            stages.reader.begin(peers.clone(), self.me(), partition.clone(), &self.memory);
            self.peers = Some(peers);
        }
        self.passes += 1;
        self.running = if self.config.serial {
            Running::Inline(stages, Some((pass, batches)))
        } else {
            let ahead = Ahead { plans: self.config.queue_max, staleness: self.config.staleness as usize };
            Running::Ahead(Workers::start(*stages, self.memory.clone(), pass, batches, ahead, &self.timeline))
        };
    }

    /// The next batch of the pass, planned, sampled and with its state read; `None` at the end.
    ///
    /// # Panics
    /// With the panic of a stage's worker, if it had one.
    ///
    /// # Errors
    /// A lost peer.
    pub fn next_batch(&mut self) -> Result<Option<ReadyBatch>> {
        let next = match &mut self.running {
            Running::Inline(stages, Some((pass, batches))) => match batches.next() {
                Some(batch) => {
                    let times = &mut self.timeline;
                    let plan = times.time(Stage::Event, batch, || stages.event.plan(pass, batch));
                    let reader = &mut stages.reader;
                    let read = || reader.prepare(plan).and_then(|prepared| reader.read(prepared, &self.memory));
                    Some(times.time(Stage::State, batch, read)?)
                }
                None => None,
            },
            Running::Ahead(workers) => workers.next_batch().transpose()?,
            _ => None,
        };
        if next.is_none() {
            self.stop();
        }
        Ok(next)
    }

    /// Ends the pass, wherever it is.
    pub fn stop(&mut self) {
        self.running = Running::Inline(self.take_stages(), None);
    }

    /// The state commit: the batch's endpoints get their new rows, their mail is cleared, the batch's mails are stored.
    ///
    /// # Errors
    /// A lost peer.
    pub fn commit_state(&mut self, batch: &ReadyBatch, embedded: &Embedded, model: &dyn Model) -> Result<()> {
        self.writer.commit(&self.memory, &batch.plan, embedded, model, self.peers.as_ref())?;
        if let Running::Ahead(workers) = &self.running {
            workers.committed();
        }
        Ok(())
    }

    /// The embeddings that this rank scores: its own and those of delegated roots, from their owners.
    ///
    /// * `z`: `[R, D_emb]`. * returns `[R + received, D_emb]`.
    ///
    /// # Errors
    /// A lost peer.
    pub fn exchange_embeddings(&self, batch: &ReadyBatch, z: &Tensor) -> Result<Tensor> {
        match &self.peers {
            Some(peers) => peers.exchange_embeddings(&batch.plan, z),
            None => Ok(z.shallow_clone()),
        }
    }

    /// The gradient of this rank's own embeddings, whoever scored them.
    ///
    /// * `grad_z`: `[R + received, D_emb]`. * returns `[R, D_emb]`.
    ///
    /// # Errors
    /// A lost peer.
    pub fn return_gradients(&self, batch: &ReadyBatch, grad_z: Tensor) -> Result<Tensor> {
        match &self.peers {
            Some(peers) => peers.return_gradients(&batch.plan, &grad_z),
            None => Ok(grad_z),
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

    /// The node memory; the stages do not write it, and wait while this is held.
    pub fn memory(&self) -> MutexGuard<'_, NodeMemory> {
        lock(&self.memory)
    }

    /// The stages' times.
    pub fn timeline(&mut self) -> &mut Timeline {
        &mut self.timeline
    }

    fn me(&self) -> Rank {
        Rank(self.comm.rank() as u16)
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
