//! `[replay]`: how long a queue of replay events may grow before the least important are dropped.
//!
//! A rank that follows other ranks' nodes queues, batch by batch, a unit of work for each (event, node) that touches one of
//! them. [`Pruner`] shortens a queue that grows beyond its bound (DepTGL, arXiv:2608.16305; algorithm page, section 7). The
//! configuration's defaults prune nothing. Absent on purpose: the updates themselves, which the state stage runs.

mod prune;

pub use prune::{Pruned, Pruner, Unit};

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

impl ReplayConfig {
    /// Whether a queue is ever pruned.
    pub fn prunes(&self) -> bool {
        self.l_max != Auto::Value(0)
    }
}

impl Default for ReplayConfig {
    fn default() -> Self {
        ReplayConfig { l_max: Auto::Value(0), delta: 0.2, lossy: true }
    }
}
