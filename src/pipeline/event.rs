//! Stage 1, event: which events a batch holds, their negatives, samples and dropout masks, and what it will write.
//!
//! Integers only. A plan is a pure function of the pass, the epoch and the batch number, so it may be made ahead of time,
//! on any thread and on any rank. On one of several ranks it is that rank's share of the global batch.

use crate::dependency::{Counts, Exchange, GlobalBatch, Planner, Routes, Share, Weights};
use crate::graph::{Endpoint, Tcsr};
use crate::memory::{Mail, unsent};
use crate::partition::{Partition, PartitionConfig, PartitionTable, Rank};
use crate::sampler::{Role, Root, Sample, SampleCache, SampleHash, SampleScratch, Sampler};
use crate::setting::Auto;
use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use tidemill_data::id::{EventId, NodeId};
use tidemill_data::negative::NegativeSampler;
use tidemill_data::philox::{Key, Purpose};
use tidemill_data::stream::EventStream;

/// One pass over a list of events: an epoch of training or an evaluation.
#[derive(Clone)]
pub struct Pass {
    /// Events in order.
    pub events: Arc<[EventId]>,
    /// Events of a batch, over all ranks.
    pub batch_size: usize,
    /// Neighbors that the pass may see.
    pub sampler: Arc<Sampler>,
    /// What the known roots of its batches see, kept from an earlier pass over the same events.
    pub cache: Option<Arc<SampleCache>>,
    /// Negative destinations.
    pub negatives: Negatives,
    /// Negative destinations of each event.
    pub negatives_per_event: u32,
    /// Keys of the run's random words.
    pub seed: u64,
    /// The epoch, from 1; 0 in evaluation, whose words do not depend on it.
    pub epoch: u32,
    /// Share of attention weights to drop, and the number of heads; absent in evaluation.
    pub dropout: Option<Dropout>,
    /// Which of a batch's mails a node keeps.
    pub mails_kept: MailsKept,
    /// Who owns which node when; absent alone.
    pub partition: Option<Arc<Partition>>,
}

/// Where negative destinations come from.
#[derive(Clone)]
pub enum Negatives {
    /// Drawn by counter.
    Drawn(Arc<NegativeSampler>),
    /// Given for every event of the pass, in its order: `[events * n]`.
    Given(Arc<[NodeId]>),
}

/// Dropout of attention weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Probability that a weight is dropped.
    pub p: f64,
    /// Attention heads.
    pub heads: usize,
}

/// Which of the mails that a batch sends to a node are kept (the message aggregator's rule).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MailsKept {
    /// The one of the largest (event id, source before destination).
    Last,
    /// All, in that order.
    All,
}

impl Pass {
    /// Batches of the pass.
    pub fn batches(&self) -> usize {
        self.events.len().div_ceil(self.batch_size)
    }

    /// The pass among `ranks` ranks, going on from these owners.
    pub fn partitioned(
        self,
        stream: &EventStream,
        ranks: usize,
        config: &PartitionConfig,
        before: Option<&PartitionTable>,
    ) -> Pass {
        let partition = Partition::new(stream, &self.events, self.batch_size, ranks, config, before);
        Pass { partition: Some(Arc::new(partition)), ..self }
    }

    /// Who owns which node once `batches` batches of the pass are done; absent alone.
    pub fn owners_after(&self, batches: usize) -> Option<Arc<PartitionTable>> {
        let last = batches.saturating_sub(1);
        self.partition.as_ref().map(|partition| partition.table(partition.window_of_batch(last)).clone())
    }

    /// The pass with the samples of the known roots of its first `batches` batches kept: the positive ones, in evaluation the
    /// negative ones too, which are the same in every pass.
    ///
    /// * `most_bytes`: bound on what is kept. * `folder`: for an unnamed file.
    ///
    /// # Errors
    /// What the file's disk refuses.
    pub fn with_cache(self, stream: &EventStream, batches: usize, most_bytes: u64, folder: &Path) -> io::Result<Pass> {
        let roots = |batch: usize, roots: &mut Vec<Root>| {
            let events = &self.events[self.span(batch)];
            let fixed = if self.is_training() { Vec::new() } else { negatives_of(stream, &self, batch, events) };
            logical_roots(stream, self.sampler.graph(), events, &fixed, roots);
            events[0]
        };
        let cache = SampleCache::build(&self.sampler, batches.min(self.batches()), roots, most_bytes, folder)?;
        Ok(Pass { cache: Some(Arc::new(cache)), ..self })
    }

    /// Whether this is an epoch of training.
    pub fn is_training(&self) -> bool {
        self.epoch > 0
    }

    fn span(&self, batch: usize) -> Range<usize> {
        let start = batch * self.batch_size;
        start..(start + self.batch_size).min(self.events.len())
    }
}

/// All integers of a batch, as one rank sees it.
pub struct BatchPlan {
    /// Number of the batch in its pass, from 0.
    pub batch: usize,
    /// Events of the global batch, over all ranks.
    pub all: Vec<EventId>,
    /// Negatives of each event.
    pub per_event: usize,
    /// Logical roots of the global batch that this rank embeds: places among sources, destinations, negatives.
    pub embeds: Vec<u32>,
    /// The events that are primary on this rank, `[B]`.
    pub events: Vec<EventId>,
    /// Their negative destinations, event after event, `[B * n]`.
    pub negatives: Vec<NodeId>,
    /// Sampled neighbors of the logical roots that this rank embeds: sources, destinations, negatives in the batch's order.
    pub sample: Sample,
    /// The rows read: the sample's, then this rank's own endpoints that it does not reach, `[N]`.
    pub rows: Vec<NodeId>,
    /// Embeddings of this rank's events, as sources `[B]`, destinations `[B]`, negatives `[B * n]`: indices into those made
    /// here, then those received.
    pub embeddings: Vec<u32>,
    /// Dropout masks per hop, top first: `[R, H, K]`, true where a weight stays.
    pub keep: Vec<Option<Vec<bool>>>,
    /// What the state commit writes.
    pub commit: CommitPlan,
    /// What is exchanged with other ranks; nothing alone.
    pub exchange: Exchange,
    /// Where this rank's remote rows came from.
    pub counts: Counts,
    /// Whether it is trained on.
    pub training: bool,
}

impl BatchPlan {
    /// Fingerprint of the neighbors sampled on this rank; evaluation has none.
    pub fn sample_hash(&self) -> SampleHash {
        let mut hash = SampleHash::default();
        if !self.training {
            return hash;
        }
        for (place, &logical) in self.embeds.iter().enumerate() {
            let (logical, b) = (logical as usize, self.all.len());
            let (event, role) = match logical / b {
                0 => (logical, Role::Source),
                1 => (logical - b, Role::Destination),
                _ => {
                    let (event, draw) = ((logical - 2 * b) / self.per_event, (logical - 2 * b) % self.per_event);
                    (event, Role::Negative(draw as u32))
                }
            };
            hash.add_root(&self.sample, place, self.all[event], role);
        }
        hash
    }
}

/// What a batch writes to the state of this rank's nodes, in integers.
#[derive(Default)]
pub struct CommitPlan {
    /// The endpoints that this rank owns, each once, in order of appearance.
    pub nodes: Vec<NodeId>,
    /// Their rows among the rows read.
    pub rows: Vec<u32>,
    /// New mails in order, with their owners.
    pub mails: Vec<(NodeId, Mail)>,
    /// Whose memory, once committed, the mails carry, `[Q]`: places in `nodes`, then those that peers send.
    pub payload: Vec<u32>,
    /// Committed memory that travels for mails: out, places in `nodes`; in, one entry each.
    pub peers: Routes<u32>,
}

/// One of several ranks, and what sending costs it.
#[derive(Clone)]
pub struct Among {
    /// This rank.
    pub me: Rank,
    /// Where remote roots are embedded.
    pub delegate: Auto<bool>,
    /// Sizes on the wire.
    pub weights: Weights,
}

/// Makes plans; owns the scratch space that they share.
pub struct EventStage {
    stream: EventStream,
    scratch: SampleScratch,
    roots: Vec<Root>,
    row_of: Vec<u32>,
    slot_of: Vec<u32>,
    among: Option<Among>,
    planner: Option<Planner>,
}

impl EventStage {
    /// A stage over a stream, alone or on one of several ranks.
    pub fn new(stream: EventStream, among: Option<Among>) -> EventStage {
        let nodes = stream.nodes() as usize;
        EventStage {
            scratch: SampleScratch::default(),
            roots: Vec::new(),
            row_of: vec![u32::MAX; nodes],
            slot_of: vec![u32::MAX; nodes],
            stream,
            among,
            planner: None,
        }
    }

    /// Makes ready for a pass; `blank`: every row is as at the start of an epoch.
    pub fn begin(&mut self, pass: &Pass, blank: bool) {
        self.planner = self.among.as_ref().map(|among| {
            let partition = pass.partition.clone().expect("a pass on one of several ranks has a partition");
            let Among { me, delegate, weights } = among.clone();
            Planner::new(me, &self.stream, partition, delegate, weights, pass.epoch > 0, blank)
        });
    }

    /// Plans batch `batch` of a pass. Batches come in order.
    pub fn plan(&mut self, pass: &Pass, batch: usize) -> BatchPlan {
        let span = pass.span(batch);
        let events: Vec<EventId> = pass.events[span.clone()].to_vec();
        let negatives = negatives_of(&self.stream, pass, batch, &events);
        logical_roots(&self.stream, pass.sampler.graph(), &events, &negatives, &mut self.roots);
        let words = |purpose| Key::new(pass.seed, purpose).narrow([pass.epoch, batch as u32, 0, 0]);
        let global = GlobalBatch {
            number: batch,
            first: span.start,
            events: &events,
            roots: &self.roots,
            key: words(Purpose::Neighbor),
            sampler: &pass.sampler,
            cache: pass.cache.as_deref(),
            known: if pass.is_training() { 2 * events.len() } else { self.roots.len() },
        };
        let share = match &mut self.planner {
            Some(planner) => planner.share(&global, &mut self.scratch),
            None => whole_share(&global, &mut self.scratch),
        };
        let commit = self.plan_commit(pass.mails_kept, &events, &share.rows);
        let per_event = pass.negatives_per_event as usize;
        let of_event = |&i: &u32| &negatives[i as usize * per_event..(i as usize + 1) * per_event];
        BatchPlan {
            batch,
            per_event,
            embeds: share.embeds,
            training: pass.is_training(),
            keep: dropout_masks(&self.stream, pass, &share.sample, words(Purpose::Dropout)),
            negatives: share.mine.iter().flat_map(of_event).copied().collect(),
            events: share.mine.iter().map(|&i| events[i as usize]).collect(),
            sample: share.sample,
            rows: share.rows,
            embeddings: share.embeddings,
            commit,
            exchange: share.exchange,
            counts: share.counts,
            all: events,
        }
    }

    /// Distinct roots that were sampled, and that came from a cache, so far.
    pub fn root_counts(&self) -> (u64, u64) {
        self.scratch.counts()
    }

    /// What the batch's events leave behind: this rank's nodes' rows and mails, and the memory that travels for them.
    fn plan_commit(&mut self, kept: MailsKept, events: &[EventId], rows: &[NodeId]) -> CommitPlan {
        rows.iter().enumerate().for_each(|(row, node)| self.row_of[node.index()] = row as u32);
        let mut endpoints = Vec::new(); // all ranks', each once, in order of appearance
        let mut all: Vec<(u32, Mail)> = Vec::with_capacity(2 * events.len()); // (place of the owner in `endpoints`, mail)
        for &event in events {
            let nodes = [self.stream.source(event), self.stream.destination(event)];
            for (end, peer) in [(0, 1), (1, 0)] {
                let slot = &mut self.slot_of[nodes[end].index()];
                if *slot == u32::MAX {
                    *slot = endpoints.len() as u32;
                    endpoints.push(nodes[end]);
                }
                all.push((*slot, unsent(nodes[peer], event, self.stream.time(event))));
            }
        }
        if kept == MailsKept::Last {
            all = last_of_each(all, endpoints.len());
        }
        let mails = all.into_iter().map(|(slot, mail)| (endpoints[slot as usize], mail)).collect();
        let plan = self.route_mails(&endpoints, mails);
        endpoints.iter().for_each(|node| self.slot_of[node.index()] = u32::MAX);
        plan
    }

    /// Keeps what this rank writes, and notes whose committed memory it sends and gets.
    ///
    /// * `endpoints`: all ranks', each node's place in it in `slot_of`.
    fn route_mails(&mut self, endpoints: &[NodeId], mails: Vec<(NodeId, Mail)>) -> CommitPlan {
        let row_of = |node: &NodeId| self.row_of[node.index()];
        let Some(planner) = &self.planner else {
            let payload = mails.iter().map(|(_, mail)| self.slot_of[mail.peer.index()]).collect();
            let rows = endpoints.iter().map(row_of).collect();
            return CommitPlan { nodes: endpoints.to_vec(), rows, mails, payload, ..CommitPlan::default() };
        };
        let me = planner.me();
        let nodes: Vec<NodeId> = endpoints.iter().copied().filter(|&node| planner.owner(node) == me).collect();
        let rows = nodes.iter().map(row_of).collect();
        for (place, node) in nodes.iter().enumerate() {
            self.slot_of[node.index()] = place as u32;
        }
        let (peers, received) = self.routes_of(&mails, planner);
        let mut first = HashMap::new(); // where each peer's memory begins among what is at hand
        let mut end = nodes.len() as u32;
        for (rank, list) in &peers.into {
            first.insert(*rank, end);
            end += list.len() as u32;
        }
        let place = |peer: NodeId| match received.get(&peer) {
            Some((rank, at)) => first[rank] + at,
            None => self.slot_of[peer.index()],
        };
        let mails: Vec<(NodeId, Mail)> = mails.into_iter().filter(|&(node, _)| planner.owner(node) == me).collect();
        let payload = mails.iter().map(|(_, mail)| place(mail.peer)).collect();
        CommitPlan { nodes, rows, mails, payload, peers }
    }

    /// Whose committed memory travels for mails, and from whom and at which place each node's comes.
    fn routes_of(&self, mails: &[(NodeId, Mail)], planner: &Planner) -> (Routes<u32>, HashMap<NodeId, (Rank, u32)>) {
        let (me, mut routes) = (planner.me(), Routes::default());
        let mut sent: HashSet<(Rank, NodeId)> = HashSet::new();
        let mut received: HashMap<NodeId, (Rank, u32)> = HashMap::new();
        let mut counts: HashMap<Rank, u32> = HashMap::new();
        for &(node, mail) in mails {
            let (from, to) = (planner.owner(mail.peer), planner.owner(node));
            if from == to {
                continue;
            }
            if from == me && sent.insert((to, mail.peer)) {
                routes.note(me, from, to, self.slot_of[mail.peer.index()]);
            }
            if to == me && !received.contains_key(&mail.peer) {
                let count = counts.entry(from).or_default();
                received.insert(mail.peer, (from, *count));
                *count += 1;
                routes.note(me, from, to, 0);
            }
        }
        (routes, received)
    }
}

/// The share of a rank that is alone: everything.
fn whole_share(batch: &GlobalBatch<'_>, scratch: &mut SampleScratch) -> Share {
    let embeds: Vec<u32> = (0..batch.roots.len() as u32).collect();
    let sample = batch.sample(&embeds, scratch);
    Share {
        mine: (0..batch.events.len() as u32).collect(),
        embeds,
        rows: sample.rows.clone(),
        embeddings: sample.root_of.clone(),
        sample,
        ..Share::default()
    }
}

/// Keeps the last mail of each of `owners` owners; what is kept stays in order of the owners.
fn last_of_each(mails: Vec<(u32, Mail)>, owners: usize) -> Vec<(u32, Mail)> {
    let mut last = vec![None; owners];
    for mail in mails {
        last[mail.0 as usize] = Some(mail);
    }
    last.into_iter().flatten().collect()
}

fn negatives_of(stream: &EventStream, pass: &Pass, batch: usize, events: &[EventId]) -> Vec<NodeId> {
    let per_event = pass.negatives_per_event;
    match &pass.negatives {
        Negatives::Given(nodes) => {
            let span = pass.span(batch);
            nodes[span.start * per_event as usize..span.end * per_event as usize].to_vec()
        }
        Negatives::Drawn(sampler) => {
            let of_event = |&event: &EventId| {
                let positive = stream.destination(event);
                (0..per_event).map(move |draw| sampler.draw(pass.epoch, event, positive, draw))
            };
            events.iter().flat_map(of_event).collect()
        }
    }
}

/// A batch's logical roots, into a buffer at hand: sources, destinations, then negatives, each at its event's time.
///
/// * `negatives`: `[B * n]`, event after event.
pub fn logical_roots(
    stream: &EventStream,
    graph: &Tcsr,
    events: &[EventId],
    negatives: &[NodeId],
    roots: &mut Vec<Root>,
) {
    roots.clear();
    for endpoint in [Endpoint::Source, Endpoint::Destination] {
        roots.extend(events.iter().map(|&event| {
            let node = match endpoint {
                Endpoint::Source => stream.source(event),
                Endpoint::Destination => stream.destination(event),
            };
            Root { node, time: stream.time(event), before: Some(graph.offset(event, endpoint)) }
        }));
    }
    let per_event = (negatives.len() / events.len().max(1)).max(1);
    for (&event, negatives) in events.iter().zip(negatives.chunks_exact(per_event)) {
        let time = stream.time(event);
        roots.extend(negatives.iter().map(|&node| Root { node, time, before: None }));
    }
}

/// Masks keyed by what they apply to, so that merged roots agree on any rank (algorithm page, section 3).
fn dropout_masks(stream: &EventStream, pass: &Pass, sample: &Sample, key: Key) -> Vec<Option<Vec<bool>>> {
    let tick = stream.meta().tick;
    let mask = |dropout: Dropout, level: usize| {
        let hop = &sample.hops[level];
        let threshold = (dropout.p * 4_294_967_296.0).floor() as u64;
        let places: Vec<(u32, i64)> = hop.roots.iter().map(|root| (root.node.0, tick.nanoseconds(root.time))).collect();
        let mut keep = vec![false; hop.roots.len() * dropout.heads * hop.fanout];
        key.words_at(&places, level as u32, &mut keep, |word| u64::from(word) >= threshold);
        keep
    };
    (0..sample.hops.len()).map(|level| pass.dropout.map(|dropout| mask(dropout, level))).collect()
}
