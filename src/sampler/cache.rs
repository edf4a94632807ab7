//! The sample cache: what a batch's known roots see, sampled once and kept for every later epoch.
//!
//! Under `recent` the sample of a root is a function of the graph, the root and the batch's first event, so the positive roots of
//! a pass (in evaluation its fixed negatives too) see the same in every epoch. A record holds a batch's sample of those roots
//! alone, without repeats and without empty slots:
//!
//! ```text
//! [roots_0 edges_0 .. rows logical first_event]     header: lengths per hop, of the rows, of the logical roots
//! hop:  (node, before) (time) (count, below) ..     three words a distinct root
//!       (event, below) (time) ..                    two words an edge; `below` leads to the neighbor
//! rows, place of each logical root                  two to a word
//! ```
//! A batch served from its record equals what the sampler gives, to the bit: places are numbered anew as first seen, since the
//! other roots of the batch come in between. Any subset of the known roots can be asked for.
//!
//! Records beyond [`HEAP_BYTES`] lie in an unnamed mapped file, whose pages the kernel may drop; records that do not fit into the
//! bound are not kept, and their batches are sampled. Deliberately absent: eviction (a pass reads all its batches in turn).

use super::{Hop, Root, Sample, SampleScratch, Sampler, Strategy};
use memmap2::Mmap;
use rayon::prelude::*;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::Path;
use tidemill_data::id::{EventId, NodeId, Timestamp};
use tidemill_data::philox::{Key, Purpose};

/// Bytes of records that are kept on the heap.
pub const HEAP_BYTES: u64 = 64 << 20;
/// Batches that are sampled at a time while a cache is made.
const GROUP: usize = 64;

/// Samples of the known roots of a pass's batches.
#[derive(Debug)]
pub struct SampleCache {
    heap: Vec<Box<[u64]>>,
    /// Words of each record in the file.
    spans: Vec<Range<usize>>,
    file: Option<Mmap>,
    bytes: u64,
}

impl SampleCache {
    /// Samples batches `0..batches`, in parallel, until `most_bytes` are used.
    ///
    /// * `roots`: puts a batch's known roots into a buffer and returns its first event. * `folder`: where the unnamed file is made.
    ///
    /// # Errors
    /// What the file's disk refuses.
    ///
    /// # Panics
    /// If the sampler's strategy is not `recent`: no other one sees the same twice.
    pub fn build(
        sampler: &Sampler,
        batches: usize,
        roots: impl Fn(usize, &mut Vec<Root>) -> EventId + Sync,
        most_bytes: u64,
        folder: &Path,
    ) -> io::Result<SampleCache> {
        SampleCache::build_within(sampler, batches, roots, (HEAP_BYTES, most_bytes), folder)
    }

    /// As [`SampleCache::build`], with at most so many bytes on the heap, and in all.
    pub(super) fn build_within(
        sampler: &Sampler,
        batches: usize,
        roots: impl Fn(usize, &mut Vec<Root>) -> EventId + Sync,
        (heap_bytes, most_bytes): (u64, u64),
        folder: &Path,
    ) -> io::Result<SampleCache> {
        assert_eq!(
            sampler.config().strategy,
            Strategy::Recent,
            "what other strategies see differs from epoch to epoch"
        );
        let cache = SampleCache { heap: vec![], spans: vec![], file: None, bytes: 0 };
        let mut store = Store { cache, out: None, heap_bytes };
        for group in (0..batches).step_by(GROUP) {
            let batches = group..(group + GROUP).min(batches);
            let made: Vec<Box<[u64]>> = batches
                .into_par_iter()
                .map_init(Made::default, |Made { scratch, sample, roots: list }, batch| {
                    let first = roots(batch, list);
                    sampler.sample_into(list, first, Key::new(0, Purpose::Neighbor), scratch, sample);
                    encode(sample, first)
                })
                .collect();
            for record in made {
                if store.cache.bytes + size_of_val(&*record) as u64 > most_bytes {
                    return store.finish();
                }
                store.add(record, folder)?;
            }
        }
        store.finish()
    }

    /// Batches kept: the first ones of the pass.
    pub fn batches(&self) -> usize {
        self.heap.len() + self.spans.len()
    }

    /// Bytes of all records.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A batch's record, if it is kept.
    pub(super) fn record(&self, batch: usize) -> Option<Record<'_>> {
        let words = match self.heap.get(batch) {
            Some(words) => words,
            None => {
                let span = self.spans.get(batch - self.heap.len())?.clone();
                let file = self.file.as_ref().expect("spans are of the file");
                &bytemuck::cast_slice(file)[span]
            }
        };
        Some(Record::of(words))
    }
}

#[derive(Default)]
struct Made {
    scratch: SampleScratch,
    sample: Sample,
    roots: Vec<Root>,
}

/// A cache in the making.
struct Store {
    cache: SampleCache,
    out: Option<BufWriter<File>>,
    heap_bytes: u64,
}

impl Store {
    fn add(&mut self, record: Box<[u64]>, folder: &Path) -> io::Result<()> {
        let cache = &mut self.cache;
        cache.bytes += size_of_val(&*record) as u64;
        if self.out.is_none() && cache.bytes <= self.heap_bytes {
            cache.heap.push(record);
            return Ok(());
        }
        if self.out.is_none() {
            self.out = Some(BufWriter::new(tempfile::tempfile_in(folder)?));
        }
        let start = cache.spans.last().map_or(0, |span| span.end);
        cache.spans.push(start..start + record.len());
        self.out.as_mut().expect("just made").write_all(bytemuck::cast_slice(&record))
    }

    fn finish(self) -> io::Result<SampleCache> {
        let Store { mut cache, out, .. } = self;
        if let Some(out) = out {
            let file = out.into_inner().map_err(|error| error.into_error())?;
            // SAFETY: the file has no name and its only handle is here, so nobody changes or cuts it.
            cache.file = Some(unsafe { Mmap::map(&file)? });
        }
        Ok(cache)
    }
}

fn pair(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn halves(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

fn encode(sample: &Sample, first_event: EventId) -> Box<[u64]> {
    let mut words = Vec::new();
    for hop in &sample.hops {
        words.extend([hop.roots.len() as u64, hop.edges() as u64]);
    }
    words.extend([sample.rows.len() as u64, sample.root_of.len() as u64, u64::from(first_event.0)]);
    words.insert(0, sample.hops.len() as u64);
    for hop in &sample.hops {
        for ((root, &count), &below) in hop.roots.iter().zip(&hop.count).zip(&hop.below_root) {
            let before = root.before.expect("the sampler has found it");
            words.extend([pair(root.node.0, before), root.time.0 as u64, pair(u32::from(count), below)]);
        }
        for at in (0..hop.roots.len()).flat_map(|r| hop.slots(r)) {
            words.extend([pair(hop.event[at].0, hop.below_neighbor[at]), hop.time[at].0 as u64]);
        }
    }
    let two = |list: &[u32]| pair(list[0], list.get(1).copied().unwrap_or(0));
    let rows: Vec<u32> = sample.rows.iter().map(|node| node.0).collect();
    words.extend(rows.chunks(2).map(two));
    words.extend(sample.root_of.chunks(2).map(two));
    words.into_boxed_slice()
}

/// A batch's record, looked at.
pub(super) struct Record<'a> {
    hops: smallvec::SmallVec<[HopRecord<'a>; 3]>,
    rows: &'a [u64],
    row_count: usize,
    logical: &'a [u64],
    logical_count: usize,
    pub(super) first_event: EventId,
}

#[derive(Clone, Copy)]
struct HopRecord<'a> {
    roots: &'a [[u64; 3]],
    edges: &'a [[u64; 2]],
}

impl<'a> Record<'a> {
    fn of(words: &'a [u64]) -> Record<'a> {
        let hops = words[0] as usize;
        let (header, mut rest) = words[1..].split_at(2 * hops + 3);
        let mut take = |words: usize| {
            let (taken, left) = rest.split_at(words);
            rest = left;
            taken
        };
        let hop = |lengths: &[u64]| HopRecord {
            roots: bytemuck::cast_slice(take(3 * lengths[0] as usize)),
            edges: bytemuck::cast_slice(take(2 * lengths[1] as usize)),
        };
        let hops = header[..2 * hops].chunks_exact(2).map(hop).collect();
        let [row_count, logical_count] = [header[header.len() - 3], header[header.len() - 2]].map(|n| n as usize);
        let (rows, logical) = rest.split_at(row_count.div_ceil(2));
        let first_event = EventId(header[header.len() - 1] as u32);
        Record { hops, rows, row_count, logical, logical_count, first_event }
    }

    fn row(&self, at: u32) -> NodeId {
        NodeId(half(self.rows, at))
    }

    /// Whether logical root `place` of the record is `root`.
    fn is(&self, place: u32, root: &Root) -> bool {
        (place as usize) < self.logical_count && {
            let [node, time, _] = self.hops[0].roots[half(self.logical, place) as usize];
            halves(node).0 == root.node.0 && time as i64 == root.time.0
        }
    }
}

fn half(words: &[u64], at: u32) -> u32 {
    let (high, low) = halves(words[at as usize / 2]);
    if at.is_multiple_of(2) { high } else { low }
}

/// Not placed yet, or not from the record.
const NONE: u32 = u32::MAX;

/// What a caller keeps from batch to batch: places of the record's roots and rows in the sample being made.
#[derive(Clone, Debug, Default)]
pub(super) struct ServeScratch {
    /// By root or row of the record, of the hop being made and of the one below: its place.
    placed: [Vec<u32>; 2],
    /// By root of the sample, of the same two hops: its place in the record.
    from: [Vec<u32>; 2],
    /// Where each of the record's roots has its first edge.
    first_edge: Vec<u32>,
    /// Roots that the sampler was asked for, at the top hop.
    pub(super) sampled: u64,
    /// Roots that came from records, at the top hop.
    pub(super) served: u64,
}

impl Sampler {
    /// Makes a sample out of a record for the leading `known` roots, and by sampling for those behind them.
    ///
    /// * `known`: places of the leading roots among the record's logical roots.
    ///
    /// False, with nothing done, if the record is of another batch.
    pub(super) fn serve(
        &self,
        record: &Record<'_>,
        known: &[u32],
        roots: &[Root],
        (first_event, key): (EventId, Key),
        scratch: &mut SampleScratch,
        sample: &mut Sample,
    ) -> bool {
        let same = record.first_event == first_event && record.hops.len() == self.config.hops();
        if !same || !known.iter().zip(roots).all(|(&place, root)| record.is(place, root)) {
            return false;
        }
        let SampleScratch { roots: root_table, rows: row_table, serve } = scratch;
        let Sample { hops, root_of, rows } = sample;
        hops.resize_with(self.config.hops(), Hop::default);
        serve.start(0, record.hops[0].roots.len());
        root_table.start(&mut hops[0].roots);
        root_of.clear();
        for (i, root) in roots.iter().enumerate() {
            let list = &mut hops[0].roots;
            let at = match known.get(i) {
                Some(&place) => {
                    let p = half(record.logical, place);
                    serve.place(0, p, || {
                        let (node, before) = halves(record.hops[0].roots[p as usize][0]);
                        root_table.insert(NodeId(node), root.time, list, || Some(before))
                    })
                }
                None => root_table.insert(root.node, root.time, list, || root.before),
            };
            root_of.push(at);
        }
        for (h, &fanout) in self.config.neighbors.iter().enumerate() {
            let (upper, lower) = hops.split_at_mut(h + 1);
            let hop = &mut upper[h];
            hop.resize(fanout);
            serve.from[0].resize(hop.roots.len(), NONE);
            serve.find_first_edges(&record.hops[h]);
            if h == 0 {
                let served = serve.from[0].iter().filter(|&&p| p != NONE).count() as u64;
                (serve.served, serve.sampled) =
                    (serve.served + served, serve.sampled + hop.roots.len() as u64 - served);
            }
            self.fill(record, h, hop, serve, (first_event, key));
            match lower.first_mut() {
                Some(next) => {
                    serve.start(1, record.hops[h + 1].roots.len());
                    root_table.start(&mut next.roots);
                    self.descend_served(record, h, hop, &mut next.roots, root_table, serve);
                    serve.descend();
                }
                None => {
                    serve.start(1, record.row_count);
                    row_table.start(self.graph.nodes(), rows);
                    number_rows(record, h, hop, rows, row_table, serve);
                }
            }
        }
        true
    }

    /// Fills the hop's columns but for the links: from the record, or by the sampler, run by run.
    fn fill(&self, record: &Record<'_>, h: usize, hop: &mut Hop, serve: &ServeScratch, draw: (EventId, Key)) {
        let from = &serve.from[0];
        let mut r = 0;
        while r < from.len() {
            if from[r] == NONE {
                let end = r + from[r..].iter().take_while(|&&p| p == NONE).count();
                self.select(h as u32, hop, r..end, draw.0, draw.1);
                r = end;
            } else {
                copy_root(record, h, hop, r, from[r], serve);
                r += 1;
            }
        }
    }

    /// As [`Sampler::descend`], but links from the record are followed there.
    fn descend_served(
        &self,
        record: &Record<'_>,
        h: usize,
        hop: &mut Hop,
        next: &mut Vec<Root>,
        table: &mut super::dedup::RootTable,
        serve: &mut ServeScratch,
    ) {
        let below = record.hops[h + 1].roots;
        let place = |serve: &mut ServeScratch, q: u32, next: &mut Vec<Root>, table: &mut super::dedup::RootTable| {
            serve.place(1, q, || {
                let [node, time, _] = below[q as usize];
                let (node, before) = halves(node);
                table.insert(NodeId(node), Timestamp(time as i64), next, || Some(before))
            })
        };
        for r in 0..hop.roots.len() {
            let (root, p) = (hop.roots[r], serve.from[0][r]);
            hop.below_root[r] = match p {
                NONE => table.insert(root.node, root.time, next, || root.before),
                p => place(serve, halves(record.hops[h].roots[p as usize][2]).1, next, table),
            };
        }
        for r in 0..hop.roots.len() {
            let (valid, p) = (hop.slots(r), serve.from[0][r]);
            match p {
                NONE => self.descend_slots(hop, r, next, table),
                p => {
                    let first = serve.first_edge[p as usize] as usize;
                    let edges = &record.hops[h].edges[first..first + valid.len()];
                    for (at, edge) in valid.clone().zip(edges) {
                        hop.below_neighbor[at] = place(serve, halves(edge[0]).1, next, table);
                    }
                }
            }
            hop.below_neighbor[valid.end..(r + 1) * hop.fanout].fill(0);
        }
    }
}

impl ServeScratch {
    fn start(&mut self, hop: usize, len: usize) {
        self.placed[hop].clear();
        self.placed[hop].resize(len, NONE);
        self.from[hop].clear();
    }

    /// The place of the record's root or row `p`, found by `insert` the first time.
    #[inline]
    fn place(&mut self, hop: usize, p: u32, insert: impl FnOnce() -> u32) -> u32 {
        let placed = &mut self.placed[hop][p as usize];
        if *placed == NONE {
            *placed = insert();
            let (at, from) = (*placed as usize, &mut self.from[hop]);
            if from.len() <= at {
                from.resize(at + 1, NONE);
            }
            from[at] = p; // where the sampler was to be asked for the same root, the record answers
        }
        *placed
    }

    fn find_first_edges(&mut self, hop: &HopRecord<'_>) {
        self.first_edge.clear();
        let mut at = 0;
        for root in hop.roots {
            self.first_edge.push(at);
            at += halves(root[2]).0;
        }
    }

    fn descend(&mut self) {
        self.placed.swap(0, 1);
        self.from.swap(0, 1);
    }
}

/// Copies what root `p` of the record sees into the slots of root `r`.
fn copy_root(record: &Record<'_>, h: usize, hop: &mut Hop, r: usize, p: u32, serve: &ServeScratch) {
    let count = halves(record.hops[h].roots[p as usize][2]).0 as usize;
    let (first, slots) = (serve.first_edge[p as usize] as usize, r * hop.fanout..(r + 1) * hop.fanout);
    let edges = &record.hops[h].edges[first..first + count];
    hop.count[r] = count as u16;
    hop.roots[r].before = Some(halves(record.hops[h].roots[p as usize][0]).1);
    let columns = (&mut hop.neighbor[slots.clone()], &mut hop.event[slots.clone()], &mut hop.time[slots]);
    let (neighbors, events, times) = columns;
    match record.hops.get(h + 1) {
        Some(below) => {
            for (neighbor, edge) in neighbors.iter_mut().zip(edges) {
                *neighbor = NodeId(halves(below.roots[halves(edge[0]).1 as usize][0]).0);
            }
        }
        None => {
            for (neighbor, edge) in neighbors.iter_mut().zip(edges) {
                *neighbor = record.row(halves(edge[0]).1);
            }
        }
    }
    for ((event, time), edge) in events.iter_mut().zip(times.iter_mut()).zip(edges) {
        (*event, *time) = (EventId(halves(edge[0]).0), Timestamp(edge[1] as i64));
    }
    neighbors[count..].fill(NodeId(0));
    events[count..].fill(EventId(0));
    times[count..].fill(Timestamp(0));
}

/// Numbers the distinct nodes of the deepest hop; a row of the record is looked up once.
fn number_rows(
    record: &Record<'_>,
    h: usize,
    hop: &mut Hop,
    rows: &mut Vec<NodeId>,
    table: &mut super::dedup::NodeTable,
    serve: &mut ServeScratch,
) {
    let (placed, from) = (&mut serve.placed[1], &serve.from[0]);
    for (root, below) in hop.roots.iter().zip(&mut hop.below_root) {
        *below = table.insert(root.node, rows);
    }
    for r in 0..hop.roots.len() {
        let valid = hop.slots(r);
        match from[r] {
            NONE => {
                for at in valid.clone() {
                    hop.below_neighbor[at] = table.insert(hop.neighbor[at], rows);
                }
            }
            p => {
                let first = serve.first_edge[p as usize] as usize;
                let edges = &record.hops[h].edges[first..first + valid.len()];
                let links = &mut hop.below_neighbor[valid.clone()];
                for (link, edge) in links.iter_mut().zip(edges) {
                    let placed = &mut placed[halves(edge[0]).1 as usize];
                    if *placed == NONE {
                        *placed = table.insert(record.row(halves(edge[0]).1), rows);
                    }
                    *link = *placed;
                }
            }
        }
        hop.below_neighbor[valid.end..(r + 1) * hop.fanout].fill(0);
    }
}
