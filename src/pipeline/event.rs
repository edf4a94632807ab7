//! Stage 1, event: which events a batch holds, their negatives, samples and dropout masks, and what it will write.
//!
//! Integers only. A plan is a pure function of the pass, the epoch and the batch number, so it may be made ahead of time,
//! on any thread and on any rank.

use super::commit::{CommitPlan, CommitPlanner, MailRule};
use crate::graph::{Endpoint, Tcsr};
use crate::sampler::edge_memory::EdgeMemory;
use crate::sampler::{Role, Root, Sample, SampleHash, SampleScratch, Sampler};
use std::ops::Range;
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
    /// Who gets which mail.
    pub mail: MailRule,
    /// The memory of edges, for a model that asks whether pairs met before.
    pub edges: Option<Arc<EdgeMemory>>,
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

impl Pass {
    /// Batches of the pass.
    pub fn batches(&self) -> usize {
        self.events.len().div_ceil(self.batch_size)
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
    /// Whether each true pair, then each negative one, met before; if the pass has a memory of edges.
    pub seen: Option<Vec<bool>>,
    /// What the state commit writes.
    pub commit: CommitPlan,
    /// Fingerprint of the sampled neighbors.
    pub hash: SampleHash,
}

/// Makes plans; owns the scratch space that they share.
pub struct EventStage {
    stream: EventStream,
    scratch: SampleScratch,
    roots: Vec<Root>,
    commits: CommitPlanner,
}

impl EventStage {
    /// A stage over a stream.
    pub fn new(stream: EventStream) -> EventStage {
        EventStage { scratch: SampleScratch::default(), stream, roots: Vec::new(), commits: CommitPlanner::default() }
    }

    /// Plans batch `batch` of a pass.
    pub fn plan(&mut self, pass: &Pass, batch: usize) -> BatchPlan {
        let events: Vec<EventId> = pass.events[pass.span(batch)].to_vec();
        let negatives = negatives_of(&self.stream, pass, batch, &events);
        logical_roots(&self.stream, pass.sampler.graph(), &events, &negatives, &mut self.roots);
        let words = |purpose| Key::new(pass.seed, purpose).narrow([pass.epoch, batch as u32, 0, 0]);
        let sample = pass.sampler.sample(&self.roots, events[0], words(Purpose::Neighbor), &mut self.scratch);
        let keep = dropout_masks(&self.stream, pass, &sample, words(Purpose::Dropout));
        let hash = sample_hash(pass, &events, &sample);
        let seen = pass.edges.as_ref().map(|edges| pairs_seen(&self.stream, edges, &events, &negatives));
        let commit = self.commits.plan(pass.mail, &self.stream, &events, &sample);
        BatchPlan { batch, events, negatives, sample, keep, seen, commit, hash }
    }
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

/// Whether each event's own pair, then each of its pairs with negatives, is in the memory of edges.
fn pairs_seen(stream: &EventStream, edges: &EdgeMemory, events: &[EventId], negatives: &[NodeId]) -> Vec<bool> {
    let per_event = negatives.len() / events.len().max(1);
    let memories: Vec<_> = events.iter().map(|&event| edges.at(stream.time(event), events[0])).collect();
    let own = events.iter().zip(&memories).map(|(&event, memory)| (event, memory, stream.destination(event)));
    let others = (events.iter().zip(&memories).zip(negatives.chunks_exact(per_event.max(1))))
        .flat_map(|((&event, memory), negatives)| negatives.iter().map(move |&negative| (event, memory, negative)));
    own.chain(others).map(|(event, memory, other)| memory.contains(stream.source(event), other)).collect()
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

/// Fingerprint of a training batch's samples; evaluation has none.
fn sample_hash(pass: &Pass, events: &[EventId], sample: &Sample) -> SampleHash {
    let mut hash = SampleHash::default();
    if pass.epoch == 0 {
        return hash;
    }
    let (b, per_event) = (events.len(), pass.negatives_per_event as usize);
    for (i, &event) in events.iter().enumerate() {
        hash.add_root(sample, i, event, Role::Source);
        hash.add_root(sample, b + i, event, Role::Destination);
        for draw in 0..per_event {
            hash.add_root(sample, 2 * b + i * per_event + draw, event, Role::Negative(draw as u32));
        }
    }
    hash
}

/// Masks keyed by what they apply to, so that merged roots agree on any rank (algorithm page, section 3).
fn dropout_masks(stream: &EventStream, pass: &Pass, sample: &Sample, key: Key) -> Vec<Option<Vec<bool>>> {
    let mask = |dropout: Dropout, level: usize| {
        let hop = &sample.hops[level];
        let threshold = (dropout.p * 4_294_967_296.0).floor() as u64;
        let words = dropout.heads * hop.fanout;
        let mut keep = Vec::with_capacity(hop.roots.len() * words);
        for root in &hop.roots {
            let key = key.at(root.node.0, stream.meta().tick.nanoseconds(root.time), level as u32);
            for block in 0..words.div_ceil(4) {
                let take = (words - 4 * block).min(4);
                keep.extend(key.block(block as u64)[..take].iter().map(|&word| u64::from(word) >= threshold));
            }
        }
        keep
    };
    (0..sample.hops.len()).map(|level| pass.dropout.map(|dropout| mask(dropout, level))).collect()
}
