//! What the plan of a batch says to one rank: what it embeds and reads, what it sends and receives, and what that counts for.

use crate::dependency::Routes;
use crate::partition::Rank;
use crate::sampler::Sample;
use serde::{Deserialize, Serialize};
use tidemill_data::id::{EventId, NodeId};

/// One rank's share of a batch.
#[derive(Default)]
pub struct Share {
    /// Events of the batch that are primary here, `[B']`, as positions in the batch.
    pub mine: Vec<u32>,
    /// Logical roots embedded here, in order; the sample's logical roots.
    pub embeds: Vec<u32>,
    /// Their neighbors.
    pub sample: Sample,
    /// Rows read: the sample's, then own endpoints that it does not reach.
    pub rows: Vec<NodeId>,
    /// Embeddings of `mine`, as sources, destinations, negatives: indices into those made here, then those received.
    pub embeddings: Vec<u32>,
    /// Where the batch's sources, then destinations, are embedded: the rank, and which of the roots it makes.
    pub made: Vec<(Rank, u32)>,
    /// What is sent and received.
    pub exchange: Exchange,
    /// Counts for the summary.
    pub counts: Counts,
    /// What all ranks send.
    pub traffic: Traffic,
}

/// The messages of a batch and what they leave on this rank.
#[derive(Debug, Default)]
pub struct Exchange {
    /// The batch opens a window: nodes change owners before anything else.
    pub opens_window: Option<usize>,
    /// Whole states that move with their nodes; those of blank rows do not travel.
    pub migrate: Routes<NodeId>,
    /// Nodes that leave this rank.
    pub leave: Vec<NodeId>,
    /// Copies that go before the batch's arrive.
    pub drop_before: Vec<NodeId>,
    /// Copies that go once the batch has read them.
    pub drop_after: Vec<NodeId>,
    /// Copies of rows that no batch has written: made here.
    pub blank: Vec<NodeId>,
    /// Rows pushed to those who need them.
    pub push: Routes<NodeId>,
    /// Versions of `push`, where a gate keeps books of them.
    pub versions: Routes<u32>,
    /// Rows that a batch needs and of which there is a copy, with their versions: pushed where the gate is open and they are older.
    pub refresh: Routes<(NodeId, u32)>,
    /// Replicas that fell behind are corrected first, by their owners in this window.
    pub correct: Option<usize>,
    /// Which of them at a window's border: those that the window looks at, ascending; `None`: all.
    pub wanted: Option<Vec<NodeId>>,
    /// Features of sampled edges, at first need.
    pub features: Routes<EventId>,
    /// Copies of features that go before.
    pub features_before: Vec<EventId>,
    /// Copies of features that go after.
    pub features_after: Vec<EventId>,
    /// Embeddings of delegated roots: out, rows of this rank's; in, how many.
    pub embeddings: Routes<u32>,
}

/// What a share counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Remote rows needed here.
    pub remote: u64,
    /// Of these, met by a copy that was there (blank ones included).
    pub hits: u64,
    /// Of these, met by a replica.
    pub cached: u64,
    /// Roots of this rank's events that others embed.
    pub delegated: u64,
    /// Rows sent here.
    pub fetched: u64,
}

impl Counts {
    /// Adds a batch's.
    pub fn add(&mut self, more: &Counts) {
        self.remote += more.remote;
        self.hits += more.hits;
        self.cached += more.cached;
        self.delegated += more.delegated;
        self.fetched += more.fetched;
    }
}

/// What batches send and replay, over all ranks, as planned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Rows pushed.
    pub rows: u64,
    /// Embeddings sent.
    pub embeddings: u64,
    /// Rows of s(peer) sent for commits.
    pub memories: u64,
    /// Messages, a gradient's way back included.
    pub messages: u64,
    /// Updates of replicas.
    pub updates: u64,
}

impl Traffic {
    /// Adds a batch's.
    pub fn add(&mut self, more: &Traffic) {
        self.rows += more.rows;
        self.embeddings += more.embeddings;
        self.memories += more.memories;
        self.messages += more.messages;
        self.updates += more.updates;
    }
}
