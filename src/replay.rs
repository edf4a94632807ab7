//! `[replay]`: how long a queue of replay events may grow before the least important are dropped.
//!
//! This release trains on one rank, which replays nothing: only the configuration exists. Its defaults prune nothing.

use crate::setting::Auto;
use serde::{Deserialize, Serialize};

/// The `[replay]` table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReplayConfig {
    /// Length of the queue to prune down to, in (event, node) pairs; 0: no pruning.
    pub l_max: Auto<u64>,
    /// Pruning starts at `l_max * (1 + delta)`.
    pub delta: f64,
    /// Whether replay events that change a result may be dropped too.
    pub lossy: bool,
}

impl Default for ReplayConfig {
    fn default() -> Self {
        ReplayConfig { l_max: Auto::Value(0), delta: 0.2, lossy: true }
    }
}
