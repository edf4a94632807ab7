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
use tidemill_data::id::{EventId, NodeId, Timestamp};
use tidemill_data::negative::{CandidateSets, EdgeSampler, NegativeSampler};
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
    /// Whole edges, one an event, with sources of their own.
    Edges(Arc<EdgeSampler>),
    /// As many as an event's candidate set holds.
    Sets(Arc<RankedEvents>),
}

/// Events that are ranked within candidate sets.
pub struct RankedEvents {
    /// The sets.
    pub sets: CandidateSets,
    /// The events to rank, ascending; `None`: all.
    pub only: Option<Vec<EventId>>,
    /// Whether an embedding depends on its root's time through what is visible alone. Then a candidate of many events of a
    /// batch is embedded once.
    pub timeless: bool,
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
    /// Negative destinations, event after event, `[B * n]`, or as many as `candidates` says.
    pub negatives: Vec<NodeId>,
    /// Sources of the negatives, `[B]`, where they are not the events' own.
    pub negative_sources: Vec<NodeId>,
    /// Candidates of each event, `[B]`, under [`Negatives::Sets`].
    pub candidates: Vec<u32>,
    /// Sampled neighbors of the logical roots: sources `[B]`, destinations `[B]`, negatives, the negatives' sources.
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
        let mut drawn = negatives_of(&self.stream, pass, batch, &events);
        let given: &[NodeId] = if drawn.roots.is_empty() { &drawn.nodes } else { &[] };
        logical_roots(&self.stream, pass.sampler.graph(), &events, given, &mut self.roots);
        self.roots.append(&mut drawn.roots);
        let words = |purpose| Key::new(pass.seed, purpose).narrow([pass.epoch, batch as u32, 0, 0]);
        let sample = pass.sampler.sample(&self.roots, events[0], words(Purpose::Neighbor), &mut self.scratch);
        let keep = dropout_masks(&self.stream, pass, &sample, words(Purpose::Dropout));
        let hash = sample_hash(pass, &events, &sample);
        let seen = pass.edges.as_ref().map(|edges| pairs_seen(&self.stream, edges, &events, &drawn));
        let commit = self.commits.plan(pass.mail, &self.stream, &events, &sample);
        let DrawnNegatives { nodes: negatives, sources: negative_sources, candidates, .. } = drawn;
        BatchPlan { batch, events, negatives, negative_sources, candidates, sample, keep, seen, commit, hash }
    }
}

/// A batch's negatives.
#[derive(Default)]
struct DrawnNegatives {
    nodes: Vec<NodeId>,
    sources: Vec<NodeId>,
    candidates: Vec<u32>,
    /// Their roots, where these are not the negatives at their events' times.
    roots: Vec<Root>,
}

impl DrawnNegatives {
    /// Which of the batch's `count` events each negative belongs to.
    fn events(&self, count: usize) -> impl Iterator<Item = usize> + '_ {
        let even = self.nodes.len() / count.max(1);
        (0..count).flat_map(move |i| {
            let own = self.candidates.get(i).map_or(even, |&candidates| candidates as usize);
            std::iter::repeat_n(i, own)
        })
    }
}

fn negatives_of(stream: &EventStream, pass: &Pass, batch: usize, events: &[EventId]) -> DrawnNegatives {
    let per_event = pass.negatives_per_event;
    let nodes = match &pass.negatives {
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
        Negatives::Edges(sampler) => return negative_edges(stream, events, sampler),
        Negatives::Sets(ranked) => return candidates_of(stream, events, ranked),
    };
    DrawnNegatives { nodes, ..DrawnNegatives::default() }
}

fn negative_edges(stream: &EventStream, events: &[EventId], sampler: &EdgeSampler) -> DrawnNegatives {
    let (sources, nodes): (Vec<NodeId>, Vec<NodeId>) = sampler.sample(events).into_iter().unzip();
    let at = |(&node, &event): (&NodeId, &EventId)| Root { node, time: stream.time(event), before: None };
    let roots = nodes.iter().zip(events).chain(sources.iter().zip(events)).map(at).collect();
    DrawnNegatives { nodes, sources, roots, candidates: Vec::new() }
}

fn candidates_of(stream: &EventStream, events: &[EventId], ranked: &RankedEvents) -> DrawnNegatives {
    let mut drawn = DrawnNegatives::default();
    for &event in events {
        let wanted = ranked.only.as_ref().is_none_or(|only| only.binary_search(&event).is_ok());
        let set = if wanted { ranked.sets.of(event) } else { Vec::new() };
        let time = if ranked.timeless { visible_time(stream, events, event) } else { stream.time(event) };
        drawn.candidates.push(set.len() as u32);
        drawn.roots.extend(set.iter().map(|&node| Root { node, time, before: None }));
        drawn.nodes.extend(set);
    }
    drawn
}

/// One time for all of a batch's events that see the same: everything before the batch. An event that ties with the last
/// one before the batch sees less, and keeps its own.
fn visible_time(stream: &EventStream, events: &[EventId], event: EventId) -> Timestamp {
    let (first, last) = (events[0], events[events.len() - 1]);
    let tied = first.0 > 0 && stream.time(EventId(first.0 - 1)) == stream.time(event);
    stream.time(if tied { event } else { last })
}

/// Whether each event's own pair, then each negative one, is in the memory of edges.
fn pairs_seen(stream: &EventStream, edges: &EdgeMemory, events: &[EventId], drawn: &DrawnNegatives) -> Vec<bool> {
    let memories: Vec<_> = events.iter().map(|&event| edges.at(stream.time(event), events[0])).collect();
    let own = (0..events.len()).map(|i| (i, stream.source(events[i]), stream.destination(events[i])));
    let others = drawn.events(events.len()).zip(&drawn.nodes).enumerate().map(|(at, (i, &node))| {
        let source = drawn.sources.get(at).copied().unwrap_or_else(|| stream.source(events[i]));
        (i, source, node)
    });
    own.chain(others).map(|(i, source, destination)| memories[i].contains(source, destination)).collect()
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
