//! `[eval]`: what the validation and test events are ranked against.

use serde::{Deserialize, Serialize};
use tidemill_data::negative::CandidateRule;

/// The `[eval]` table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvalConfig {
    /// How negatives are chosen among the candidates.
    pub negatives: NegativeKind,
    /// Where negative destinations are drawn from.
    pub candidates: CandidateRule,
    /// Which average the console, early stopping and the sweep show; the summary has both.
    pub average: Average,
    /// How events with a new node are scored.
    pub new_node: NewNode,
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
            average: Average::Pooled,
            new_node: NewNode::Subset,
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
    /// Edges of the training split that are absent at that time.
    Historical,
    /// Edges first seen after the training split.
    Inductive,
    /// One against many, by the sets of the Temporal Graph Benchmark.
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
