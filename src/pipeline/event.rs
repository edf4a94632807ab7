//! Stage 1, event: which events a batch holds, their negatives, samples and dropout masks, and what it will write.
//!
//! Integers only. A plan is a pure function of the pass, the epoch and the batch number, so it may be made ahead of time,
//! on any thread and on any rank.

use crate::graph::{Endpoint, Tcsr};
use crate::memory::{Mail, unsent};
use crate::sampler::{Known, Role, Root, Sample, SampleCache, SampleHash, SampleScratch, Sampler};
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

/// All integers of a batch.
pub struct BatchPlan {
    /// Number of the batch in its pass, from 0.
    pub batch: usize,
    /// Its events, `[B]`.
    pub events: Vec<EventId>,
    /// Negative destinations, event after event, `[B * n]`.
    pub negatives: Vec<NodeId>,
    /// Sampled neighbors of the logical roots: sources `[B]`, destinations `[B]`, negatives `[B * n]`.
    pub sample: Sample,
    /// Dropout masks per hop, top first: `[R, H, K]`, true where a weight stays.
    pub keep: Vec<Option<Vec<bool>>>,
    /// What the state commit writes.
    pub commit: CommitPlan,
    /// Whether it is trained on.
    pub training: bool,
}

impl BatchPlan {
    /// Fingerprint of the sampled neighbors; evaluation has none.
    pub fn sample_hash(&self) -> SampleHash {
        let mut hash = SampleHash::default();
        if !self.training {
            return hash;
        }
        let b = self.events.len();
        let per_event = self.negatives.len() / b.max(1);
        for (i, &event) in self.events.iter().enumerate() {
            hash.add_root(&self.sample, i, event, Role::Source);
            hash.add_root(&self.sample, b + i, event, Role::Destination);
            for draw in 0..per_event {
                hash.add_root(&self.sample, 2 * b + i * per_event + draw, event, Role::Negative(draw as u32));
            }
        }
        hash
    }
}

/// What a batch writes to the state, in integers.
pub struct CommitPlan {
    /// The events' endpoints, each once, in order of appearance.
    pub nodes: Vec<NodeId>,
    /// Their rows among the rows read.
    pub rows: Vec<u32>,
    /// New mails in order, with their owners.
    pub mails: Vec<(NodeId, Mail)>,
    /// Rows among those read whose memory, once committed, the mails carry, `[Q]`.
    pub payload_rows: Vec<u32>,
}

/// Makes plans; owns the scratch space that they share.
pub struct EventStage {
    stream: EventStream,
    scratch: SampleScratch,
    roots: Vec<Root>,
    places: Vec<u32>,
    slot_of_row: Vec<u32>,
}

impl EventStage {
    /// A stage over a stream.
    pub fn new(stream: EventStream) -> EventStage {
        let (scratch, roots, places, slot_of_row) = Default::default();
        EventStage { stream, scratch, roots, places, slot_of_row }
    }

    /// Plans batch `batch` of a pass.
    pub fn plan(&mut self, pass: &Pass, batch: usize) -> BatchPlan {
        let events: Vec<EventId> = pass.events[pass.span(batch)].to_vec();
        let negatives = negatives_of(&self.stream, pass, batch, &events);
        logical_roots(&self.stream, pass.sampler.graph(), &events, &negatives, &mut self.roots);
        let words = |purpose| Key::new(pass.seed, purpose).narrow([pass.epoch, batch as u32, 0, 0]);
        let sample = self.sample(pass, batch, (events[0], events.len()), words(Purpose::Neighbor));
        let keep = dropout_masks(&self.stream, pass, &sample, words(Purpose::Dropout));
        let commit = self.plan_commit(pass.mails_kept, &events, &sample);
        BatchPlan { batch, events, negatives, sample, keep, commit, training: pass.is_training() }
    }

    /// Samples for the batch's roots, of which the pass may have kept some.
    fn sample(&mut self, pass: &Pass, batch: usize, (first, events): (EventId, usize), key: Key) -> Sample {
        let known = if pass.is_training() { 2 * events } else { self.roots.len() };
        self.places.extend(self.places.len() as u32..known as u32);
        let places = &self.places[..known];
        let known = pass.cache.as_deref().map(|cache| Known { cache, batch, places });
        let mut sample = Sample::default();
        pass.sampler.sample_known_into(known, &self.roots, first, key, &mut self.scratch, &mut sample);
        sample
    }

    /// Distinct roots that were sampled, and that came from a cache, so far.
    pub fn root_counts(&self) -> (u64, u64) {
        self.scratch.counts()
    }

    fn plan_commit(&mut self, kept: MailsKept, events: &[EventId], sample: &Sample) -> CommitPlan {
        self.slot_of_row.clear();
        self.slot_of_row.resize(sample.rows.len(), u32::MAX);
        let mut plan = CommitPlan { nodes: Vec::new(), rows: Vec::new(), mails: Vec::new(), payload_rows: Vec::new() };
        let mut all: Vec<(u32, Mail, u32)> = Vec::with_capacity(2 * events.len()); // (slot of the owner, mail, row of the peer)
        for (i, &event) in events.iter().enumerate() {
            let ends = [i, events.len() + i].map(|logical| row_of_root(sample, logical));
            let nodes = [self.stream.source(event), self.stream.destination(event)];
            for (end, peer) in [(0, 1), (1, 0)] {
                let slot = &mut self.slot_of_row[ends[end] as usize];
                if *slot == u32::MAX {
                    *slot = plan.nodes.len() as u32;
                    plan.nodes.push(nodes[end]);
                    plan.rows.push(ends[end]);
                }
                all.push((*slot, unsent(nodes[peer], event, self.stream.time(event)), ends[peer]));
            }
        }
        if kept == MailsKept::Last {
            all = last_of_each(all, plan.nodes.len());
        }
        for (slot, mail, peer_row) in all {
            plan.mails.push((plan.nodes[slot as usize], mail));
            plan.payload_rows.push(peer_row);
        }
        plan
    }
}

/// Keeps the last mail of each of `owners` owners; what is kept stays in order of the owners.
fn last_of_each(mails: Vec<(u32, Mail, u32)>, owners: usize) -> Vec<(u32, Mail, u32)> {
    let mut last = vec![None; owners];
    for mail in mails {
        last[mail.0 as usize] = Some(mail);
    }
    last.into_iter().flatten().collect()
}

/// Row, among the rows read, of the node of a logical root.
fn row_of_root(sample: &Sample, logical: usize) -> u32 {
    sample.hops.iter().fold(sample.root_of[logical], |at, hop| hop.below_root[at as usize])
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
