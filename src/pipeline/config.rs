//! `[pipeline]`: how far the four stages may run ahead of each other.

use serde::{Deserialize, Serialize};

/// The `[pipeline]` table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PipelineConfig {
    /// Run the stages one after another on the caller's thread.
    pub serial: bool,
    /// Batches that a stage may be behind the commit it waits for; 0: exact.
    pub staleness: u32,
    /// Shortest queue between two stages, however scarce memory is.
    pub queue_min: usize,
    /// Longest queue between two stages.
    pub queue_max: usize,
    /// Seconds between two looks at the queues' lengths; 0: they are `queue_max` long.
    pub adapt_every_s: f64,
    /// Threads inside one tensor operation; 0: all of this rank's.
    pub intra_op: usize,
}

impl Default for PipelineConfig {
    fn default() -> Self {
        PipelineConfig { serial: false, staleness: 0, queue_min: 1, queue_max: 16, adapt_every_s: 2.0, intra_op: 0 }
    }
}
