//! The table that a pass starts with, by each strategy.

mod fennel;
mod hash;

use super::event_graph::EventGraph;
use super::{Ends, PartitionTable, Strategy};

/// Owners before the first window of a pass of these events, chosen freely.
pub(super) fn first_table(strategy: Strategy, nodes: u32, ends: &[Ends], ranks: usize) -> PartitionTable {
    let owner = match strategy {
        _ if ranks == 1 => vec![0; nodes as usize],
        Strategy::Hash => hash::table(nodes, ranks),
        Strategy::Range => hash::table(nodes, ranks),
        Strategy::Degree => hash::table(nodes, ranks),
        Strategy::Fennel | Strategy::Temporal => fennel::table(nodes, &EventGraph::new(nodes, ends), ranks),
    };
    PartitionTable::new(owner, ranks)
}
