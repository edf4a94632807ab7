//! Fennel: each node goes where its neighbors are, less a price for how full that rank is (Tsourakakis et al., WSDM 2014).
//!
//! Nodes come in the order of their first event. The price is the derivative of `alpha load^(3/2)` (section 3) with the paper's
//! alpha, of both loads that must be even, endpoints of events and nodes, half each: at the mean load it is 3/4 of an event per
//! endpoint. Later streams over the same nodes place each one anew, with all its neighbors known (Nishimura and Ugander, KDD
//! 2013); the one that cuts the fewest events is kept. In a pass that goes on from another's table, nodes that are met for the
//! first time are placed before the window of their first event, where most of their coming events are; the others stay.

use crate::partition::event_graph::EventGraph;
use crate::partition::migration::Migration;
use crate::partition::{Ends, PartitionTable};
use tidemill_data::node_set::NodeSet;

/// Streams over the nodes.
const STREAMS: usize = 12;
/// Price of an endpoint on a rank of mean load, in events: `alpha 3/2 sqrt(load)`, for each of the two loads half of 3/4.
const PRICE: f64 = 0.375;
/// A rank takes no node that would raise its endpoints of events above this multiple of the mean.
const MOST_EVENTS: f64 = 1.05;
/// Likewise, its nodes.
const MOST_NODES: f64 = 1.15;
/// The owner of a node not placed yet.
const NOWHERE: u16 = u16::MAX;

/// The owner of each of `0..nodes`; those outside the graph fill up the ranks with few.
pub(super) fn table(nodes: u32, graph: &EventGraph, ranks: usize) -> Vec<u16> {
    let mut parts = Parts::new(graph, ranks);
    let mut best = (u64::MAX, Vec::new());
    for _ in 0..STREAMS {
        parts.stream();
        let cut = parts.cut();
        if cut < best.0 {
            best = (cut, parts.owner.clone());
        }
    }
    fill_up(nodes, graph, &best.1, ranks)
}

/// Owners in a window that follows `table`, with the nodes outside `seen` placed; `windows` are its events and those of the
/// windows after it.
///
/// * `balance`: no node brings a rank above this multiple of the mean load.
pub(in crate::partition) fn place_new(
    table: &PartitionTable,
    windows: &[&[Ends]],
    seen: &NodeSet,
    balance: f64,
) -> PartitionTable {
    let graph = EventGraph::decaying(table.owners().len() as u32, windows);
    let mut migration = Migration::new(&graph, table, balance);
    migration.settle(|node| !seen.contains(node));
    migration.apply(table)
}

/// A cut being made.
struct Parts<'a> {
    graph: &'a EventGraph,
    /// By node of the graph.
    owner: Vec<u16>,
    /// Endpoints of events, by rank.
    events: Vec<u64>,
    /// Nodes with events, by rank.
    nodes: Vec<u64>,
    mean_events: f64,
    mean_nodes: f64,
    /// Common events of the node at hand with each rank's nodes.
    affinity: Vec<u64>,
}

impl<'a> Parts<'a> {
    fn new(graph: &'a EventGraph, ranks: usize) -> Parts<'a> {
        Parts {
            graph,
            owner: vec![NOWHERE; graph.len()],
            events: vec![0; ranks],
            nodes: vec![0; ranks],
            mean_events: graph.load.iter().sum::<u64>() as f64 / ranks as f64,
            mean_nodes: graph.len() as f64 / ranks as f64,
            affinity: vec![0; ranks],
        }
    }

    /// Places every node once, or once more.
    fn stream(&mut self) {
        for node in 0..self.graph.len() {
            let load = self.graph.load[node];
            if self.owner[node] != NOWHERE {
                let before = usize::from(self.owner[node]);
                self.events[before] -= load;
                self.nodes[before] -= 1;
            }
            let rank = self.choose(node);
            self.owner[node] = rank as u16;
            self.events[rank] += load;
            self.nodes[rank] += 1;
        }
    }

    /// The rank with the best score among those with room, or else the emptiest; ties go to the lower rank.
    fn choose(&mut self, node: usize) -> usize {
        self.affinity.fill(0);
        for (far, weight) in self.graph.neighbors(node).filter(|&(far, _)| self.owner[far] != NOWHERE) {
            self.affinity[usize::from(self.owner[far])] += weight;
        }
        let mut best = (false, f64::NEG_INFINITY, 0);
        for rank in 0..self.events.len() {
            let (fits, score) = self.score(self.graph.load[node] as f64, rank);
            if (fits, score) > (best.0, best.1) {
                best = (fits, score, rank);
            }
        }
        best.2
    }

    /// Whether a rank has room for a node with `load` endpoints, and its score.
    fn score(&self, load: f64, rank: usize) -> (bool, f64) {
        let (events, nodes) = (self.events[rank] as f64, self.nodes[rank] as f64);
        let (full_of_events, full_of_nodes) = (events / self.mean_events, nodes / self.mean_nodes);
        let fits = events + load <= MOST_EVENTS * self.mean_events && nodes + 1.0 <= MOST_NODES * self.mean_nodes;
        if !fits {
            return (false, -full_of_events - full_of_nodes);
        }
        let load_of_a_node = self.mean_events / self.mean_nodes;
        let price = PRICE * (load * full_of_events.sqrt() + load_of_a_node * full_of_nodes.sqrt());
        (true, self.affinity[rank] as f64 - price)
    }

    /// Events between ranks.
    fn cut(&self) -> u64 {
        let of = |node: usize| {
            let own = self.owner[node];
            let cut = self.graph.neighbors(node).filter(|&(far, _)| self.owner[far] != own);
            cut.map(|(_, weight)| weight).sum::<u64>()
        };
        (0..self.graph.len()).map(of).sum::<u64>() / 2
    }
}

/// All nodes' owners: the graph's, and the others one by one to the rank with the fewest nodes.
fn fill_up(nodes: u32, graph: &EventGraph, owner: &[u16], ranks: usize) -> Vec<u16> {
    let mut all = vec![NOWHERE; nodes as usize];
    let mut count = vec![0usize; ranks];
    for (node, &rank) in graph.nodes.iter().zip(owner) {
        all[node.index()] = rank;
        count[usize::from(rank)] += 1;
    }
    let mut least: std::collections::BTreeSet<(usize, u16)> = count.iter().copied().zip(0..).collect();
    for owner in all.iter_mut().filter(|owner| **owner == NOWHERE) {
        let (count, rank) = least.pop_first().expect("there is a rank");
        *owner = rank;
        least.insert((count + 1, rank));
    }
    all
}
