//! Chronological splits and the new-node mask.
//!
//! By time quantile (TGN, arXiv:2006.10637): train is `t <= q70`, validation `(q70, q85]`, test the rest, with the
//! quantiles interpolated linearly between events. No float is compared with a time: with `h = q (E - 1)`, an event is at
//! or before the quantile iff it is at or before event `floor(h)`'s time, since interpolation never reaches the next time.
//! By count: the first `ceil(0.70 E)` events, then up to `ceil(0.85 E)`; ties may be cut.
//!
//! A *new node* has no event in the training split after the mask. The mask holds out nodes that have events after the
//! training split and drops their events from it, so that validation and test meet nodes never trained on.

use crate::error::{Error, Fault, FaultKind, Result};
use crate::id::{EventId, NodeId};
use crate::node_set::NodeSet;
use crate::philox::{Key, Purpose};
use crate::stream::EventStream;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How a stream is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SplitBy {
    /// By quantile of time; ties stay together.
    #[default]
    Quantile,
    /// By number of events.
    Count,
}

/// The `[split]` table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SplitConfig {
    /// By quantile of time or by count.
    pub by: SplitBy,
    /// Share of the training split.
    pub train: f64,
    /// Share of the validation split; the rest is test.
    pub val: f64,
    /// Share of all nodes to hold out of training as new.
    pub new_node_share: f64,
    /// Seed of the draw of new nodes.
    pub new_node_seed: u64,
    /// File with the nodes to hold out, one a line: `ID`, `src:ID`, `dst:ID` or `dense:NUMBER`.
    pub new_node_file: Option<PathBuf>,
}

impl Default for SplitConfig {
    fn default() -> SplitConfig {
        SplitConfig {
            by: SplitBy::Quantile,
            train: 0.70,
            val: 0.15,
            new_node_share: 0.0,
            new_node_seed: 0,
            new_node_file: None,
        }
    }
}

/// Shares are compared in billionths, so that 0.7 + 0.15 means 0.85.
const BILLION: u64 = 1_000_000_000;

fn billionths(share: f64) -> u64 {
    (share * BILLION as f64).round() as u64
}

impl SplitConfig {
    /// Checks the shares.
    ///
    /// # Errors
    /// [`Error::Setting`] names the key and the mend.
    pub fn validate(&self) -> Result<()> {
        let inside = |x: f64| x.is_finite() && (0.0..=1.0).contains(&x);
        if !inside(self.train) || self.train == 0.0 {
            return Err(Error::setting("split.train", self.train, "give a share above 0 and at most 1, as 0.70"));
        }
        if !inside(self.val) || billionths(self.train) + billionths(self.val) > BILLION {
            return Err(Error::setting(
                "split.val",
                self.val,
                "give a share that together with split.train is at most 1",
            ));
        }
        if !inside(self.new_node_share) || self.new_node_share >= 1.0 {
            return Err(Error::setting("split.new_node_share", self.new_node_share, "give a share from 0 to below 1"));
        }
        if self.new_node_share > 0.0 && self.new_node_file.is_some() {
            let mend = "give either split.new_node_share or split.new_node_file";
            return Err(Error::setting("split.new_node_share", self.new_node_share, mend));
        }
        Ok(())
    }
}

/// A stream cut into training, validation and test events.
#[derive(Clone, Debug)]
pub struct Split {
    /// Training events after the new-node mask, ascending.
    pub train: Arc<[EventId]>,
    /// First id after the training split, masked or not.
    pub train_end: EventId,
    /// Ids of the validation events.
    pub val: Range<u32>,
    /// Ids of the test events.
    pub test: Range<u32>,
    /// Nodes without an event in [`Split::train`].
    pub new_nodes: NodeSet,
    /// Training events that the mask dropped.
    pub masked: usize,
}

impl Split {
    /// Cuts the stream.
    ///
    /// # Errors
    /// If a setting is impossible, the file of new nodes does not fit, or no training event is left.
    pub fn new(stream: &EventStream, config: &SplitConfig) -> Result<Split> {
        config.validate()?;
        let train_end = boundary(stream, config.by, billionths(config.train));
        let val_end = boundary(stream, config.by, billionths(config.train) + billionths(config.val));
        let held_out = held_out(stream, config, train_end)?;
        let train = unmasked(stream, train_end, &held_out);
        if train.is_empty() {
            return Err(Error::EmptySplit { mend: "raise split.train or lower split.new_node_share".into() });
        }
        Ok(Split {
            masked: train_end as usize - train.len(),
            new_nodes: untrained(stream, &train),
            train: train.into(),
            train_end: EventId(train_end),
            val: train_end..val_end,
            test: val_end..stream.len() as u32,
        })
    }
}

/// Number of events up to the share's quantile or count.
fn boundary(stream: &EventStream, by: SplitBy, share: u64) -> u32 {
    let events = stream.len() as u64;
    let exact = |n: u64| u128::from(share) * u128::from(n);
    let billion = u128::from(BILLION);
    match by {
        _ if events == 0 => 0,
        SplitBy::Count => exact(events).div_ceil(billion) as u32,
        SplitBy::Quantile => {
            let lower = (exact(events - 1) / billion) as u32;
            stream.count_until(stream.time(EventId(lower))) as u32
        }
    }
}

/// The nodes to keep out of training.
fn held_out(stream: &EventStream, config: &SplitConfig, train_end: u32) -> Result<NodeSet> {
    if let Some(path) = &config.new_node_file {
        return read_nodes(stream, path);
    }
    let wanted = u128::from(billionths(config.new_node_share)) * u128::from(stream.nodes()) / u128::from(BILLION);
    if wanted == 0 {
        return Ok(NodeSet::new(stream.nodes()));
    }
    let mut later = NodeSet::new(stream.nodes());
    for event in (train_end..stream.len() as u32).map(EventId) {
        later.insert(stream.source(event));
        later.insert(stream.destination(event));
    }
    let mut pool: Vec<NodeId> = later.iter().collect();
    if (pool.len() as u128) < wanted {
        let mend = format!("only {} nodes have events after the training split; lower the share", pool.len());
        return Err(Error::setting("split.new_node_share", config.new_node_share, mend));
    }
    let key = Key::new(config.new_node_seed, Purpose::NewNode);
    let mut drawn = NodeSet::new(stream.nodes());
    for i in 0..wanted as usize {
        let rest = (pool.len() - i) as u32;
        pool.swap(i, i + key.below(i as u64, rest) as usize);
        drawn.insert(pool[i]);
    }
    Ok(drawn)
}

/// Reads a list of nodes, one a line; empty lines and lines that start with `#` are skipped.
pub(crate) fn read_nodes(stream: &EventStream, path: &Path) -> Result<NodeSet> {
    let text = std::fs::read_to_string(path).map_err(|e| Error::io(path, "read the list of nodes", e))?;
    let mut nodes = NodeSet::new(stream.nodes());
    for (row, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let node = stream.ids().find_entry(line).map_err(|reason| Fault {
            row: Some(row as u64 + 1),
            ..Fault::of_file(path, FaultKind::UnknownId { reason })
        })?;
        nodes.insert(node);
    }
    Ok(nodes)
}

fn unmasked(stream: &EventStream, train_end: u32, held_out: &NodeSet) -> Vec<EventId> {
    let events = (0..train_end).map(EventId);
    if held_out.is_empty() {
        return events.collect();
    }
    events.filter(|&e| !held_out.contains(stream.source(e)) && !held_out.contains(stream.destination(e))).collect()
}

fn untrained(stream: &EventStream, train: &[EventId]) -> NodeSet {
    let mut nodes = NodeSet::new(stream.nodes());
    (0..stream.nodes()).for_each(|n| {
        nodes.insert(NodeId(n));
    });
    for &event in train {
        nodes.remove(stream.source(event));
        nodes.remove(stream.destination(event));
    }
    nodes
}

#[cfg(test)]
mod tests;
