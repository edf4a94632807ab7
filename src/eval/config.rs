//! `[eval]`: what the validation and test events are ranked against.

use serde::{Deserialize, Serialize};
use tidemill_data::negative::CandidateRule;

/// The `[eval]` table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvalConfig {
    /// How negatives are chosen among the candidates.
    pub negatives: NegativeKind,
    /// Where negative destinations are drawn from; under `tgb` also an `.npz` file of whole candidate sets.
    pub candidates: CandidateRule,
    /// Candidates that an event is ranked against under `tgb`, at most.
    pub candidates_per_event: usize,
    /// Events ranked under `tgb`, drawn by `negative_seed`; 0: all. The others still pass through the state.
    pub mrr_events: usize,
    /// Which average the console, early stopping and the sweep show; the summary has both.
    pub average: Average,
    /// How events with a new node are scored.
    pub new_node: NewNode,
    /// The state that the validation split is scored from, once training is over.
    pub state: StateBefore,
    /// Events in a batch; 0: `train.batch_size`.
    pub batch_size: usize,
    /// Seed of the negatives, alike for every run whatever its `seed`.
    pub negative_seed: u64,
}

impl Default for EvalConfig {
    fn default() -> Self {
        EvalConfig {
            negatives: NegativeKind::Random,
            candidates: CandidateRule::TrainDestinations,
            candidates_per_event: 999,
            mrr_events: 0,
            average: Average::Pooled,
            new_node: NewNode::Subset,
            state: StateBefore::Trained,
            batch_size: 0,
            negative_seed: 0,
        }
    }
}

/// Kinds of negatives in evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NegativeKind {
    /// Uniform over the candidates.
    Random,
    /// Edges seen before that are absent at the batch's time, sources included.
    Historical,
    /// Of the historical ones, those that training did not see.
    Inductive,
    /// One against many: the mean reciprocal rank in the sets of the Temporal Graph Benchmark.
    Tgb,
}

/// Over what a metric is averaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Average {
    /// One metric over all scores of the split.
    Pooled,
    /// Unweighted mean of the batches' metrics.
    Batch,
}

/// How events that touch a node unseen in training are scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NewNode {
    /// In a pass of their own, on a copy of the state that is dropped afterwards.
    SeparatePass,
    /// As the part of the one pass whose events touch a new node.
    Subset,
    /// Not at all.
    Off,
}

/// The state before the validation events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateBefore {
    /// As the best epoch's training left it, made by parameters that changed on the way.
    Trained,
    /// Made anew from the training events, by the best parameters alone.
    Replayed,
}
