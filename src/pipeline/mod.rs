//! The four stages through which every batch goes: event, state, gradient, sync (MQ-GNN, arXiv:2601.04707, has queues for
//! static graphs; a memory model adds that batch k+1 reads what batch k writes).
//!
//! The trainer's loop *is* the gradient stage: it takes ready batches from here and gives back two commits, of the state
//! once the forward pass is done and of the parameters once the optimizer has stepped. Training and evaluation take the same
//! way. The stages before it run inline (`pipeline.serial`) or on workers that run ahead over bounded queues; a batch's state
//! is read only once the commit before it has happened, so both give the same bits. With `pipeline.staleness = s > 0` a batch's
//! state may lack the commits of the s batches before, its parameters their steps, and the endpoints' rows are read again at the
//! state commit.

pub mod adaptive;
pub mod commit;
mod config;
pub mod event;
pub mod exchange;
pub mod features;
pub mod flat_sum;
pub mod footprint;
pub mod frontier;
pub mod gather;
pub mod handover;
pub mod queue_length;
pub mod racom;
mod rank_commit;
pub mod replay;
mod slots;
pub mod state;
pub mod sync;
pub mod wire;
pub mod workers;

pub use config::PipelineConfig;

use crate::boundary::{Boundary, Drift, Gate, SyncConfig};
use crate::comms::{Communicator, Launch};
use crate::dependency::{Costs, Counts, Traffic};
use crate::error::Result;
use crate::memory::NodeMemory;
use crate::partition::Rank;
use crate::stats::{Seen, Timeline};
use adaptive::QueueLengths;
use event::Pass;
use exchange::Peers;
use replay::ReplayCounts;
use state::{CommitRows, ReadyBatch, StateWriter};
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
    staleness: usize,
    timeline: Timeline,
    comm: Communicator,
    /// Passes started; all ranks start the same ones.
    passes: u32,
    /// This rank's end of the running pass's messages; absent alone.
    peers: Option<Peers>,
    counts: Counts,
    most_copied: u64,
    lengths: QueueLengths,
    sync: SyncConfig,
    approximates: bool,
    costs: Option<Costs>,
    /// Batches that may pass before all ranks know of a batch's gradient.
    gradient_lag: usize,
    crossed: Crossed,
}

/// What passes counted at the border to other ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Crossed {
    /// Of copies that were refreshed or corrected.
    pub drift: Drift,
    /// Rows used in an older version because the gate was closed.
    pub skipped: u64,
    /// Batches that found the gate open.
    pub open: u64,
    /// Batches that found it closed.
    pub closed: u64,
    /// Batches that refreshed copies.
    pub refreshed: u64,
    /// Sum of the windows' thresholds, and how many windows.
    pub tau: (f64, u64),
    /// What all ranks sent in training, as planned.
    pub planned: Traffic,
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
        sync: &SyncConfig,
        comm: Communicator,
    ) -> Pipeline {
        let (approximates, costs) = (stages.event.has_policy(), stages.event.costs());
        let sharers = match Launch::from_env() {
            Ok(launch) if launch.world > 1 => launch.local_world,
            _ => comm.world(),
        };
        let lengths = QueueLengths::new(config, memory.shape().device, sharers);
        Pipeline {
            lengths,
            config: config.clone(),
            memory: Arc::new(Mutex::new(memory)),
            writer,
            running: Running::Inline(Box::new(stages), None),
            staleness: 0,
            timeline: Timeline::default(),
            comm,
            passes: 0,
            peers: None,
            counts: Counts::default(),
            most_copied: 0,
            sync: sync.clone(),
            approximates,
            costs,
            gradient_lag: 0,
            crossed: Crossed::default(),
        }
    }

    /// All ranks know of a batch's gradient (see [`Pipeline::tell`]) only so many batches later, so the gate looks that far back.
    pub fn with_gradient_lag(mut self, batches: usize) -> Pipeline {
        self.gradient_lag = batches;
        self
    }

    /// Starts a pass at its first batch, from empty memory; one that still runs is ended.
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
        self.passes += 1;
        self.crossed = self.crossed();
        let staleness = if pass.is_training() && !self.config.serial { self.config.staleness as usize } else { 0 };
        let gated = pass.is_training() && self.sync.gates();
        let gate = gated.then(|| Gate::new(&self.sync, 2 + staleness + self.gradient_lag, batches.start));
        self.peers = pass.partition.as_ref().map(|partition| {
            let peers = Peers::new(self.comm.clone(), self.passes, Boundary::new(gate));
            stages.reader.begin(peers.clone(), self.me(), partition.clone(), &self.memory);
            peers
        });
        self.staleness = staleness;
        self.running = if self.config.serial {
            Running::Inline(stages, Some((pass, batches)))
        } else {
            let (plans, lengths) = (self.config.queue_max, self.lengths.clone());
            let ahead = Ahead { plans, lengths, staleness: self.staleness };
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
            Running::Inline(stages, Some((pass, batches))) => {
                if pass.is_training() {
                    self.timeline.saw(Seen::State, 0);
                }
                batches.next().map(|batch| stages.make(pass, batch, &self.memory, &mut self.timeline)).transpose()?
            }
            Running::Ahead(workers) => workers.next_batch(&mut self.timeline).transpose()?,
            _ => None,
        };
        match &next {
            Some(batch) => {
                self.counts.add(&batch.plan.counts);
                if batch.plan.training {
                    self.crossed.planned.add(&batch.plan.traffic);
                }
            }
            None => self.stop(),
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
        let rows = if self.staleness > 0 { CommitRows::ReadAgain } else { CommitRows::AsRead };
        if let Running::Ahead(workers) = &self.running {
            self.lengths.note_peak();
            workers.committing();
        }
        self.writer.commit(&self.memory, batch, embedded, model, (rows, self.peers.as_ref()))?;
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
    pub fn return_gradients(&self, batch: &ReadyBatch, grad_z: &Tensor) -> Result<Tensor> {
        match &self.peers {
            Some(peers) => peers.return_gradients(&batch.plan, grad_z),
            None => Ok(grad_z.shallow_clone()),
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

    /// How many items the queues between stages may hold, and what became of that.
    pub fn queue_lengths(&self) -> &QueueLengths {
        &self.lengths
    }

    /// Where remote rows came from, in all passes so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What all ranks know of a batch once its gradient is exchanged: its norm, and the drift that they found since.
    pub fn tell(&self, batch: usize, norm: f64, drift: Option<f64>) {
        if let Some(peers) = &self.peers {
            peers.boundary().tell(batch, norm, drift);
        }
    }

    /// Drift found here that the other ranks have not heard of: its sum, and of how many rows.
    pub fn untold_drift(&self) -> (f64, u64) {
        self.peers.as_ref().map_or((0.0, 0), |peers| peers.boundary().take_untold())
    }

    /// Whether rows are followed or gated, so that what is read depends on where the pass began.
    pub fn approximates(&self) -> bool {
        self.approximates
    }

    /// What sending and replay cost, on one of several ranks.
    pub fn costs(&self) -> Option<&Costs> {
        self.costs.as_ref()
    }

    /// What was counted at the border to other ranks, in all passes so far.
    pub fn crossed(&self) -> Crossed {
        let mut sum = self.crossed.clone();
        if let Some(peers) = &self.peers {
            let (drift, skipped, (open, closed), refreshed) = peers.boundary().counted();
            sum.drift.add(&drift);
            sum.skipped += skipped;
            sum.open += open;
            sum.closed += closed;
            sum.refreshed += refreshed;
        }
        sum
    }

    /// Replay does nothing from now on.
    #[cfg(test)]
    pub(crate) fn leave_replicas_as_they_are(&mut self) {
        self.writer.replayer_mut().idle = true;
    }

    /// What replay did, in training so far.
    pub fn replayed(&self) -> ReplayCounts {
        self.writer.replayer().counts()
    }

    /// Most bytes of other ranks' rows and features that were here at once.
    pub fn most_copied_bytes(&self) -> u64 {
        self.most_copied
    }

    fn me(&self) -> Rank {
        Rank(self.comm.rank() as u16)
    }

    fn take_stages(&mut self) -> Box<Stages> {
        let stages = match std::mem::replace(&mut self.running, Running::Moving) {
            Running::Inline(stages, _) => stages,
            Running::Ahead(workers) => {
                // A worker may wait for rows of a batch that no rank will run.
                self.peers.iter().for_each(Peers::close);
                Box::new(workers.join(&mut self.timeline))
            }
            Running::Moving => unreachable!("a worker's panic ended the pipeline"),
        };
        self.most_copied = self.most_copied.max(stages.reader.most_copied_bytes());
        let points = stages.event.points();
        self.crossed.tau.0 += points.iter().map(|point| point.tau).sum::<f64>();
        self.crossed.tau.1 += points.len() as u64;
        stages
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        if let Running::Ahead(workers) = std::mem::replace(&mut self.running, Running::Moving) {
            self.peers.iter().for_each(Peers::close);
            workers.end();
        }
    }
}

fn lock(memory: &Mutex<NodeMemory>) -> MutexGuard<'_, NodeMemory> {
    memory.lock().unwrap_or_else(std::sync::PoisonError::into_inner) // a reader's panic leaves the state as it was
}
