//! Serving a batch from its record in the sample cache: the known roots' part is copied, the others' is sampled, and both are
//! numbered as the sampler numbers them, first seen, first placed.
//!
//! A root or row of the record is looked up in the sample's tables once and found by its place in the record from then on; that,
//! and reading a batch's edges in one piece, is what a record saves. Where a root behind the known ones is one that the record
//! holds, the record answers for it too.

use super::cache::{HopRecord, Record, half, halves};
use super::dedup::{NodeTable, RootTable};
use super::{Hop, Root, Sample, SampleScratch, Sampler};
use tidemill_data::id::{EventId, NodeId, Timestamp};
use tidemill_data::philox::Key;

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
        table: &mut RootTable,
        serve: &mut ServeScratch,
    ) {
        let below = record.hops[h + 1].roots;
        let place = |serve: &mut ServeScratch, q: u32, next: &mut Vec<Root>, table: &mut RootTable| {
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
    table: &mut NodeTable,
    serve: &mut ServeScratch,
) {
    let (placed, from) = (&mut serve.placed[1], &serve.from[0]);
    for (root, below) in hop.roots.iter().zip(&mut hop.below_root) {
        *below = table.insert(root.node, rows);
    }
    for (r, &p) in from.iter().enumerate() {
        let valid = hop.slots(r);
        match p {
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
