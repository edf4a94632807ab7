//! `[partition]`: which rank owns which node in which window of time.
//!
//! This release trains on one rank, which owns every node: only the configuration exists, so that files written for later
//! releases keep their meaning. Deliberately absent: the strategies and the table.

use serde::{Deserialize, Serialize};

/// The `[partition]` table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PartitionConfig {
    /// How nodes are given to ranks.
    pub strategy: Strategy,
    /// Events in a window, rounded up to whole batches.
    pub window_events: usize,
    /// The busiest rank's events over the mean above which nodes move to other ranks.
    pub rebalance_above: f64,
}

impl Default for PartitionConfig {
    fn default() -> Self {
        PartitionConfig { strategy: Strategy::Fennel, window_events: 10_000, rebalance_above: 1.2 }
    }
}

/// Ways to give nodes to ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// By a hash of the node id.
    Hash,
    /// By contiguous ranges of node ids.
    Range,
    /// By degree, the largest first, to the least loaded rank.
    Degree,
    /// Streaming, few cut events (Tsourakakis et al., WSDM 2014).
    Fennel,
    /// By affinity that decays with time, anew in each window.
    Temporal,
}
