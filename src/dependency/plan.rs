//! The plan of a batch on one of several ranks: which events and roots are its own, which rows it reads and does not own, and
//! who pushes them.
//!
//! Inspector-executor: the order of events is known and negatives are drawn by counter, so every rank works out the needs of
//! *all* ranks by the same integer arithmetic. Owners push without being asked, sizes are known before a message comes, and
//! there is one message per pair of ranks, batch and purpose. A row is pushed when a batch needs it and the version pushed
//! last is older than the owner's (DepTGL, arXiv:2608.16305, fetches; versions and delegation are ours).
//!
//! A remote *root* may instead be embedded by its owner (`delegation`): one embedding travels, and its gradient back.
//!
//! A row that a rank *follows* ([`Replicas`]) is sent at most once; from then on the rank replays the events that touch it. Which
//! rows are followed is decided anew for each window (`follow`). Where pushes wait for the gate, the plan lists the rows that a
//! batch needs and may have in an older version; who pushes them is decided when the batch is brought.
//!
//! Invariants: each event is primary on exactly one rank, each logical root embedded on exactly one; what a rank reads it owns
//! or was sent in its current version; a row that no batch of the pass has written is known to be blank and never sent.
//! Absent on purpose: tensors, messages, and replay.

mod batch;
mod delegation;
mod follow;
mod reach;
mod share;

pub use batch::GlobalBatch;
pub use share::{Counts, Exchange, Share, Traffic};

use super::copies::{Copies, Found};
use super::cost::Costs;
use super::replicas::Replicas;
use super::window::Point;
use crate::partition::{Partition, Rank};
use crate::sampler::{Sample, SampleScratch};
use crate::setting::Auto;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use tidemill_data::id::{EventId, NodeId};
use tidemill_data::stream::EventStream;

/// What things cost on the wire and how much may be kept, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    /// A node's whole state.
    pub row: u64,
    /// An embedding.
    pub embedding: u64,
    /// An event's features.
    pub feature: u64,
    /// Room for copies from one batch to the next.
    pub cache: u64,
}

impl Weights {
    /// Copies of rows and of features that fit: each gets half of the room where there are features.
    fn room(&self) -> (usize, usize) {
        let share = if self.feature > 0 { self.cache / 2 } else { self.cache };
        let count = |each: u64| usize::try_from(share / each.max(1)).unwrap_or(usize::MAX);
        (count(self.row), if self.feature > 0 { count(self.feature) } else { 0 })
    }
}

/// What a planner must know of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassFacts {
    /// Embeddings' gradients travel back.
    pub training: bool,
    /// Every row is as at the start of an epoch.
    pub blank: bool,
    /// Batches write their endpoints' rows.
    pub writes: bool,
    /// Mails carry what their sender's embedding is, from where it is made; else the sender's memory, from its owner.
    pub embeddings_mailed: bool,
}

/// Which rows are not simply fetched when they are needed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// Threshold of rho up to which rows are followed.
    pub tau: Auto<f64>,
    /// What sending and replay cost.
    pub costs: Costs,
    /// Newer versions of copies wait for the gate.
    pub gated: bool,
    /// Replicas may fall behind: they are corrected every so many batches, or, if 0, at each window's end.
    pub corrections: Option<u32>,
    /// Replicas may fall behind, by pruning or otherwise: it must be known who reads them when.
    pub looks_ahead: bool,
}

impl Policy {
    /// Whether any row may be followed.
    pub fn follows(&self) -> bool {
        self.tau != Auto::Value(0.0)
    }
}

/// Shares out the batches of a pass.
#[derive(Clone)]
pub struct Planner {
    me: Rank,
    stream: EventStream,
    partition: Arc<Partition>,
    delegate: Auto<bool>,
    weights: Weights,
    pass: PassFacts,
    /// Version of each node's row: 0, blank; otherwise it grows with each batch that writes it.
    written: Vec<u32>,
    copies: Vec<Copies<NodeId>>,
    features: Vec<Copies<EventId>>,
    window: Option<usize>,
    policy: Option<Policy>,
    /// By rank.
    replicas: Vec<Replicas>,
    /// What is followed from the next window on.
    coming: Option<Vec<tidemill_data::node_set::NodeSet>>,
    /// The chosen threshold and its cost, of each window that was opened.
    points: Vec<Point>,
    uses: HashMap<NodeId, follow::Uses>,
    /// Rows that a rank has room for.
    room: usize,
    /// Who pushes to the reader at hand.
    pushers: HashSet<Rank>,
}

impl Planner {
    /// A planner for a pass.
    pub fn new(
        me: Rank,
        stream: &EventStream,
        partition: Arc<Partition>,
        delegate: Auto<bool>,
        weights: Weights,
        pass: PassFacts,
    ) -> Planner {
        let ranks = partition.table(0).ranks();
        let (rows, features) = weights.room();
        Planner {
            me,
            stream: stream.clone(),
            partition,
            delegate,
            weights,
            pass,
            written: vec![u32::from(!pass.blank); stream.nodes() as usize],
            copies: vec![Copies::new(rows); ranks],
            features: vec![Copies::new(features); ranks],
            window: None,
            policy: None,
            replicas: Vec::new(),
            coming: None,
            points: Vec::new(),
            uses: HashMap::new(),
            room: rows,
            pushers: HashSet::new(),
        }
    }

    /// Who owns a node in the window at hand.
    pub fn owner(&self, node: NodeId) -> Rank {
        self.partition.table(self.window.expect("a batch was shared out")).owner(node)
    }

    /// This rank.
    pub fn me(&self) -> Rank {
        self.me
    }

    /// Shares out the next batch.
    ///
    /// Batches come in order, but may start anywhere: at the first, copies are as at a pass's start, none.
    pub fn share(&mut self, batch: &GlobalBatch<'_>, scratch: &mut SampleScratch) -> Share {
        let mut share = Share::default();
        self.enter_window(batch.number, &mut share.exchange);
        let primary: Vec<Rank> = (0..batch.events.len()).map(|i| self.partition.primary(batch.first + i)).collect();
        let embedder = self.embedders(batch, &primary, scratch);
        share.mine = positions(&primary, self.me);
        share.embeds = positions(&embedder, self.me);

        let rank = |rank: usize| Rank(rank as u16);
        let samples: Vec<Sample> =
            (0..self.copies.len()).map(|r| batch.sample(&positions(&embedder, rank(r)), scratch)).collect();
        self.need_rows(batch.number as u32, &samples, &mut share);
        self.follow_endpoints(batch, &mut share.exchange);
        self.need_features(batch, &samples, &mut share.exchange);
        self.link_embeddings(batch, (&primary, &embedder), &samples, &mut share);
        share.sample = samples.into_iter().nth(self.me.index()).expect("a sample for each rank");
        share.rows = self.rows_read(batch, &share.sample);
        self.count_mails(batch, &share.made, &mut share.traffic);
        self.mark_written(batch);
        share
    }

    fn enter_window(&mut self, batch: usize, exchange: &mut Exchange) {
        let window = self.partition.window_of_batch(batch);
        exchange.correct = self.correction_at(batch);
        if self.window == Some(window) {
            return;
        }
        // A pass that is entered in the middle of a window finds its rows where that window's table has them.
        if self.partition.first_batch(window) == batch {
            for &(node, from, to) in self.partition.moved(window) {
                self.copies[to.index()].forget(node);
                if self.written[node.index()] > 0 {
                    exchange.migrate.note(self.me, from, to, node);
                }
                if from == self.me {
                    exchange.leave.push(node);
                }
            }
        }
        exchange.opens_window = Some(window);
        self.window = Some(window);
        self.turn_replicas(batch, exchange);
    }

    /// Whether a rank owns an endpoint of an event, and so its features.
    fn holds_features(&self, rank: Rank, event: EventId) -> bool {
        self.owner(self.stream.source(event)) == rank || self.owner(self.stream.destination(event)) == rank
    }

    fn need_rows(&mut self, now: u32, samples: &[Sample], share: &mut Share) {
        for (rank, sample) in samples.iter().enumerate() {
            let reader = Rank(rank as u16);
            self.pushers.clear();
            for &node in &sample.rows {
                let owner = self.owner(node);
                if owner != reader {
                    self.need_row(node, owner, reader, now, share);
                }
            }
            let (before, after) = (self.copies[rank].evict_before(now), self.copies[rank].evict_all());
            if reader == self.me {
                share.exchange.drop_before.extend(before);
                share.exchange.drop_after = after;
            }
        }
    }

    fn need_row(&mut self, node: NodeId, owner: Rank, reader: Rank, now: u32, share: &mut Share) {
        let version = self.written[node.index()];
        if self.follows(reader, node) {
            return self.need_replica(node, owner, reader, share);
        }
        let found = self.copies[reader.index()].need(node, version, now);
        let waits = self.policy.is_some_and(|policy| policy.gated) && found != Found::Absent && version > 0;
        let sent = found != Found::Fresh && version > 0 && !waits;
        if sent {
            self.push(node, owner, reader, share);
        }
        if waits {
            if found == Found::Stale {
                share.traffic.rows += 1;
                share.traffic.messages += u64::from(self.pushers.insert(owner));
            }
            share.exchange.refresh.note(self.me, owner, reader, (node, version));
        }
        if reader == self.me {
            share.counts.remote += 1;
            share.counts.fetched += u64::from(sent);
            share.counts.hits += u64::from(!sent);
            if found == Found::Absent && version == 0 {
                share.exchange.blank.push(node);
            }
        }
    }

    fn push(&mut self, node: NodeId, owner: Rank, reader: Rank, share: &mut Share) {
        let exchange = &mut share.exchange;
        share.traffic.rows += 1;
        share.traffic.messages += u64::from(self.pushers.insert(owner));
        exchange.push.note(self.me, owner, reader, node);
        if self.policy.is_some_and(|policy| policy.gated) {
            exchange.versions.note(self.me, owner, reader, self.written[node.index()]);
        }
    }

    fn need_features(&mut self, batch: &GlobalBatch<'_>, samples: &[Sample], exchange: &mut Exchange) {
        if self.weights.feature == 0 {
            return;
        }
        let now = batch.number as u32;
        for (rank, sample) in samples.iter().enumerate() {
            let reader = Rank(rank as u16);
            for hop in &sample.hops {
                for slot in (0..hop.roots.len()).flat_map(|root| hop.slots(root)) {
                    let event = hop.event[slot];
                    if self.holds_features(reader, event) {
                        continue;
                    }
                    self.need_feature(event, reader, now, exchange);
                }
            }
            for &event in batch.events {
                let ends = [self.stream.source(event), self.stream.destination(event)];
                if ends.iter().any(|&node| self.replicates(reader, node)) && !self.holds_features(reader, event) {
                    self.need_feature(event, reader, now, exchange); // the mails of replicas
                }
            }
            let (before, after) = (self.features[rank].evict_before(now), self.features[rank].evict_all());
            if reader == self.me {
                (exchange.features_before, exchange.features_after) = (before, after);
            }
        }
    }

    fn need_feature(&mut self, event: EventId, reader: Rank, now: u32, exchange: &mut Exchange) {
        if self.features[reader.index()].need(event, 0, now) == Found::Absent {
            exchange.features.note(self.me, self.owner(self.stream.source(event)), reader, event);
        }
    }

    /// Where the embeddings of this rank's events are, and which embeddings travel.
    fn link_embeddings(
        &self,
        batch: &GlobalBatch<'_>,
        (primary, embedder): (&[Rank], &[Rank]),
        samples: &[Sample],
        share: &mut Share,
    ) {
        let mut next = vec![0usize; samples.len()]; // place in each rank's list of roots
        let mut seen: BTreeMap<(Rank, Rank), BTreeMap<u32, u32>> = BTreeMap::new();
        let mut at: Vec<(Rank, u32)> = vec![(self.me, u32::MAX); batch.roots.len()];
        let positives = 2 * batch.events.len();
        for logical in 0..batch.roots.len() {
            let (rank, asking) = (embedder[logical], primary[batch.event_of(logical)]);
            let place = &mut next[rank.index()];
            let row = samples[rank.index()].root_of[*place];
            *place += 1;
            if logical < positives {
                share.made.push((rank, row));
            }
            if rank == asking {
                at[logical] = (rank, row);
                continue;
            }
            let sent = seen.entry((rank, asking)).or_default();
            let count = sent.len() as u32;
            let index = *sent.entry(row).or_insert_with(|| {
                share.exchange.embeddings.note(self.me, rank, asking, row);
                share.traffic.embeddings += 1;
                count
            });
            at[logical] = (rank, index);
            share.counts.delegated += u64::from(asking == self.me);
        }
        share.traffic.messages += (seen.len() * if self.pass.training { 2 } else { 1 }) as u64;
        let own = samples[self.me.index()].hops[0].roots.len() as u32;
        let mut first = vec![0; samples.len()];
        let mut end = own;
        for (rank, list) in &share.exchange.embeddings.into {
            first[rank.index()] = end;
            end += list.len() as u32;
        }
        let (b, per_event) = (batch.events.len(), batch.roots.len() / batch.events.len() - 2);
        let logical_of_mine = [0, b].into_iter().flat_map(|start| share.mine.iter().map(move |&i| start + i as usize));
        let negatives = share.mine.iter().flat_map(|&i| {
            let start = 2 * b + i as usize * per_event;
            start..start + per_event
        });
        let place = |logical: usize| {
            let (rank, index) = at[logical];
            if rank == self.me { index } else { first[rank.index()] + index }
        };
        share.embeddings = logical_of_mine.chain(negatives).map(place).collect();
    }

    /// The sample's rows and the endpoints that this rank owns: their owner alone computes what they become.
    fn rows_read(&self, batch: &GlobalBatch<'_>, sample: &Sample) -> Vec<NodeId> {
        let mut rows = sample.rows.clone();
        let mut seen: HashSet<NodeId> = rows.iter().copied().collect();
        for root in &batch.roots[..2 * batch.events.len()] {
            if self.owner(root.node) == self.me && seen.insert(root.node) {
                rows.push(root.node);
            }
        }
        rows
    }

    fn mark_written(&mut self, batch: &GlobalBatch<'_>) {
        if !self.pass.writes {
            return;
        }
        for root in &batch.roots[..2 * batch.events.len()] {
            self.written[root.node.index()] = batch.number as u32 + 2;
        }
    }
}

fn positions(ranks: &[Rank], of: Rank) -> Vec<u32> {
    (0..ranks.len() as u32).filter(|&i| ranks[i as usize] == of).collect()
}
