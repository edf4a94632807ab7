//! By affinity that decays with time: before each window, nodes go to where their partners of late are.
//!
//! The affinity of two nodes is the number of their common events in the coming window, whose order is known, plus half of
//! those in the window before it, a quarter of those before that, and so on. A node moves only if that saves more than its
//! state costs to move, so the table stays as it is where little changes.

use crate::partition::event_graph::EventGraph;
use crate::partition::migration::Migration;
use crate::partition::{Ends, PartitionTable};

/// Owners in a window that follows `table`; `windows` are its events and those of the windows before, latest first.
///
/// * `balance`: no move brings a rank above this multiple of the mean load.
pub(in crate::partition) fn table(table: &PartitionTable, windows: &[&[Ends]], balance: f64) -> PartitionTable {
    let graph = EventGraph::decaying(table.owners().len() as u32, windows);
    let mut migration = Migration::new(&graph, table, balance);
    migration.mend();
    migration.apply(table)
}
