//! Who met whom how often in some events: the weighted graph that strategies cut.

use super::Ends;
use tidemill_data::id::NodeId;

/// Nodes with events, numbered in the order of their first event, and their neighbors with the weight of common events.
#[derive(Clone, Debug)]
pub(super) struct EventGraph {
    /// The nodes.
    pub(super) nodes: Vec<NodeId>,
    /// Endpoints of the first window's events that each node is; a self-loop is two.
    pub(super) load: Vec<u64>,
    /// Weight of an event of the first window.
    pub(super) unit: u64,
    /// Where each node's neighbors start, `[nodes + 1]`.
    start: Vec<usize>,
    /// Neighbor and weight of the common events; ascending in each row, none twice.
    neighbor: Vec<(u32, u32)>,
}

impl EventGraph {
    /// The graph of some events among the nodes `0..nodes`; each event weighs 1.
    pub(super) fn new(nodes: u32, ends: &[Ends]) -> EventGraph {
        EventGraph::decaying(nodes, &[ends])
    }

    /// The graph of some windows, the first of which counts most: an event of each further one weighs half as much.
    pub(super) fn decaying(nodes: u32, windows: &[&[Ends]]) -> EventGraph {
        let most = 1u32 << (windows.len() - 1);
        let seen = Numbering::of(nodes, windows);
        let mut load = vec![0u64; seen.nodes.len()];
        seen.ends(windows[0]).flatten().for_each(|node| load[node] += 1);
        let mut graph =
            EventGraph { load, unit: u64::from(most), start: Vec::new(), neighbor: Vec::new(), nodes: Vec::new() };
        graph.start = seen.row_starts(windows);
        graph.fill(&seen, windows, most);
        graph.merge_repeats();
        graph.nodes = seen.nodes;
        graph
    }

    /// Writes each event into both endpoints' rows.
    fn fill(&mut self, seen: &Numbering, windows: &[&[Ends]], most: u32) {
        self.neighbor = vec![(0, 0); *self.start.last().expect("there is an end")];
        let mut next = self.start.clone();
        for (age, window) in windows.iter().enumerate() {
            for [a, b] in seen.ends(window).filter(|[a, b]| a != b) {
                for (near, far) in [(a, b), (b, a)] {
                    self.neighbor[next[near]] = (far as u32, most >> age);
                    next[near] += 1;
                }
            }
        }
    }

    /// Makes each neighbor of a node one entry.
    fn merge_repeats(&mut self) {
        let mut to = 0;
        for node in 0..self.start.len() - 1 {
            let row = std::mem::replace(&mut self.start[node], to)..self.start[node + 1];
            self.neighbor[row.clone()].sort_unstable();
            let first = to;
            for at in row {
                let (far, weight) = self.neighbor[at];
                if to > first && self.neighbor[to - 1].0 == far {
                    self.neighbor[to - 1].1 += weight;
                } else {
                    self.neighbor[to] = (far, weight);
                    to += 1;
                }
            }
        }
        *self.start.last_mut().expect("there is an end") = to;
        self.neighbor.truncate(to);
    }

    /// Number of nodes.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// A node's neighbors and the weight of the events with each; itself is none of them.
    pub(super) fn neighbors(&self, node: usize) -> impl Iterator<Item = (usize, u64)> + '_ {
        let row = &self.neighbor[self.start[node]..self.start[node + 1]];
        row.iter().map(|&(far, weight)| (far as usize, u64::from(weight)))
    }
}

/// The nodes of some windows, in the order of their first event there.
struct Numbering {
    nodes: Vec<NodeId>,
    /// By node of the stream; `u32::MAX` if it has no event.
    number: Vec<u32>,
}

impl Numbering {
    fn of(nodes: u32, windows: &[&[Ends]]) -> Numbering {
        let mut seen = Numbering { nodes: Vec::new(), number: vec![u32::MAX; nodes as usize] };
        for &node in windows.iter().flat_map(|window| window.iter()).flatten() {
            let number = &mut seen.number[node.index()];
            if *number == u32::MAX {
                *number = seen.nodes.len() as u32;
                seen.nodes.push(node);
            }
        }
        seen
    }

    fn ends<'a>(&'a self, window: &'a [Ends]) -> impl Iterator<Item = [usize; 2]> + 'a {
        window.iter().map(|ends| ends.map(|node| self.number[node.index()] as usize))
    }

    /// Where each node's row starts, repeats included, `[nodes + 1]`.
    fn row_starts(&self, windows: &[&[Ends]]) -> Vec<usize> {
        let mut start = vec![0usize; self.nodes.len() + 1];
        for [a, b] in windows.iter().flat_map(|window| self.ends(window)).filter(|[a, b]| a != b) {
            start[a + 1] += 1;
            start[b + 1] += 1;
        }
        for i in 1..start.len() {
            start[i] += start[i - 1];
        }
        start
    }
}
