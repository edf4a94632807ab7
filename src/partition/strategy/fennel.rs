//! Fennel: each node goes where its neighbors are, less a price for how full that rank is (Tsourakakis et al., WSDM 2014).
//!
//! Nodes come in the order of their first event. The price is the derivative of `alpha load^(3/2)` (equation 3) with the
//! paper's alpha, taken of both loads that must be even, endpoints of events and nodes, half each. Later streams over the same
//! nodes place each one anew, with all its neighbors known (Nishimura and Ugander, KDD 2013); the best of them is kept.

use crate::partition::event_graph::EventGraph;
use crate::partition::primary::balance;

/// Streams over the nodes.
const STREAMS: usize = 12;
/// A rank takes no node that would raise its endpoints of events above this share of the mean.
const MOST_EVENTS: f64 = 1.05;
/// Likewise, its nodes.
const MOST_NODES: f64 = 1.15;

const NOWHERE: u16 = u16::MAX;

/// The owner of each of `0..nodes`; those outside the graph fill up the ranks with few.
pub(super) fn table(nodes: u32, graph: &EventGraph, ranks: usize) -> Vec<u16> {
    let mut parts = Parts::new(nodes, graph, ranks);
    let mut best: Option<(u64, Vec<u16>)> = None;
    for _ in 0..STREAMS {
        parts.stream();
        let cut = parts.cut();
        if best.as_ref().is_none_or(|(least, _)| cut < *least) {
            best = Some((cut, parts.owner.clone()));
        }
    }
    let _ = balance(&parts.events);
    let owner = best.map_or_else(Vec::new, |(_, owner)| owner);
    spread(nodes, graph, &owner, ranks)
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
    /// Means of all endpoints and of all nodes of the graph, over ranks.
    mean_events: f64,
    mean_nodes: f64,
    /// Common events of the node at hand with each rank's nodes.
    affinity: Vec<u64>,
}

impl<'a> Parts<'a> {
    fn new(_nodes: u32, graph: &'a EventGraph, ranks: usize) -> Parts<'a> {
        let endpoints = graph.load.iter().sum::<u64>();
        Parts {
            graph,
            owner: vec![NOWHERE; graph.len()],
            events: vec![0; ranks],
            nodes: vec![0; ranks],
            mean_events: endpoints as f64 / ranks as f64,
            mean_nodes: graph.len() as f64 / ranks as f64,
            affinity: vec![0; ranks],
        }
    }

    fn stream(&mut self) {
        for node in 0..self.graph.len() {
            let load = self.graph.load[node];
            let before = self.owner[node];
            if before != NOWHERE {
                self.events[usize::from(before)] -= load;
                self.nodes[usize::from(before)] -= 1;
            }
            let rank = self.choose(node);
            self.owner[node] = rank as u16;
            self.events[rank] += load;
            self.nodes[rank] += 1;
        }
    }

    fn choose(&mut self, node: usize) -> usize {
        self.affinity.fill(0);
        for (far, weight) in self.graph.neighbors(node) {
            if self.owner[far] != NOWHERE {
                self.affinity[usize::from(self.owner[far])] += weight;
            }
        }
        let load = self.graph.load[node] as f64;
        let mean_load = self.mean_events / self.mean_nodes;
        let mut best = (false, f64::NEG_INFINITY, 0);
        for rank in 0..self.events.len() {
            let (events, nodes) = (self.events[rank] as f64, self.nodes[rank] as f64);
            let fits = events + load <= MOST_EVENTS * self.mean_events && nodes + 1.0 <= MOST_NODES * self.mean_nodes;
            let price =
                0.375 * (load * (events / self.mean_events).sqrt() + mean_load * (nodes / self.mean_nodes).sqrt());
            let score = if fits {
                self.affinity[rank] as f64 - price
            } else {
                -events / self.mean_events - nodes / self.mean_nodes
            };
            if (fits, score) > (best.0, best.1) {
                best = (fits, score, rank);
            }
        }
        best.2
    }

    /// Events between ranks.
    fn cut(&self) -> u64 {
        let of = |node: usize| {
            let own = self.owner[node];
            self.graph.neighbors(node).filter(|&(far, _)| self.owner[far] != own).map(|(_, weight)| weight).sum::<u64>()
        };
        (0..self.graph.len()).map(of).sum::<u64>() / 2
    }
}

/// All nodes' owners: the graph's, and the others one by one to the rank with the fewest nodes.
fn spread(nodes: u32, graph: &EventGraph, owner: &[u16], ranks: usize) -> Vec<u16> {
    let mut all = vec![NOWHERE; nodes as usize];
    let mut count = vec![0usize; ranks];
    for (node, &rank) in graph.nodes.iter().zip(owner) {
        all[node.index()] = rank;
        count[usize::from(rank)] += 1;
    }
    for rank in all.iter_mut().filter(|rank| **rank == NOWHERE) {
        let least = (0..ranks).min_by_key(|&rank| count[rank]).expect("there is a rank");
        count[least] += 1;
        *rank = least as u16;
    }
    all
}
