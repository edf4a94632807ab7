//! `[dependency]`: whether a row that another rank owns is fetched, kept current by replay, or embedded by its owner.
//!
//! [`plan`] shares out a batch among ranks and works out who sends what to whom, in integers alone; [`copies`] keeps the books
//! of who holds which copy, [`replicas`] of who replays which node's events, as [`window`] and [`cost`] advise. The
//! configuration's defaults are the exact mode. Deliberately absent: tensors and messages.

pub mod copies;
pub mod cost;
pub mod count;
pub mod plan;
pub mod replicas;
pub mod routes;
pub mod window;

pub use cost::{Calibration, Costs};
pub use plan::{Counts, Exchange, GlobalBatch, PassFacts, Planner, Policy, Share, Traffic, Weights};
pub use routes::Routes;

use crate::byte_size::ByteSize;
use crate::setting::Auto;
use serde::{Deserialize, Serialize};

/// The `[dependency]` table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DependencyConfig {
    /// A remote row is cached iff its share of the cost is at most this: 0 fetches all, 1 caches all.
    pub tau_cache: Auto<f64>,
    /// Weight of communication in the cost.
    pub alpha: f64,
    /// Weight of replay and memory in the cost.
    pub beta: f64,
    /// Most bytes of copies on a rank.
    pub cache_bytes: ByteSize,
    /// Whether remote roots are embedded by their owners.
    pub delegate: Auto<bool>,
}

impl Default for DependencyConfig {
    fn default() -> Self {
        DependencyConfig {
            tau_cache: Auto::Value(0.0),
            alpha: 1.0,
            beta: 1.0,
            cache_bytes: ByteSize(1 << 30),
            delegate: Auto::Auto,
        }
    }
}

#[cfg(test)]
mod tests;
