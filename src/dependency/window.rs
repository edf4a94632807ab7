//! What all ranks need in a window if every remote row is fetched, and which rows are better kept current by replay.
//!
//! Events are ordered and negatives drawn by counter, so the needs of a window are known before it starts; the planner plays
//! the window through once ([`super::plan::Planner::inspect`]) and writes them down here. Costs do not add up: a message goes
//! away only with all of its rows, a replayed event needs s(peer) from elsewhere unless the peer is followed too, and room is
//! bounded. So `tau_cache = "auto"` compares the whole cost of eleven thresholds, not a row's two costs.
//! Counts only: no tensors, no clock.

use super::cost::Costs;
use crate::partition::Rank;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use tidemill_data::id::NodeId;
use tidemill_data::node_set::NodeSet;

/// A row that an owner would push.
#[derive(Clone, Copy, Debug)]
pub struct Push {
    /// When.
    pub batch: u32,
    /// Who has it.
    pub owner: Rank,
    /// Who needs it.
    pub reader: Rank,
    /// Whose row.
    pub node: NodeId,
    /// It was written before the window, so that a replica too must be sent once.
    pub entry: bool,
    /// The root that asks for it first, numbered within the window.
    pub root: u32,
    /// That root's owner, if it may embed the root instead.
    pub embedder: Option<Rank>,
}

/// A mail: after batch `batch`, `node`, on rank `to`, hears of `peer`, on rank `from`.
#[derive(Clone, Copy, Debug)]
pub struct Hearing {
    /// When.
    pub batch: u32,
    /// The owner of `peer`.
    pub from: Rank,
    /// The owner of `node`.
    pub to: Rank,
    /// Who is heard of.
    pub peer: NodeId,
    /// Who hears.
    pub node: NodeId,
}

/// The needs of a window.
#[derive(Clone, Debug, Default)]
pub struct WindowNeeds {
    /// Rows pushed, those of a root one after another.
    pub pushes: Vec<Push>,
    /// Mails between nodes, each pair once a batch.
    pub hearings: Vec<Hearing>,
    /// Roots so far.
    pub roots: u32,
    /// Batches that touch each node, and its owner.
    pub updates: HashMap<NodeId, (u32, Rank)>,
    /// Batches in which the rank at hand reads a remote node, ascending.
    pub reads: HashMap<NodeId, Vec<u32>>,
}

impl WindowNeeds {
    /// Notes that the rank at hand reads a node.
    pub fn read(&mut self, node: NodeId, batch: u32) {
        let reads = self.reads.entry(node).or_default();
        if reads.last() != Some(&batch) {
            reads.push(batch);
        }
    }
}

/// A threshold's cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The threshold.
    pub tau: f64,
    /// Weighted seconds of communication of the window, over all ranks.
    pub communication: f64,
    /// Weighted seconds of replay.
    pub replay: f64,
    /// Rows followed, over all ranks.
    pub followed: usize,
}

impl Point {
    /// Both together.
    pub fn cost(&self) -> f64 {
        self.communication + self.replay
    }
}

/// Thresholds that `"auto"` compares.
pub fn thresholds() -> impl Iterator<Item = f64> {
    (0..=10).map(|tenth| f64::from(tenth) / 10.0)
}

/// A window's rows by rho.
pub struct Ranking<'a> {
    needs: &'a WindowNeeds,
    costs: Costs,
    ranks: usize,
    nodes: u32,
    /// Most rows that a rank may follow.
    room: usize,
    /// By reader: (rho, node), ascending.
    rho: Vec<Vec<(f64, NodeId)>>,
}

impl<'a> Ranking<'a> {
    /// Ranks the rows of a window.
    pub fn new(needs: &'a WindowNeeds, costs: Costs, ranks: usize, nodes: u32, room: usize) -> Ranking<'a> {
        let mut in_message: HashMap<(u32, Rank, Rank), u32> = HashMap::new();
        for push in &needs.pushes {
            *in_message.entry((push.batch, push.owner, push.reader)).or_default() += 1;
        }
        let mut fetch: Vec<BTreeMap<NodeId, (f64, f64)>> = vec![BTreeMap::new(); ranks]; // (messages, rows)
        for push in &needs.pushes {
            let (messages, rows) = fetch[push.reader.index()].entry(push.node).or_default();
            *messages += 1.0 / f64::from(in_message[&(push.batch, push.owner, push.reader)]);
            *rows += 1.0;
        }
        let mut heard: HashMap<(Rank, NodeId), f64> = HashMap::new(); // s(peer) that a replica of the peer saves
        for hearing in needs.hearings.iter().filter(|hearing| hearing.from != hearing.to) {
            *heard.entry((hearing.to, hearing.peer)).or_default() += 1.0;
        }
        let rho = |(reader, rows): (usize, BTreeMap<NodeId, (f64, f64)>)| {
            let of = |(node, (messages, rows)): (NodeId, (f64, f64))| {
                let memories = heard.get(&(Rank(reader as u16), node)).copied().unwrap_or(0.0);
                let updates = needs.updates.get(&node).map_or(0.0, |&(batches, _)| f64::from(batches));
                (costs.rho(costs.communication(messages, rows, memories), costs.replay(updates, 1.0)), node)
            };
            let mut ranked: Vec<(f64, NodeId)> = rows.into_iter().map(of).collect();
            ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            ranked
        };
        let rho = fetch.into_iter().enumerate().map(rho).collect();
        Ranking { needs, costs, ranks, nodes, room, rho }
    }

    /// By rank, the nodes that it follows under a threshold: the best first as far as there is room. At 1 everything is
    /// followed, read or not, so that nothing need ever be sent.
    pub fn followed(&self, tau: f64) -> Vec<NodeSet> {
        let all = tau >= 1.0 && self.room >= self.nodes as usize;
        let of = |rho: &Vec<(f64, NodeId)>| {
            let mut set = NodeSet::new(self.nodes);
            if all {
                (0..self.nodes).for_each(|node| {
                    set.insert(NodeId(node));
                });
            } else if tau > 0.0 {
                rho.iter().take_while(|(rho, _)| *rho <= tau).take(self.room).for_each(|&(_, node)| {
                    set.insert(node);
                });
            }
            set
        };
        self.rho.iter().map(of).collect()
    }

    /// What a threshold costs in all.
    pub fn point(&self, tau: f64) -> Point {
        let followed = self.followed(tau);
        let follows = |rank: Rank, node: NodeId| followed[rank.index()].contains(node);
        let mut messages: BTreeSet<(u32, Rank, Rank)> = BTreeSet::new();
        let mut entered: HashSet<(Rank, NodeId)> = HashSet::new();
        let (mut rows, mut embeddings) = (0usize, 0usize);
        for of_root in self.needs.pushes.chunk_by(|a, b| a.root == b.root) {
            let sent: Vec<&Push> = (of_root.iter())
                .filter(|p| !follows(p.reader, p.node) || (p.entry && entered.insert((p.reader, p.node))))
                .collect();
            let Push { batch, reader, embedder, .. } = of_root[0];
            match embedder {
                Some(owner) if sent.len() as u64 * self.costs.row > 2 * self.costs.embedding => {
                    embeddings += 2;
                    messages.extend([(batch, owner, reader), (batch, reader, owner)]);
                }
                _ => {
                    rows += sent.len();
                    messages.extend(sent.iter().map(|push| (batch, push.owner, reader)));
                }
            }
        }
        let mut memories: HashSet<(u32, Rank, NodeId)> = HashSet::new(); // (batch, to whom, of whom)
        let mut commits: BTreeSet<(u32, Rank, Rank)> = BTreeSet::new();
        for hearing in &self.needs.hearings {
            for to in (0..self.ranks as u16).map(Rank) {
                let listens = to == hearing.to || follows(to, hearing.node);
                if listens && to != hearing.from && !follows(to, hearing.peer) {
                    memories.insert((hearing.batch, to, hearing.peer));
                    commits.insert((hearing.batch, hearing.from, to));
                }
            }
        }
        let updates = |(rank, set): (usize, &NodeSet)| -> f64 {
            let replayed = |(node, (_, owner)): &(&NodeId, &(u32, Rank))| owner.index() != rank && set.contains(**node);
            self.needs.updates.iter().filter(replayed).map(|(_, &(batches, _))| f64::from(batches)).sum()
        };
        let all: f64 = followed.iter().enumerate().map(updates).sum();
        let held = followed.iter().map(NodeSet::len).sum();
        Point {
            tau,
            communication: self.costs.communication(
                (messages.len() + commits.len()) as f64,
                rows as f64 + (embeddings as u64 * self.costs.embedding) as f64 / self.costs.row as f64,
                memories.len() as f64,
            ),
            replay: self.costs.replay(all, held as f64),
            followed: held,
        }
    }

    /// The cheapest threshold.
    pub fn best(&self) -> Point {
        let points = thresholds().map(|tau| self.point(tau));
        points.min_by(|a, b| a.cost().total_cmp(&b.cost())).expect("there are eleven")
    }
}
