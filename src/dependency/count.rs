//! How many state rows cross ranks under each way of meeting remote needs, counted in integers.
//!
//! A rank *needs* the rows of its roots and of the neighbors that they reach, hop by hop; a row is *remote* where another rank
//! owns it. Four policies, per batch and summed over ranks:
//!
//! | policy | a root is embedded on | rows that cross |
//! |---|---|---|
//! | fetch-all | its event's primary rank | every remote row needed |
//! | versioned | its event's primary rank | of these, those written since this rank last received them |
//! | owner-computes | the owner of its node | every remote row needed there |
//! | both | the owner of its node | of these, those written since this rank last received them |
//!
//! Under the last two, a root whose owner is not its event's primary rank sends one embedding, and gets one gradient back. A row
//! is written when its node is an endpoint of an event; one never written is the same everywhere and is not sent. Copies live
//! without bound: what `dependency.cache_bytes` evicts is not modelled here, nor are rows kept current by replay.

#[cfg(test)]
mod tests;

use crate::partition::{PartitionTable, Rank};
use crate::sampler::{Hop, Sample};
use serde::Serialize;
use std::collections::HashMap;
use std::ops::AddAssign;
use tidemill_data::id::NodeId;

/// Rows and embeddings that cross ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RowCounts {
    /// Remote rows of the primary ranks' roots and their neighbors.
    pub fetch_all: u64,
    /// Of these, rows written since they were last received.
    pub versioned: u64,
    /// Remote rows where each root's owner embeds it.
    pub owner_computes: u64,
    /// Of these, rows written since they were last received.
    pub both: u64,
    /// Embeddings sent, and gradients sent back, where each root's owner embeds it; repeats of a root are counted.
    pub embeddings: u64,
}

impl AddAssign for RowCounts {
    fn add_assign(&mut self, other: RowCounts) {
        self.fetch_all += other.fetch_all;
        self.versioned += other.versioned;
        self.owner_computes += other.owner_computes;
        self.both += other.both;
        self.embeddings += other.embeddings;
    }
}

/// Counts a pass, batch after batch.
#[derive(Clone, Debug)]
pub struct RowCounter {
    ranks: usize,
    /// How often each node was written.
    version: Vec<u32>,
    /// Versions received where primary ranks embed, and where owners do.
    received: [Received; 2],
    scratch: Scratch,
}

/// The version of each row that a rank received last.
type Received = HashMap<(Rank, NodeId), u32>;

impl RowCounter {
    /// A counter at the start of a pass, when no row is written yet.
    pub fn new(nodes: usize, ranks: usize) -> RowCounter {
        let received = [Received::new(), Received::new()];
        RowCounter { ranks, version: vec![0; nodes], received, scratch: Scratch::default() }
    }

    /// Counts a batch and marks its endpoints written.
    ///
    /// * `table`: owners in the batch's window.
    /// * `primary`: the rank of each event, `[B]`.
    /// * `sample`: of the logical roots: sources `[B]`, destinations `[B]`, negatives event after event `[B * n]`.
    ///
    /// # Panics
    /// If the sample is of another number of events.
    pub fn count(&mut self, table: &PartitionTable, primary: &[Rank], sample: &Sample) -> RowCounts {
        let events = primary.len();
        let logical = sample.root_of.len();
        assert!(logical >= 2 * events && logical.is_multiple_of(events.max(1)), "{logical} roots of {events} events");
        let negatives = (logical / events.max(1)).saturating_sub(2).max(1);
        let runner = |i: usize| primary[if i < 2 * events { i % events } else { (i - 2 * events) / negatives }];
        let owner = |i: usize| table.owner(node_of(sample, i));
        let mut counts = RowCounts::default();
        (counts.fetch_all, counts.versioned) = self.cross(0, table, sample, runner);
        (counts.owner_computes, counts.both) = self.cross(1, table, sample, owner);
        counts.embeddings = (0..logical).filter(|&i| owner(i) != runner(i)).count() as u64;
        self.write(sample, events);
        counts
    }

    /// Remote rows where `place` embeds each logical root: all of them, and those to send.
    fn cross(
        &mut self,
        policy: usize,
        table: &PartitionTable,
        sample: &Sample,
        place: impl Fn(usize) -> Rank,
    ) -> (u64, u64) {
        let mut roots_of = vec![Vec::new(); self.ranks];
        (0..sample.root_of.len()).for_each(|i| roots_of[place(i).index()].push(sample.root_of[i]));
        let (mut remote, mut sent) = (0, 0);
        for (rank, roots) in (0..).map(Rank).zip(roots_of) {
            for &row in self.scratch.rows_needed(sample, roots) {
                let node = sample.rows[row as usize];
                if table.owner(node) == rank {
                    continue;
                }
                remote += 1;
                let version = self.version[node.index()];
                if version > 0 && self.received[policy].insert((rank, node), version) != Some(version) {
                    sent += 1;
                }
            }
        }
        (remote, sent)
    }

    fn write(&mut self, sample: &Sample, events: usize) {
        let mut written: Vec<NodeId> = (0..2 * events).map(|i| node_of(sample, i)).collect();
        written.sort_unstable();
        written.dedup();
        written.into_iter().for_each(|node| self.version[node.index()] += 1);
    }
}

/// The node of a logical root.
fn node_of(sample: &Sample, logical: usize) -> NodeId {
    sample.hops[0].roots[sample.root_of[logical] as usize].node
}

/// Room for one rank's needs.
#[derive(Clone, Debug, Default)]
struct Scratch {
    seen: Vec<bool>,
    needed: Vec<u32>,
}

impl Scratch {
    /// The rows that some roots of the first hop read, each once.
    fn rows_needed(&mut self, sample: &Sample, mut roots: Vec<u32>) -> &[u32] {
        roots.sort_unstable();
        roots.dedup();
        self.needed = roots;
        for (h, hop) in sample.hops.iter().enumerate() {
            let below = sample.hops.get(h + 1).map_or(sample.rows.len(), |next| next.roots.len());
            self.descend(hop, below);
        }
        &self.needed
    }

    /// From roots of a hop to what they reach one hop below.
    fn descend(&mut self, hop: &Hop, below: usize) {
        self.seen.clear();
        self.seen.resize(below, false);
        let mut reached = Vec::with_capacity(self.needed.len() * 2);
        let mut reach = |at: u32| {
            if !std::mem::replace(&mut self.seen[at as usize], true) {
                reached.push(at);
            }
        };
        for &root in &self.needed {
            reach(hop.below_root[root as usize]);
            hop.slots(root as usize).for_each(|slot| reach(hop.below_neighbor[slot]));
        }
        self.needed = reached;
    }
}
