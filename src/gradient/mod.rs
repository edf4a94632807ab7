//! `[gradient]`: how ranks exchange gradients, and what of it needs no tensors.
//!
//! `allreduce` is exact: each batch's step waits for the sum over all ranks. `racom` (MQ-GNN, arXiv:2601.04707, its
//! ready-to-update asynchronous consistent model) lets each rank step at once with its own gradient and adds the others' when
//! they come. [`window`]: what a rank says with a sum of its gradients. [`period`]: how many batches such a sum spans.
//! [`sketch`]: how far the ranks' parameters are apart. The exchange itself is `pipeline/racom.rs`.

pub mod period;
pub mod sketch;
pub mod window;

use serde::{Deserialize, Serialize};

/// The `[gradient]` table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GradientConfig {
    /// Plain sum over ranks, or the asynchronous consistent model.
    pub mode: GradientMode,
    /// Batches whose contributions travel together under `racom`; adapted from there.
    pub period: u32,
    /// Oldest contribution that may be applied, in batches; 0: each batch waits for its own.
    pub max_staleness: u32,
    /// Relative distance of a rank's parameters from the mean above which all are averaged.
    pub divergence_bound: f64,
}

impl Default for GradientConfig {
    fn default() -> Self {
        GradientConfig { mode: GradientMode::Allreduce, period: 4, max_staleness: 16, divergence_bound: 0.02 }
    }
}

/// Ways to exchange gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GradientMode {
    /// Every batch waits for the sum over all ranks.
    Allreduce,
    /// Ready-to-update asynchronous consistent model: contributions are applied as they arrive, within bounds.
    Racom,
}

impl GradientMode {
    /// The mode's name in results.
    pub fn name(self) -> &'static str {
        match self {
            GradientMode::Allreduce => "allreduce",
            GradientMode::Racom => "racom",
        }
    }
}
