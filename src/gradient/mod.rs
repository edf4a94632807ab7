//! `[gradient]`: how ranks exchange gradients.
//!
//! This release trains on one rank, which exchanges nothing: only the configuration exists.

use serde::{Deserialize, Serialize};

/// The `[gradient]` table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GradientConfig {
    /// Plain sum over ranks, or the asynchronous consistent model.
    pub mode: GradientMode,
    /// Batches whose contributions travel together under `racom`.
    pub period: u32,
    /// Oldest contribution that may be applied, in batches.
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
