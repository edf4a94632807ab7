//! `[partition]`: which rank owns which node in which window of time, and which rank runs which event.
//!
//! ```text
//! events of a pass   |--------- window 0 ---------|--------- window 1 ---------|--- window 2 ---|
//!                     batch batch ...              batch batch ...
//! node -> owner       table 0        moved(1): nodes whose state changes hands
//! event -> primary    the owner of one of its endpoints
//! ```
//!
//! A window is `window_events` events rounded up to whole batches; the last one ends with the pass. In each a
//! [`PartitionTable`] gives every node one owner, those without events too. Where a coming window's events would be spread too
//! unevenly, some nodes move before it starts. The strategies are Fennel (Tsourakakis et al., WSDM 2014), streamed several times
//! over (Nishimura and Ugander, KDD 2013), and the usual references: by hash, by range, by degree.
//!
//! Invariants:
//! - A [`Partition`] is a pure function of its inputs: counts of events, integers and square roots, no clock and no random
//!   word. So every rank that computes it finds the same one.
//! - Every node has exactly one owner in each window; every event is primary on exactly one rank, which owns an endpoint of it.
//! - `moved(w)` is the difference of the tables of windows w - 1 and w.
//! - The order of events is known ahead, so a window's own events and those of the pass are looked at; scores are not
//!   touched by where they are computed.
//!
//! Absent on purpose: what a rank needs of the others (`dependency`), and the moving of rows.

mod event_graph;
mod primary;
mod statistics;
mod strategy;
mod table;
#[cfg(test)]
mod tests;
mod windows;

pub use statistics::{PartitionStatistics, WindowStatistics};
pub use table::{PartitionTable, Rank};

use primary::Primaries;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tidemill_data::id::{EventId, NodeId};
use tidemill_data::stream::EventStream;
use windows::Windows;

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

/// The endpoints of an event: source, destination.
type Ends = [NodeId; 2];

/// The tables of all windows of a pass, and the rank that runs each of its events.
#[derive(Clone, Debug)]
pub struct Partition {
    windows: Windows,
    ranks: usize,
    /// One per window; a window that moves nothing shares the table of the one before.
    tables: Vec<Arc<PartitionTable>>,
    moved: Vec<Vec<(NodeId, Rank, Rank)>>,
    /// By position in the pass.
    primary: Vec<Rank>,
    statistics: PartitionStatistics,
    last: Arc<PartitionTable>,
}

impl Partition {
    /// Partitions a pass.
    ///
    /// * `events`: the pass's, in order.
    /// * `batch_size`: events of a batch, over all ranks.
    /// * `before`: owners when the pass starts. An evaluation goes on from training's last table; an epoch of training, which
    ///   starts from an untouched state, has none and may choose its first table freely.
    ///
    /// # Panics
    /// If `batch_size` is 0, `ranks` is not in `1..=65535`, or `before` is of other nodes or other ranks.
    pub fn new(
        stream: &EventStream,
        events: &[EventId],
        batch_size: usize,
        ranks: usize,
        config: &PartitionConfig,
        before: Option<&PartitionTable>,
    ) -> Partition {
        let ends: Vec<Ends> = events.iter().map(|&e| [stream.source(e), stream.destination(e)]).collect();
        Partition::of_ends(stream.nodes(), &ends, batch_size, ranks, config, before)
    }

    fn of_ends(
        nodes: u32,
        ends: &[Ends],
        batch_size: usize,
        ranks: usize,
        config: &PartitionConfig,
        before: Option<&PartitionTable>,
    ) -> Partition {
        assert!((1..=usize::from(u16::MAX)).contains(&ranks), "{ranks} ranks: a rank is a u16");
        if let Some(table) = before {
            let found = (table.owners().len(), table.ranks());
            assert_eq!(found, (nodes as usize, ranks), "nodes and ranks of the table before the pass");
        }
        let windows = Windows::new(ends.len(), batch_size, config.window_events);
        let first = match before {
            Some(table) => table.clone(),
            None => strategy::first_table(config.strategy, nodes, ends, ranks),
        };
        let mut last = Arc::new(first);
        let mut partition = Partition {
            ranks,
            tables: Vec::with_capacity(windows.count()),
            moved: Vec::with_capacity(windows.count()),
            primary: Vec::with_capacity(ends.len()),
            statistics: PartitionStatistics::default(),
            last: last.clone(),
            windows,
        };
        for window in 0..partition.windows.count() {
            let here = &ends[partition.windows.positions(window)];
            let primaries = Primaries::of(here, &last);
            let free = window == 0 && before.is_none();
            let (next, primaries) = (last.clone(), primaries);
            let moved = if free { Vec::new() } else { last.moved_to(&next) };
            partition.statistics.push(WindowStatistics::of(here, &next, &primaries, moved.len()));
            partition.primary.extend(primaries.rank);
            partition.moved.push(moved);
            partition.tables.push(next.clone());
            last = next;
        }
        partition.last = last;
        partition
    }

    /// Ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Windows of the pass; none if it has no events.
    pub fn windows(&self) -> usize {
        self.windows.count()
    }

    /// The window that holds a batch.
    pub fn window_of_batch(&self, batch: usize) -> usize {
        self.windows.of_batch(batch)
    }

    /// The first batch of a window; for `windows()`, the number of batches.
    pub fn first_batch(&self, window: usize) -> usize {
        self.windows.first_batch(window)
    }

    /// Owners in a window.
    pub fn table(&self, window: usize) -> &Arc<PartitionTable> {
        &self.tables[window]
    }

    /// Owners when the pass ends; those at its start if it has no events.
    pub fn last_table(&self) -> &Arc<PartitionTable> {
        &self.last
    }

    /// The nodes that change hands at the border before a window, ascending: node, its owner before, its owner in the window.
    ///
    /// Before the first window they are what differs from the table the pass starts with, none if it starts with none.
    pub fn moved(&self, window: usize) -> &[(NodeId, Rank, Rank)] {
        &self.moved[window]
    }

    /// The rank that runs the event at `position` in the pass: the owner of one of its endpoints.
    pub fn primary(&self, position: usize) -> Rank {
        self.primary[position]
    }

    /// How well the pass is cut.
    pub fn statistics(&self) -> &PartitionStatistics {
        &self.statistics
    }
}
