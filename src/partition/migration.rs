//! Moving a few nodes between ranks so that a window's events are spread more evenly, or fewer of them are cut.
//!
//! Loads are endpoints of the window's events: an event between two ranks counts half on each, which is how the choice of
//! primary ranks evens them out. Two kinds of moves, of nodes with events in the window only:
//! - *unloading*: off a rank above the bound, the node that cuts the fewest further events per endpoint moved. What was moved
//!   draws its neighbors after it, since they then lie across the cut: a hot item goes, and its users follow.
//! - *mending*: to where more of a node's events are than here, if that saves more events than a move costs.
//!
//! Ties go to the lower number, so every rank finds the same moves.

use super::event_graph::EventGraph;
use super::{Ends, PartitionTable, Rank};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use tidemill_data::id::NodeId;

/// Cut events that moving one node's state is worth: about the bytes of a row over those that a cut event sends.
const MOVE_COST: i64 = 1;
/// Where this multiple of the mean number of nodes is, no node goes, however even the events would be.
const MOST_NODES: f64 = 1.5;
/// Where this multiple of the mean number of nodes is, no node goes to save cut events.
const MOST_NODES_TO_MEND: f64 = 1.2;
/// Sweeps over the nodes while mending; few move after the first.
const SWEEPS: usize = 4;

/// Owners for the first of some windows, with few moves from `table` and no rank above `balance` times the mean load where that
/// is possible. Events of the windows that follow weigh in by halves: a node is best moved to where it will be needed.
pub(super) fn even_out(table: &PartitionTable, windows: &[&[Ends]], balance: f64) -> PartitionTable {
    let graph = EventGraph::decaying(table.owners().len() as u32, windows);
    let mut migration = Migration::new(&graph, table, balance);
    migration.unload();
    migration.mend();
    migration.apply(table)
}

/// The moves between two windows, being found.
pub(super) struct Migration<'a> {
    graph: &'a EventGraph,
    /// By node of the graph.
    owner: Vec<u16>,
    /// Endpoints of the window's events, by rank.
    load: Vec<u64>,
    /// All nodes of the stream, by rank.
    nodes: Vec<usize>,
    /// Weight of the common events of each node with each rank's nodes, `[graph nodes * ranks]`.
    affinity: Vec<u64>,
    /// Most endpoints on a rank.
    most: u64,
    mean_nodes: f64,
}

impl<'a> Migration<'a> {
    /// From the owners in `table` on; no move brings a rank above `balance` times the mean load.
    pub(super) fn new(graph: &'a EventGraph, table: &PartitionTable, balance: f64) -> Migration<'a> {
        let ranks = table.ranks();
        let owner: Vec<u16> = graph.nodes.iter().map(|&node| table.owner(node).0).collect();
        let mut load = vec![0; ranks];
        let mut affinity = vec![0; graph.len() * ranks];
        for node in 0..graph.len() {
            load[usize::from(owner[node])] += graph.load[node];
            for (far, weight) in graph.neighbors(node) {
                affinity[node * ranks + usize::from(owner[far])] += weight;
            }
        }
        let mean = load.iter().sum::<u64>() as f64 / ranks as f64;
        let mean_nodes = table.owners().len() as f64 / ranks as f64;
        let (nodes, most) = (table.nodes_by_rank(), (balance * mean).floor() as u64);
        Migration { graph, owner, load, nodes, affinity, most, mean_nodes }
    }

    fn ranks(&self) -> usize {
        self.load.len()
    }

    fn affinity(&self, node: usize, rank: usize) -> i64 {
        self.affinity[node * self.ranks() + rank] as i64
    }

    /// In the graph's weights.
    fn move_cost(&self) -> i64 {
        MOVE_COST * self.graph.unit as i64
    }

    /// The best other rank with room for a node, and the weight of events that are cut more than now if it goes there.
    ///
    /// * `most_nodes`: a rank with this multiple of the mean number of nodes has no room.
    fn destination(&self, node: usize, most_nodes: f64) -> Option<(usize, i64)> {
        let own = usize::from(self.owner[node]);
        let most_nodes = (most_nodes * self.mean_nodes).ceil() as usize;
        let fits = |&rank: &usize| {
            rank != own && self.load[rank] + self.graph.load[node] <= self.most && self.nodes[rank] < most_nodes
        };
        let by_affinity = |&rank: &usize| (self.affinity(node, rank), Reverse(self.load[rank]), Reverse(rank));
        let best = (0..self.ranks()).filter(fits).max_by_key(by_affinity)?;
        Some((best, self.affinity(node, own) - self.affinity(node, best)))
    }

    fn move_to(&mut self, node: usize, to: usize) {
        let (from, ranks) = (usize::from(self.owner[node]), self.ranks());
        self.owner[node] = to as u16;
        self.load[from] -= self.graph.load[node];
        self.load[to] += self.graph.load[node];
        self.nodes[from] -= 1;
        self.nodes[to] += 1;
        for (far, weight) in self.graph.neighbors(node) {
            self.affinity[far * ranks + from] -= weight;
            self.affinity[far * ranks + to] += weight;
        }
    }

    /// Unloads every rank above the bound, the fullest first, as far as the others have room.
    pub(super) fn unload(&mut self) {
        let mut full: Vec<usize> = (0..self.ranks()).filter(|&rank| self.load[rank] > self.most).collect();
        full.sort_by_key(|&rank| (Reverse(self.load[rank]), rank));
        full.into_iter().for_each(|rank| self.unload_rank(rank));
    }

    /// The cheapest node goes first. Prices change as nodes go; one that has risen since it was asked is asked again later, one
    /// that may have fallen is asked anew at once.
    fn unload_rank(&mut self, from: usize) {
        let mut queue: BinaryHeap<Reverse<(Price, usize)>> =
            (0..self.graph.len()).filter_map(|node| Some(Reverse((self.price(node, from)?, node)))).collect();
        while self.load[from] > self.most {
            let Some(Reverse((asked, node))) = queue.pop() else { return };
            match self.price(node, from) {
                None => {}
                Some(now) if now > asked => queue.push(Reverse((now, node))),
                Some(_) => {
                    let (to, _) = self.destination(node, MOST_NODES).expect("what has a price has a destination");
                    self.move_to(node, to);
                    let graph = self.graph;
                    let followers = graph.neighbors(node).filter_map(|(far, _)| Some((self.price(far, from)?, far)));
                    queue.extend(followers.map(Reverse));
                }
            }
        }
    }

    /// What taking a node off a rank costs, if it is there, has events in the window, and has somewhere to go.
    fn price(&self, node: usize, from: usize) -> Option<Price> {
        let load = self.graph.load[node];
        if usize::from(self.owner[node]) != from || load == 0 {
            return None;
        }
        let (_, cut) = self.destination(node, MOST_NODES)?;
        Some(Price { cost: cut + self.move_cost(), load })
    }

    /// Moves nodes to where they save more cut events than the move costs, in their order, a few times over.
    pub(super) fn mend(&mut self) {
        self.improve(self.move_cost(), |_| true);
    }

    /// Likewise those of `newcomers`, who have no state yet that would have to be moved.
    pub(super) fn settle(&mut self, newcomers: impl Fn(NodeId) -> bool) {
        self.improve(0, newcomers);
    }

    fn improve(&mut self, cost: i64, may_move: impl Fn(NodeId) -> bool) {
        let graph = self.graph;
        for _ in 0..SWEEPS {
            let mut moved = false;
            for node in (0..graph.len()).filter(|&node| graph.load[node] > 0 && may_move(graph.nodes[node])) {
                let destination = self.destination(node, MOST_NODES_TO_MEND);
                if let Some((to, _)) = destination.filter(|&(_, cut)| cut + cost < 0) {
                    self.move_to(node, to);
                    moved = true;
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// The table with all moves made.
    pub(super) fn apply(self, table: &PartitionTable) -> PartitionTable {
        table.with(self.graph.nodes.iter().zip(&self.owner).map(|(&node, &rank)| (node, Rank(rank))))
    }
}

/// Weight cut per endpoint moved: cheap moves of much load come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Price {
    cost: i64,
    load: u64,
}

impl Ord for Price {
    fn cmp(&self, other: &Price) -> std::cmp::Ordering {
        let cross = |a: &Price, b: &Price| i128::from(a.cost) * i128::from(b.load);
        cross(self, other).cmp(&cross(other, self)).then(other.load.cmp(&self.load))
    }
}

impl PartialOrd for Price {
    fn partial_cmp(&self, other: &Price) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
