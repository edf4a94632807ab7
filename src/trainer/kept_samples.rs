//! When a pass's samples are kept for the passes after it: training's before the first of several epochs, validation's before
//! its first scoring. The test split is scored once.

use super::Trainer;
use crate::pipeline::event::Pass;
use crate::sampler::Strategy;
use crate::stats::Stage;
use std::path::Path;

impl Trainer {
    /// Keeps what the positive roots of training see, if another epoch follows.
    pub(super) fn keep_training_samples(&mut self) {
        if self.history.epoch < self.config.train.epochs && self.passes.train.cache.is_none() {
            let (pass, batches) = (self.passes.train.clone(), self.epoch_batches(&self.passes.train));
            self.passes.train = self.with_samples(pass, batches, self.config.sampler.cache_bytes.0);
        }
    }

    /// Keeps what the roots of validation see, its negatives included.
    pub(super) fn keep_validation_samples(&mut self) {
        if self.passes.val.cache.is_none() {
            let taken = self.passes.train.cache.as_ref().map_or(0, |cache| cache.bytes());
            let (pass, left) = (self.passes.val.clone(), self.config.sampler.cache_bytes.0.saturating_sub(taken));
            let batches = pass.batches();
            self.passes.val = self.with_samples(pass, batches, left);
        }
    }

    fn with_samples(&mut self, pass: Pass, batches: usize, most_bytes: u64) -> Pass {
        if !self.config.sampler.cache || self.config.sampler.strategy != Strategy::Recent {
            return pass;
        }
        let folder = self.run_folder().map_or_else(std::env::temp_dir, Path::to_path_buf);
        let make = || pass.clone().with_cache(&self.stream, batches, most_bytes, &folder);
        self.pipeline.timeline().time(Stage::Event, 0, make).unwrap_or_else(|error| {
            tracing::warn!(
                "samples are not kept, each epoch makes them again: {} can not hold them ({error})",
                folder.display()
            );
            pass
        })
    }
}
