//! Stage 1, event: which events a batch holds, their negatives, samples and dropout masks, and what it will write.
//!
//! Integers only. A plan is a pure function of the pass, the epoch and the batch number, so it may be made ahead of time,
//! on any thread and on any rank. On one of several ranks it is that rank's share of the global batch.

use super::commit::{CommitPlan, CommitPlanner, MailRule, RowsOf};
use super::rank_commit::RankCommitPlanner;
use crate::dependency::window::WindowNeeds;
use crate::dependency::{Costs, Counts, Exchange, GlobalBatch, PassFacts, Planner, Policy, Share, Traffic, Weights};
use crate::graph::{Endpoint, Tcsr};
use crate::partition::{Partition, PartitionConfig, PartitionTable, Rank};
use crate::sampler::edge_memory::EdgeMemory;
use crate::sampler::{Role, Root, Sample, SampleCache, SampleHash, SampleScratch, Sampler};
use crate::setting::Auto;
use std::io;
use std::ops::Range;
use std::path::Path;
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
    /// Who gets which mail.
    pub mail: MailRule,
    /// The memory of edges, for a model that asks whether pairs met before.
    pub edges: Option<Arc<EdgeMemory>>,
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
        self.partition.as_ref().map(|partition| match partition.windows() {
            0 => partition.last_table().clone(),
            _ => partition.table(partition.window_of_batch(batches.saturating_sub(1))).clone(),
        })
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
            let fixed =
                if self.keeps_negatives() { negatives_of(stream, &self, batch, events).nodes } else { Vec::new() };
            logical_roots(stream, self.sampler.graph(), events, &fixed, roots);
            events[0]
        };
        let cache = SampleCache::build(&self.sampler, batches.min(self.batches()), roots, most_bytes, folder)?;
        Ok(Pass { cache: Some(Arc::new(cache)), ..self })
    }

    /// Whether its negatives' samples are the same in every pass, and may be kept with those of its events.
    fn keeps_negatives(&self) -> bool {
        !self.is_training() && matches!(self.negatives, Negatives::Drawn(_) | Negatives::Given(_))
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
    /// Negative destinations, event after event, `[B * n]`, or as many as `candidates` says.
    pub negatives: Vec<NodeId>,
    /// Sources of the negatives, `[B]`, where they are not the events' own.
    pub negative_sources: Vec<NodeId>,
    /// Candidates of each event, `[B]`, under [`Negatives::Sets`].
    pub candidates: Vec<u32>,
    /// Sampled neighbors of the logical roots that this rank embeds: sources, destinations, negatives, their sources.
    pub sample: Sample,
    /// The rows read: the sample's, then this rank's own endpoints that it does not reach, `[N]`.
    pub rows: Vec<NodeId>,
    /// Embeddings of this rank's events, as sources `[B]`, destinations `[B]`, negatives `[B * n]`: indices into those made
    /// here, then those received.
    pub embeddings: Vec<u32>,
    /// Dropout masks per hop, top first: `[R, H, K]`, true where a weight stays.
    pub keep: Vec<Option<Vec<bool>>>,
    /// Whether each true pair, then each negative one, met before; if the pass has a memory of edges.
    pub seen: Option<Vec<bool>>,
    /// What the state commit writes.
    pub commit: CommitPlan,
    /// What is exchanged with other ranks; nothing alone.
    pub exchange: Exchange,
    /// Where this rank's remote rows came from.
    pub counts: Counts,
    /// What all ranks send for the batch, as planned.
    pub traffic: Traffic,
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
            let (event, role) = Role::of(logical as usize, self.all.len(), self.per_event);
            hash.add_root(&self.sample, place, self.all[event], role);
        }
        hash
    }
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
    /// Whether the model keeps state at all.
    pub writes: bool,
    /// What sending and replay cost.
    pub costs: Costs,
    /// How rows are followed and gated, if not all are fetched as needed.
    pub policy: Option<Policy>,
}

/// Makes plans; owns the scratch space that they share.
pub struct EventStage {
    stream: EventStream,
    scratch: SampleScratch,
    roots: Vec<Root>,
    commits: CommitPlanner,
    rank_commits: RankCommitPlanner,
    among: Option<Among>,
    planner: Option<Planner>,
}

impl EventStage {
    /// A stage over a stream, alone or on one of several ranks.
    pub fn new(stream: EventStream, among: Option<Among>) -> EventStage {
        let (scratch, roots, commits) = Default::default();
        let rank_commits = RankCommitPlanner::new(if among.is_some() { stream.nodes() as usize } else { 0 });
        EventStage { stream, scratch, roots, commits, rank_commits, among, planner: None }
    }

    /// Makes ready for a pass; `blank`: every row is as at the start of an epoch.
    pub fn begin(&mut self, pass: &Pass, blank: bool) {
        self.planner = self.among.as_ref().map(|among| {
            let partition = pass.partition.clone().expect("a pass on one of several ranks has a partition");
            let Among { me, delegate, weights, writes, policy, .. } = among.clone();
            let embeddings_mailed = pass.mail.rows_of == RowsOf::Mixed;
            let facts = PassFacts { training: pass.is_training(), blank: blank || !writes, writes, embeddings_mailed };
            let planner = Planner::new(me, &self.stream, partition, delegate, weights, facts);
            match policy {
                // No gradient opens or closes a gate, and scores are never of what was pruned.
                Some(policy) if facts.training => planner.with_policy(policy),
                Some(policy) => {
                    planner.with_policy(Policy { gated: false, looks_ahead: false, corrections: None, ..policy })
                }
                None => planner,
            }
        });
    }

    /// Plans batch `batch` of a pass. Batches come in order.
    pub fn plan(&mut self, pass: &Pass, batch: usize) -> BatchPlan {
        self.inspect_window(pass, batch);
        let (events, drawn) = self.draw(pass, batch);
        let global = global_batch(pass, batch, &events, &self.roots);
        let share = match &mut self.planner {
            Some(planner) => planner.share(&global, &mut self.scratch),
            None => whole_share(&global, &mut self.scratch),
        };
        let commit = match &self.planner {
            Some(planner) => self.rank_commits.plan(pass.mail, &self.stream, &events, &share, (planner, batch)),
            None => self.commits.plan(pass.mail, &self.stream, &events, &share.sample),
        };
        let seen = pass.edges.as_ref().map(|edges| pairs_seen(&self.stream, edges, &events, &drawn));
        let per_event = pass.negatives_per_event as usize;
        let of_event = |&i: &u32| &drawn.nodes[i as usize * per_event..(i as usize + 1) * per_event];
        let negatives = match self.planner {
            Some(_) => share.mine.iter().flat_map(of_event).copied().collect(),
            None => drawn.nodes,
        };
        BatchPlan {
            batch,
            per_event,
            embeds: share.embeds,
            training: pass.is_training(),
            keep: dropout_masks(&self.stream, pass, &share.sample, words(pass, batch, Purpose::Dropout)),
            negatives,
            negative_sources: drawn.sources,
            candidates: drawn.candidates,
            events: share.mine.iter().map(|&i| events[i as usize]).collect(),
            sample: share.sample,
            rows: share.rows,
            embeddings: share.embeddings,
            seen,
            commit,
            exchange: share.exchange,
            counts: share.counts,
            traffic: share.traffic,
            all: events,
        }
    }

    /// A batch's events and negatives; its logical roots are in `self.roots` then.
    fn draw(&mut self, pass: &Pass, batch: usize) -> (Vec<EventId>, DrawnNegatives) {
        let events: Vec<EventId> = pass.events[pass.span(batch)].to_vec();
        let mut drawn = negatives_of(&self.stream, pass, batch, &events);
        let given: &[NodeId] = if drawn.roots.is_empty() { &drawn.nodes } else { &[] };
        logical_roots(&self.stream, pass.sampler.graph(), &events, given, &mut self.roots);
        self.roots.append(&mut drawn.roots);
        (events, drawn)
    }

    /// Before a window's first batch: finds what all of its batches need, where that decides which rows are followed.
    fn inspect_window(&mut self, pass: &Pass, batch: usize) {
        let Some(planner) = &self.planner else { return };
        let Some(batches) = planner.window_to_inspect(batch) else { return };
        let (mut inspector, mut needs) = (planner.inspector(), WindowNeeds::default());
        for batch in batches {
            let (events, _) = self.draw(pass, batch);
            inspector.inspect(&global_batch(pass, batch, &events, &self.roots), &mut self.scratch, &mut needs);
        }
        if let Some(planner) = &mut self.planner {
            planner.open_window(&needs);
        }
    }

    /// What sending and replay cost, on one of several ranks.
    pub fn costs(&self) -> Option<Costs> {
        self.among.as_ref().map(|among| among.costs)
    }

    /// Whether rows are followed or gated.
    pub fn has_policy(&self) -> bool {
        self.among.as_ref().is_some_and(|among| among.policy.is_some())
    }

    /// The thresholds of the windows of the pass at hand, and their costs.
    pub fn points(&self) -> &[crate::dependency::window::Point] {
        self.planner.as_ref().map_or(&[], Planner::points)
    }

    /// Distinct roots that were sampled, and that came from a cache, so far.
    pub fn root_counts(&self) -> (u64, u64) {
        self.scratch.counts()
    }
}

/// The key of a batch's words.
fn words(pass: &Pass, batch: usize, purpose: Purpose) -> Key {
    Key::new(pass.seed, purpose).narrow([pass.epoch, batch as u32, 0, 0])
}

fn global_batch<'a>(pass: &'a Pass, batch: usize, events: &'a [EventId], roots: &'a [Root]) -> GlobalBatch<'a> {
    GlobalBatch {
        number: batch,
        first: pass.span(batch).start,
        events,
        roots,
        key: words(pass, batch, Purpose::Neighbor),
        sampler: &pass.sampler,
        cache: pass.cache.as_deref(),
        known: if pass.keeps_negatives() { roots.len() } else { 2 * events.len() },
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
