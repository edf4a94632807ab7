//! Who met whom how often in some events: the weighted graph that strategies cut.

use super::Ends;
use tidemill_data::id::NodeId;

/// Nodes with events, numbered in the order of their first event, and their neighbors with the number of common events.
#[derive(Clone, Debug)]
pub(super) struct EventGraph {
    /// The nodes.
    pub(super) nodes: Vec<NodeId>,
    /// Endpoints of events that each node is; a self-loop is two. Their sum is twice the number of events.
    pub(super) load: Vec<u64>,
    /// Where each node's neighbors start, `[nodes + 1]`.
    start: Vec<usize>,
    neighbor: Vec<u32>,
    weight: Vec<u32>,
}

impl EventGraph {
    /// The graph of some events among the nodes `0..nodes`.
    pub(super) fn new(nodes: u32, ends: &[Ends]) -> EventGraph {
        let mut number = vec![u32::MAX; nodes as usize];
        let mut seen = Vec::new();
        for &node in ends.iter().flatten() {
            if number[node.index()] == u32::MAX {
                number[node.index()] = seen.len() as u32;
                seen.push(node);
            }
        }
        let mut load = vec![0u64; seen.len()];
        let mut start = vec![0usize; seen.len() + 1];
        let numbered = || ends.iter().map(|[a, b]| [number[a.index()] as usize, number[b.index()] as usize]);
        for [a, b] in numbered() {
            load[a] += 1;
            load[b] += 1;
            if a != b {
                start[a + 1] += 1;
                start[b + 1] += 1;
            }
        }
        for i in 1..start.len() {
            start[i] += start[i - 1];
        }
        let mut next = start.clone();
        let mut neighbor = vec![0u32; start[seen.len()]];
        for [a, b] in numbered().filter(|[a, b]| a != b) {
            for (near, far) in [(a, b), (b, a)] {
                neighbor[next[near]] = far as u32;
                next[near] += 1;
            }
        }
        let weight = vec![1; neighbor.len()];
        let mut graph = EventGraph { nodes: seen, load, start, neighbor, weight };
        graph.merge_repeats();
        graph
    }

    /// Makes each neighbor of a node one entry.
    fn merge_repeats(&mut self) {
        let mut to = 0;
        for node in 0..self.nodes.len() {
            let row = std::mem::replace(&mut self.start[node], to)..self.start[node + 1];
            self.neighbor[row.clone()].sort_unstable();
            let first = to;
            for at in row {
                let far = self.neighbor[at];
                if to > first && self.neighbor[to - 1] == far {
                    self.weight[to - 1] += 1;
                } else {
                    (self.neighbor[to], self.weight[to]) = (far, 1);
                    to += 1;
                }
            }
        }
        if let Some(end) = self.start.last_mut() {
            *end = to;
        }
        self.neighbor.truncate(to);
        self.weight.truncate(to);
    }

    /// Number of nodes.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// A node's neighbors and the number of events with each; itself is none of them.
    pub(super) fn neighbors(&self, node: usize) -> impl Iterator<Item = (usize, u64)> + '_ {
        let row = self.start[node]..self.start[node + 1];
        self.neighbor[row.clone()].iter().map(|&far| far as usize).zip(self.weight[row].iter().map(|&w| u64::from(w)))
    }
}
