//! What a program that embeds the trainer may look at while it runs.

use super::EpochRecord;
use crate::memory::NodeMemory;
use crate::pipeline::event::BatchPlan;
use tch::Tensor;
use tidemill_models::input::{ModelInput, Scored};
use tidemill_models::parameters::Parameters;

/// A training batch after its backward pass and before its optimizer step. With `pipeline.staleness > 0` earlier batches' steps
/// may be under way, and the gradient may turn out not to be finite.
pub struct TrainedBatch<'a> {
    /// The epoch, from 1.
    pub epoch: u32,
    /// Its events, negatives and samples.
    pub plan: &'a BatchPlan,
    /// What the model read.
    pub input: &'a ModelInput,
    /// `[N, D_m]`: the rows read, with their mail applied.
    pub rows: &'a Tensor,
    /// Logits, loss and the embeddings' gradient.
    pub scored: &'a Scored,
    /// Parameters and their gradients.
    pub parameters: &'a Parameters,
    /// The node state after the batch's state commit.
    pub memory: &'a NodeMemory,
}

/// Called after a training batch's backward pass.
pub type BatchHook = Box<dyn FnMut(&TrainedBatch<'_>) + Send>;

/// Called after an epoch's validation.
pub type EpochHook = Box<dyn FnMut(&EpochRecord) + Send>;

/// A program's hooks; they look and change nothing.
#[derive(Default)]
pub struct Hooks {
    batch: Option<BatchHook>,
    epoch: Option<EpochHook>,
}

impl Hooks {
    pub(super) fn wants_batches(&self) -> bool {
        self.batch.is_some()
    }

    pub(super) fn batch(&mut self, batch: &TrainedBatch<'_>) {
        if let Some(hook) = &mut self.batch {
            hook(batch);
        }
    }

    pub(super) fn epoch(&mut self, epoch: &EpochRecord) {
        if let Some(hook) = &mut self.epoch {
            hook(epoch);
        }
    }

    /// Calls `hook` after every training batch.
    pub fn on_batch(&mut self, hook: BatchHook) {
        self.batch = Some(hook);
    }

    /// Calls `hook` after every epoch.
    pub fn on_epoch(&mut self, hook: EpochHook) {
        self.epoch = Some(hook);
    }
}

impl super::Trainer {
    /// The hooks, to add to them.
    pub fn hooks_mut(&mut self) -> &mut Hooks {
        &mut self.hooks
    }
}
