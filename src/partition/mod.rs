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
mod migration;
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
use strategy::{fennel, temporal};
use tidemill_data::id::{EventId, NodeId};
use tidemill_data::node_set::NodeSet;
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
        let of = |e| [stream.source(e), stream.destination(e)];
        let ends: Vec<Ends> = events.iter().map(|&e| of(e)).collect();
        let before = before.map(|table| {
            let mut seen = NodeSet::new(stream.nodes());
            let earlier = 0..events.first().map_or(0, |e| e.0);
            earlier.flat_map(|e| of(EventId(e))).for_each(|node| {
                seen.insert(node);
            });
            (table, seen)
        });
        Partition::of_ends(stream.nodes(), &ends, batch_size, ranks, config, before)
    }

    /// * `before`: owners when the pass starts, and the nodes that had events before it.
    fn of_ends(
        nodes: u32,
        ends: &[Ends],
        batch_size: usize,
        ranks: usize,
        config: &PartitionConfig,
        before: Option<(&PartitionTable, NodeSet)>,
    ) -> Partition {
        assert!((1..=usize::from(u16::MAX)).contains(&ranks), "{ranks} ranks: a rank is a u16");
        if let Some((table, _)) = &before {
            let found = (table.owners().len(), table.ranks());
            assert_eq!(found, (nodes as usize, ranks), "nodes and ranks of the table before the pass");
        }
        let windows = Windows::new(ends.len(), batch_size, config.window_events);
        let first = match &before {
            Some((table, _)) => PartitionTable::clone(table),
            None => strategy::first_table(config.strategy, nodes, ends, ranks),
        };
        let mut partition = Partition {
            ranks,
            tables: Vec::with_capacity(windows.count()),
            moved: Vec::with_capacity(windows.count()),
            primary: Vec::with_capacity(ends.len()),
            statistics: PartitionStatistics::default(),
            last: Arc::new(first),
            windows,
        };
        let mut seen = before.map(|(_, seen)| seen);
        for window in 0..partition.windows.count() {
            partition.add_window(window, ends, config, seen.as_ref());
            if let Some(seen) = &mut seen {
                ends[partition.windows.positions(window)].iter().flatten().for_each(|&node| {
                    seen.insert(node);
                });
            }
        }
        partition
    }

    /// Finds the table of the next window, lists what moves and gives its events to ranks.
    ///
    /// * `seen`: the nodes with events so far, in a pass that goes on from another's table.
    fn add_window(&mut self, window: usize, ends: &[Ends], config: &PartitionConfig, seen: Option<&NodeSet>) {
        let of = |w| &ends[self.windows.positions(w)];
        let around = Around {
            recent: (0..=window).rev().take(HORIZON).map(of).collect(),
            coming: (window..self.windows.count()).take(HORIZON).map(of).collect(),
            batch_size: self.windows.batch_size(),
            seen,
        };
        let free = window == 0 && seen.is_none();
        let (table, primaries) = next_table(&self.last, &around, config);
        let moved = if free || Arc::ptr_eq(&self.last, &table) { Vec::new() } else { self.last.moved_to(&table) };
        self.statistics.push(WindowStatistics::of(of(window), &table, &primaries, moved.len()));
        self.primary.extend(primaries.rank);
        self.moved.push(moved);
        self.tables.push(table.clone());
        self.last = table;
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

    /// Owners in a window; in a pass without events, those at its start.
    pub fn table(&self, window: usize) -> &Arc<PartitionTable> {
        if self.tables.is_empty() { &self.last } else { &self.tables[window] }
    }

    /// Owners when the pass ends; those at its start if it has no events.
    pub fn last_table(&self) -> &Arc<PartitionTable> {
        &self.last
    }

    /// The nodes that change hands at the border before a window, ascending: node, its owner before, its owner in the window.
    ///
    /// Before the first window they are what differs from the table the pass starts with, none if it starts with none. A node
    /// without an event so far may be among them: its state is as it was made.
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

/// Windows looked at on either side of a border.
const HORIZON: usize = 4;

/// A window among its neighbors.
struct Around<'a> {
    /// The window and those before it, latest first.
    recent: Vec<&'a [Ends]>,
    /// The window and those after it, in order.
    coming: Vec<&'a [Ends]>,
    batch_size: usize,
    /// Nodes with events so far, in a pass that goes on from another's table.
    seen: Option<&'a NodeSet>,
}

/// Owners in the window that follows `table`, and who runs its events.
fn next_table(
    table: &Arc<PartitionTable>,
    around: &Around<'_>,
    config: &PartitionConfig,
) -> (Arc<PartitionTable>, Primaries) {
    let bound = config.rebalance_above;
    let table = match (config.strategy, around.seen) {
        _ if table.ranks() == 1 => table.clone(),
        (Strategy::Temporal, _) => shared(table, temporal::table(table, &around.recent, target(bound))),
        (Strategy::Fennel, Some(seen)) => shared(table, fennel::place_new(table, &around.coming, seen, target(bound))),
        _ => table.clone(),
    };
    let primaries = |table: &PartitionTable| Primaries::of(around.recent[0], around.batch_size, table);
    let now = primaries(&table);
    if now.balance() <= bound {
        return (table, now);
    }
    let evened = shared(&table, migration::even_out(&table, &around.coming, target(bound)));
    let then = primaries(&evened);
    if then.balance() < now.balance() { (evened, then) } else { (table, now) }
}

/// `next`, or `table` itself if they are equal.
fn shared(table: &Arc<PartitionTable>, next: PartitionTable) -> Arc<PartitionTable> {
    if next == **table { table.clone() } else { Arc::new(next) }
}

/// What moves aim at: halfway between even and the bound, so that the next window does not cross it at once.
fn target(bound: f64) -> f64 {
    1.0 + (bound - 1.0) / 2.0
}
