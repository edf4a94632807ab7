//! Sampling temporal neighborhoods: which past events each root of a batch sees, hop by hop.
//!
//! Strategies are [`Strategy::Recent`] (TGN, arXiv:2006.10637) and [`Strategy::Uniform`] (TGAT, arXiv:2002.07962). What is
//! *visible* to a root (v, t) is the same for both, and is a prefix of v's row of the [`Tcsr`]: entries with a time strictly
//! before t and, under `same_batch = "hidden"`, of events before the global batch's first.
//!
//! Invariants:
//! - Every sampled edge is strictly earlier than its root. Times are compared as i64 ticks.
//! - Each (node, time) is sampled once per hop, each node read once; logical roots and slots point there (see [`block`]).
//! - What is sampled for a root is a pure function of the graph, the root, the batch's first event and the key: it depends on no
//!   other root of the batch, no thread, no rank and nothing sampled before.
//! - In steady state, with a reused [`Sample`] and [`SampleScratch`], nothing is allocated.
//!
//! Neighbors of distinct roots are found in parallel; numbering is serial, since first-seen order is what makes it canonical.
//!
//! Absent on purpose: a table of each node's latest K events (a prefix's tail is that already), features, and negatives.

pub mod block;
pub mod cache;
pub mod config;
mod dedup;
pub mod edge_memory;
pub mod hash;
#[cfg(test)]
mod real_streams;
mod recent;
mod serve;
#[cfg(test)]
mod tests;
mod uniform;

pub use block::{Hop, Root, Sample};
pub use cache::SampleCache;
pub use config::{HopTime, Latest, SameBatch, SamplerConfig, SamplerConfigError, Strategy};
pub use hash::{Role, SampleHash};

use crate::graph::{Entry, Tcsr};
use block::Slots;
use dedup::{NodeTable, RootTable};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;
use tidemill_data::id::{EventId, NodeId, Timestamp};
use tidemill_data::philox::Key;
use tidemill_data::stream::Tick;

/// Roots that one task samples.
const CHUNK: usize = 128;
/// Roots whose entries are fetched together: few enough that those of usual fanouts stay in the first-level cache.
const GROUP: usize = 32;
/// With fewer slots than this, starting tasks costs more than it saves.
const SERIAL_BELOW: usize = 1 << 13;

/// Samples neighbors from one graph by one configuration. Shared by all threads.
#[derive(Clone, Debug)]
pub struct Sampler {
    config: SamplerConfig,
    graph: Arc<Tcsr>,
    tick: Tick,
    pool: Option<Arc<rayon::ThreadPool>>,
    serial_below: usize,
}

/// Tables that a caller keeps from batch to batch, so that sampling allocates nothing. Holds 8 bytes per node of the graph.
#[derive(Clone, Debug, Default)]
pub struct SampleScratch {
    roots: RootTable,
    rows: NodeTable,
    serve: serve::ServeScratch,
}

impl SampleScratch {
    /// Distinct roots of the top hop that were sampled, and that came from a cache's records, so far.
    pub fn counts(&self) -> (u64, u64) {
        (self.serve.sampled, self.serve.served)
    }
}

/// Which of a batch's roots a [`SampleCache`] knows.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// The cache.
    pub cache: &'a SampleCache,
    /// The batch's number in the pass that the cache was made for.
    pub batch: usize,
    /// The leading roots, by their places among that batch's known roots.
    pub places: &'a [u32],
}

impl Sampler {
    /// A sampler on the current rayon pool. `tick` is the stream's: draws are keyed by nanoseconds.
    ///
    /// # Panics
    /// If the configuration is not valid.
    pub fn new(config: &SamplerConfig, graph: Arc<Tcsr>, tick: Tick) -> Sampler {
        config.validate().expect("a sampler's configuration is validated before use");
        Sampler { config: config.clone(), graph, tick, pool: None, serial_below: SERIAL_BELOW }
    }

    /// A sampler that finds no neighbors: roots are numbered, that is all.
    pub fn without_neighbors(graph: Arc<Tcsr>, tick: Tick) -> Sampler {
        let config = SamplerConfig { neighbors: vec![0], cache: false, ..SamplerConfig::default() };
        Sampler { config, graph, tick, pool: None, serial_below: usize::MAX }
    }

    /// The same sampler on `pool`.
    pub fn with_pool(mut self, pool: Arc<rayon::ThreadPool>) -> Sampler {
        self.pool = Some(pool);
        self
    }

    /// The configuration.
    pub fn config(&self) -> &SamplerConfig {
        &self.config
    }

    /// The graph.
    pub fn graph(&self) -> &Arc<Tcsr> {
        &self.graph
    }

    /// Samples for the logical `roots`, repeats included.
    ///
    /// * `first_event`: the first event of the *global* batch; what `same_batch = "hidden"` hides starts there.
    /// * `key`: purpose `Neighbor`, narrowed to epoch and batch; read by `uniform` alone.
    ///
    /// # Panics
    /// If a root's node is not in the graph, or its `before` exceeds the node's degree.
    pub fn sample(&self, roots: &[Root], first_event: EventId, key: Key, scratch: &mut SampleScratch) -> Sample {
        let mut sample = Sample::default();
        self.sample_into(roots, first_event, key, scratch, &mut sample);
        sample
    }

    /// As [`Sampler::sample_into`], with the leading roots' samples from a cache where it holds the batch. The sample is the same.
    ///
    /// # Panics
    /// As [`Sampler::sample`].
    pub fn sample_known_into(
        &self,
        known: Option<Known<'_>>,
        roots: &[Root],
        first_event: EventId,
        key: Key,
        scratch: &mut SampleScratch,
        sample: &mut Sample,
    ) {
        let record = known.and_then(|known| Some((known.cache.record(known.batch)?, known.places)));
        let served = record
            .is_some_and(|(record, places)| self.serve(&record, places, roots, (first_event, key), scratch, sample));
        if !served {
            self.sample_into(roots, first_event, key, scratch, sample);
        }
    }

    /// As [`Sampler::sample`], into buffers at hand.
    ///
    /// # Panics
    /// As [`Sampler::sample`].
    pub fn sample_into(
        &self,
        roots: &[Root],
        first_event: EventId,
        key: Key,
        scratch: &mut SampleScratch,
        sample: &mut Sample,
    ) {
        let Sample { hops, root_of, rows } = sample;
        hops.resize_with(self.config.hops(), Hop::default);
        number_roots(roots, &mut hops[0].roots, root_of, &mut scratch.roots);
        scratch.serve.sampled += hops[0].roots.len() as u64;
        for (h, &fanout) in self.config.neighbors.iter().enumerate() {
            let (upper, lower) = hops.split_at_mut(h + 1);
            let hop = &mut upper[h];
            hop.resize(fanout);
            let all = 0..hop.roots.len();
            self.select(h as u32, hop, all, first_event, key);
            match lower.first_mut() {
                Some(next) => self.descend(hop, &mut next.roots, &mut scratch.roots),
                None => number_rows(hop, self.graph.nodes(), rows, &mut scratch.rows),
            }
        }
    }

    /// Finds the neighbors of some roots of hop `h`, in parallel if they are many.
    fn select(&self, h: u32, hop: &mut Hop, which: Range<usize>, first_event: EventId, key: Key) {
        let (k, draw) = (hop.fanout, Draw { h, first_event, key });
        if k == 0 {
            let find =
                |root: &mut Root| root.before = root.before.or_else(|| Some(self.graph.search(root.node, root.time)));
            return hop.roots[which].iter_mut().for_each(find);
        }
        let slots = which.start * k..which.end * k;
        let part = Part {
            roots: &mut hop.roots[which.clone()],
            count: &mut hop.count[which],
            neighbor: &mut hop.neighbor[slots.clone()],
            event: &mut hop.event[slots.clone()],
            time: &mut hop.time[slots],
        };
        if part.neighbor.len() < self.serial_below {
            return self.select_part(part, k, draw);
        }
        let mut run = || {
            let columns = (
                part.roots.par_chunks_mut(CHUNK),
                part.count.par_chunks_mut(CHUNK),
                part.neighbor.par_chunks_mut(CHUNK * k),
                part.event.par_chunks_mut(CHUNK * k),
                part.time.par_chunks_mut(CHUNK * k),
            );
            columns.into_par_iter().for_each(|(roots, count, neighbor, event, time)| {
                let part = Part { roots, count, neighbor, event, time };
                self.select_part(part, k, draw);
            });
        };
        match &self.pool {
            Some(pool) => pool.install(run),
            None => run(),
        }
    }

    /// In small groups and three passes each, so that the cache misses of a group's roots are under way at once: how much of
    /// each row is visible, which entries are taken, and the copying.
    fn select_part(&self, part: Part<'_>, k: usize, draw: Draw) {
        let slots = part
            .neighbor
            .chunks_mut(GROUP * k)
            .zip(part.event.chunks_mut(GROUP * k))
            .zip(part.time.chunks_mut(GROUP * k));
        let groups = part.roots.chunks_mut(GROUP).zip(part.count.chunks_mut(GROUP)).zip(slots);
        for ((roots, count), ((neighbor, event), time)) in groups {
            for root in &mut *roots {
                root.before = Some(root.before.unwrap_or_else(|| self.graph.search(root.node, root.time)));
            }
            for ((root, count), places) in roots.iter().zip(&mut *count).zip(event.chunks_exact_mut(k)) {
                *count = self.choose(root, draw, places) as u16;
            }
            let slots = neighbor.chunks_exact_mut(k).zip(event.chunks_exact_mut(k)).zip(time.chunks_exact_mut(k));
            for ((root, &count), ((neighbor, event), time)) in roots.iter().zip(&*count).zip(slots) {
                let (row, count) = (self.graph.row(root.node), usize::from(count));
                let slots = Slots { neighbor, event, time };
                match self.config.strategy {
                    Strategy::Recent | Strategy::Oldest => recent::take(row, count, slots),
                    Strategy::Uniform => uniform::take(row, count, slots),
                }
            }
        }
    }

    /// Chooses what a root takes of its row and asks for it. `places` carries the choice to the strategy's `take`; returns how
    /// many slots it fills.
    #[inline]
    fn choose(&self, root: &Root, draw: Draw, places: &mut [EventId]) -> usize {
        let visible = self.visible(root, draw.first_event);
        match self.config.strategy {
            Strategy::Recent => recent::choose(visible, places),
            Strategy::Oldest => recent::choose(&visible[..visible.len().min(places.len())], places),
            Strategy::Uniform => {
                let key = draw.key.at(root.node.0, self.tick.nanoseconds(root.time), draw.h);
                uniform::choose(visible, key, places)
            }
        }
    }

    /// The entries that a root sees: a prefix of its node's row.
    #[inline]
    fn visible(&self, root: &Root, first_event: EventId) -> &[Entry] {
        let earlier = &self.graph.row(root.node)[..root.before.expect("found for every root first") as usize];
        let visible = match (self.config.same_batch, earlier.last()) {
            (SameBatch::Hidden, Some(last)) if last.event >= first_event => {
                &earlier[..earlier.partition_point(|entry| entry.event < first_event)]
            }
            _ => earlier,
        };
        match (self.config.latest, visible.split_last()) {
            (Latest::Dropped, Some((_, older))) => older,
            _ => visible,
        }
    }

    /// Makes the next hop's roots: this hop's own, then its neighbors in slot order.
    fn descend(&self, hop: &mut Hop, next: &mut Vec<Root>, table: &mut RootTable) {
        table.start(next);
        for (root, below) in hop.roots.iter().zip(&mut hop.below_root) {
            *below = table.insert(root.node, root.time, next, || root.before);
        }
        for r in 0..hop.roots.len() {
            self.descend_slots(hop, r, next, table);
            let absent = hop.slots(r).end..(r + 1) * hop.fanout;
            hop.below_neighbor[absent].fill(0);
        }
    }

    /// Makes roots of the next hop out of the neighbors of root `r`.
    #[inline]
    fn descend_slots(&self, hop: &mut Hop, r: usize, next: &mut Vec<Root>, table: &mut RootTable) {
        let root = hop.roots[r];
        for at in hop.slots(r) {
            let (node, event) = (hop.neighbor[at], hop.event[at]);
            hop.below_neighbor[at] = match self.config.hop_time {
                HopTime::Edge => {
                    table.insert(node, hop.time[at], next, || Some(self.graph.far_offset(event, root.node, node)))
                }
                HopTime::Root => table.insert(node, root.time, next, || None),
            };
        }
    }
}

/// What all roots of a hop are sampled with.
#[derive(Clone, Copy)]
struct Draw {
    h: u32,
    first_event: EventId,
    key: Key,
}

/// Some roots of a hop and their slots.
struct Part<'a> {
    roots: &'a mut [Root],
    count: &'a mut [u16],
    neighbor: &'a mut [NodeId],
    event: &'a mut [EventId],
    time: &'a mut [Timestamp],
}

/// Numbers the distinct (node, time) among the logical roots.
fn number_roots(roots: &[Root], distinct: &mut Vec<Root>, root_of: &mut Vec<u32>, table: &mut RootTable) {
    table.start(distinct);
    root_of.clear();
    root_of.extend(roots.iter().map(|root| table.insert(root.node, root.time, distinct, || root.before)));
}

/// Numbers the distinct nodes of the deepest hop.
fn number_rows(hop: &mut Hop, nodes: usize, rows: &mut Vec<NodeId>, table: &mut NodeTable) {
    table.start(nodes, rows);
    for (root, below) in hop.roots.iter().zip(&mut hop.below_root) {
        *below = table.insert(root.node, rows);
    }
    for r in 0..hop.roots.len() {
        let valid = hop.slots(r);
        for at in valid.clone() {
            hop.below_neighbor[at] = table.insert(hop.neighbor[at], rows);
        }
        hop.below_neighbor[valid.end..(r + 1) * hop.fanout].fill(0);
    }
}
