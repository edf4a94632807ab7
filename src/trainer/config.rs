//! `[train]`: how long, how fast and on which negatives a model is trained.

use serde::{Deserialize, Serialize};
use tidemill_data::negative::CandidateRule;
use tidemill_models::input::LossReduction;
use tidemill_models::optimizer::{LrSchedule, OptimizerKind};

/// The `[train]` table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Passes over the training split.
    pub epochs: u32,
    /// Events in a batch, over all ranks.
    pub batch_size: usize,
    /// Adam or AdamW.
    pub optimizer: OptimizerKind,
    /// Learning rate.
    pub lr: f64,
    /// How the learning rate changes; absent: it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr_schedule: Option<LrSchedule>,
    /// Decay of the parameters (decoupled under AdamW).
    pub weight_decay: f64,
    /// Longest gradient, by its Euclidean norm; absent: not clipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_norm: Option<f64>,
    /// Where a training event's negative destination is drawn from.
    pub negatives: CandidateRule,
    /// Never draw the event's own destination, neither in training nor in evaluation.
    pub avoid_positive: bool,
    /// Sum of the positives' and the negatives' mean losses, or half of it.
    pub loss: LossReduction,
    /// Epochs without a better validation AP before training stops; 0: never stop early.
    pub patience: u32,
    /// Batches of an epoch; 0: all.
    pub max_batches: usize,
    /// Stop training after this many seconds; 0: no limit.
    pub max_seconds: f64,
    /// Batches between two lines of `metrics.jsonl`; 0: none.
    pub log_every: usize,
    /// Batches between two checkpoints within an epoch; 0: only when a run ends or is stopped.
    pub checkpoint_every: usize,
    /// Checkpoints that stay on disk.
    pub keep_checkpoints: usize,
}

impl Default for TrainConfig {
    fn default() -> Self {
        TrainConfig {
            epochs: 10,
            batch_size: 200,
            optimizer: OptimizerKind::Adam,
            lr: 1e-4,
            lr_schedule: None,
            weight_decay: 0.0,
            clip_norm: None,
            negatives: CandidateRule::TrainDestinations,
            avoid_positive: true,
            loss: LossReduction::Sum,
            patience: 5,
            max_batches: 0,
            max_seconds: 0.0,
            log_every: 50,
            checkpoint_every: 0,
            keep_checkpoints: 3,
        }
    }
}
