//! What a run has done so far: where it stands in its epochs, what they gave, and which was best.

use crate::eval::{Average, SplitMetrics};
use crate::sampler::SampleHash;
use crate::trainer::TrainConfig;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Position and results of a run; part of every checkpoint.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct History {
    /// The epoch being trained, from 1.
    pub epoch: u32,
    /// Batches of it that are done.
    pub batch: usize,
    /// Events of it that are done.
    pub events_in_epoch: u64,
    /// Fingerprint of all samples trained on.
    pub sample_hash: SampleHash,
    /// Closed epochs.
    pub epochs: Vec<EpochRecord>,
    /// Batches trained in all epochs.
    pub batches: u64,
    /// Batches that all epochs would take.
    pub planned_batches: u64,
    loss_sum: f64,
    seconds_in_epoch: f64,
}

/// One closed epoch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EpochRecord {
    /// Number, from 1.
    pub epoch: u32,
    /// Mean loss over the events.
    pub loss: f64,
    /// Validation metrics.
    pub val: SplitMetrics,
    /// What early stopping compares: the validation AP, or MRR where events are ranked one against many.
    pub val_ap: f64,
    /// Seconds of training, evaluation excluded.
    pub seconds: f64,
    /// Training events.
    pub events: u64,
    /// Training events per second.
    pub train_events_per_s: f64,
    /// Hash of the whole state after its last training batch.
    pub state_hash: String,
    /// Whether no earlier epoch had a better validation AP.
    pub is_best: bool,
}

impl History {
    /// The history of a run that is about to start, of `batches` batches an epoch.
    pub fn start(batches: usize, epochs: u32) -> History {
        History { epoch: 1, planned_batches: batches as u64 * u64::from(epochs), ..History::default() }
    }

    /// Whether the epochs or the patience are used up.
    pub fn finished(&self, config: &TrainConfig) -> bool {
        let out_of_patience = config.patience > 0
            && self.epochs.last().is_some_and(|last| last.epoch - self.best_epoch() >= config.patience);
        self.epoch > config.epochs || out_of_patience
    }

    /// Adds a trained batch.
    pub fn record(&mut self, events: usize, hash: SampleHash, loss: f64, took: Duration) {
        self.batch += 1;
        self.batches += 1;
        self.events_in_epoch += events as u64;
        self.loss_sum += loss * events as f64;
        self.seconds_in_epoch += took.as_secs_f64();
        self.sample_hash += hash;
    }

    /// Mean loss of the epoch's events so far.
    pub fn mean_loss(&self) -> f64 {
        self.loss_sum / self.events_in_epoch.max(1) as f64
    }

    /// Seconds of training in all epochs.
    pub fn train_seconds(&self) -> f64 {
        self.epochs.iter().map(|epoch| epoch.seconds).sum::<f64>() + self.seconds_in_epoch
    }

    /// Number of the epoch with the best validation AP, the first of equals; 0 before there is one.
    pub fn best_epoch(&self) -> u32 {
        self.epochs.iter().rev().find(|epoch| epoch.is_best).map_or(0, |epoch| epoch.epoch)
    }

    /// Closes the epoch and moves to the next.
    pub fn close_epoch(&mut self, val: SplitMetrics, state_hash: String, average: Average) -> &EpochRecord {
        let val_ap = val.score(average);
        let best_before = self.epochs.iter().map(|epoch| epoch.val_ap).fold(f64::NEG_INFINITY, f64::max);
        self.epochs.push(EpochRecord {
            epoch: self.epoch,
            loss: self.mean_loss(),
            val_ap,
            val,
            seconds: self.seconds_in_epoch,
            events: self.events_in_epoch,
            train_events_per_s: self.events_in_epoch as f64 / self.seconds_in_epoch.max(1e-9),
            state_hash,
            is_best: val_ap > best_before,
        });
        self.epoch += 1;
        (self.batch, self.events_in_epoch, self.loss_sum, self.seconds_in_epoch) = (0, 0, 0.0, 0.0);
        self.epochs.last().expect("just pushed")
    }
}
