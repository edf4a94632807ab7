//! What `tidemill bench step` needs of a trainer: to train some batches and no more, and to tell what they took.

use super::Trainer;
use crate::error::Result;
use crate::stats::Timeline;
use tidemill_data::stream::EventStream;

impl Trainer {
    /// Trains the first epoch up to, and without, batch `end`; goes on from where an earlier call stopped.
    ///
    /// # Errors
    /// A loss or gradient that is not finite.
    pub fn train_until(&mut self, end: usize) -> Result<()> {
        self.config.train.max_batches = end.max(1);
        self.train_epoch().map(|_| ())
    }

    /// Batches of an epoch.
    pub fn batches(&self) -> usize {
        self.passes.train.batches()
    }

    /// Time that each stage was busy so far.
    pub fn stage_times(&mut self) -> Timeline {
        self.pipeline.timeline().clone()
    }

    /// The stream that is trained on.
    pub fn stream(&self) -> &EventStream {
        &self.stream
    }

    /// Threads of this rank.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Scalars in all parameters, P.
    pub fn parameter_count(&self) -> usize {
        self.model.parameters().values().numel()
    }
}
