//! `[sync]`: when copies of rows that other ranks own are refreshed.
//!
//! This release trains on one rank, which has no copies: only the configuration exists. Its defaults never close the gate.
//! Deliberately absent: the gate, the versions and the measured drift.

use crate::setting::Auto;
use serde::{Deserialize, Serialize};

/// The `[sync]` table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SyncConfig {
    /// Gradient norm below which copies may age; 0: never.
    pub eps_grad: Auto<f64>,
    /// Batches between two refreshes while the gate is closed.
    pub relaxed_interval: u32,
    /// Batches between two corrections of cached rows; 0: a window.
    pub cached_interval: u32,
    /// Relative drift of a copy that `"auto"` stays below.
    pub drift_budget: f64,
}

impl Default for SyncConfig {
    fn default() -> Self {
        SyncConfig { eps_grad: Auto::Value(0.0), relaxed_interval: 5, cached_interval: 0, drift_budget: 0.05 }
    }
}
