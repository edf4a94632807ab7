//! `[sync]`: when copies of rows that other ranks own are refreshed.
//!
//! [`Gate`] decides by the norm of the gradient whether the copies that a batch reads are brought up to date; [`Boundary`] is
//! what one rank keeps of it: which version of a row it sent or got last, which replicas fell behind, and how far copies had
//! drifted when they were refreshed (DepTGL, arXiv:2608.16305; algorithm page, section 6). The configuration's defaults never close the
//! gate. Absent on purpose: messages and tensors.

mod gate;
mod ledger;

pub use gate::Gate;
pub use ledger::{Boundary, Drift, Outdated};

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

impl SyncConfig {
    /// Whether the gate can ever close.
    pub fn gates(&self) -> bool {
        self.eps_grad != Auto::Value(0.0)
    }
}

impl Default for SyncConfig {
    fn default() -> Self {
        SyncConfig { eps_grad: Auto::Value(0.0), relaxed_interval: 5, cached_interval: 0, drift_budget: 0.05 }
    }
}
