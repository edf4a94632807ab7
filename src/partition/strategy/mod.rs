//! The strategies: the table that a pass starts with, and what `fennel` and `temporal` make of it window by window.

mod degree;
pub(super) mod fennel;
mod hash;
mod range;
pub(super) mod temporal;

use super::event_graph::EventGraph;
use super::{Ends, PartitionTable, Strategy};

/// Owners before the first window of a pass of these events, chosen freely. `temporal` starts as `fennel` does.
pub(super) fn first_table(strategy: Strategy, nodes: u32, ends: &[Ends], ranks: usize) -> PartitionTable {
    let owner = match strategy {
        _ if ranks == 1 => vec![0; nodes as usize],
        Strategy::Hash => hash::table(nodes, ranks),
        Strategy::Range => range::table(nodes, ranks),
        Strategy::Degree => degree::table(nodes, ends, ranks),
        Strategy::Fennel | Strategy::Temporal => fennel::table(nodes, &EventGraph::new(nodes, ends), ranks),
    };
    PartitionTable::new(owner, ranks)
}
