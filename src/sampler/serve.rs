//! Serving a batch from its record in the sample cache: the known roots' part is copied, the others' is sampled, and both are
//! numbered as the sampler numbers them, first seen, first placed.
//!
//! A root or row of the record is looked up in the sample's tables once and found by its place in the record from then on; that,
//! and reading a batch's edges in one piece, is what a record saves. Where a root behind the known ones is one that the record
//! holds, the record answers for it too.

use super::cache::{HopRecord, Record, halves};
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
        let fanouts = record.hops.iter().map(|hop| hop.fanout);
        let same = record.first_event == first_event && fanouts.eq(self.config.neighbors.iter().copied());
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
                    let p = record.logical[place as usize];
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
                    serve.start(1, record.rows.len());
                    row_table.start(self.graph.nodes(), rows);
                    number_rows(record, h, hop, rows, row_table, serve);
                }
            }
        }
        true
    }

    /// Fills the hop's columns but for the links, run by run: from the record, or by the sampler.
    fn fill(&self, record: &Record<'_>, h: usize, hop: &mut Hop, serve: &ServeScratch, draw: (EventId, Key)) {
        let from = &serve.from[0];
        let mut r = 0;
        while r < from.len() {
            let p = from[r];
            let run = match p {
                NONE => from[r..].iter().take_while(|&&q| q == NONE).count(),
                p => from[r..].iter().zip(p..).take_while(|&(&q, next)| q == next).count(),
            };
            match p {
                NONE => self.select(h as u32, hop, r..r + run, draw.0, draw.1),
                p => copy_run(&record.hops[h], hop, r, p as usize, run),
            }
            r += run;
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
                    let first = p as usize * hop.fanout;
                    for (at, &q) in valid.clone().zip(&record.hops[h].below[first..]) {
                        hop.below_neighbor[at] = place(serve, q, next, table);
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

    fn descend(&mut self) {
        self.placed.swap(0, 1);
        self.from.swap(0, 1);
    }
}

/// Copies what `run` roots of the record from `p` on see into the slots of the roots from `r` on.
fn copy_run(record: &HopRecord<'_>, hop: &mut Hop, r: usize, p: usize, run: usize) {
    let roots = hop.roots[r..r + run].iter_mut().zip(&mut hop.count[r..r + run]);
    for ((root, count), words) in roots.zip(&record.roots[p..]) {
        (root.before, *count) = (Some(halves(words[0]).1), halves(words[2]).0 as u16);
    }
    let k = hop.fanout;
    let (to, from) = (r * k..(r + run) * k, p * k..(p + run) * k);
    hop.neighbor[to.clone()].copy_from_slice(&record.neighbor[from.clone()]);
    hop.event[to.clone()].copy_from_slice(&record.event[from.clone()]);
    hop.time[to].copy_from_slice(&record.time[from]);
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
    let whole = record.hops[h].roots.len();
    if h == 0 && from.len() >= whole && (0..).zip(&from[..whole]).all(|(r, &p)| r == p) {
        // All of the record comes first, in its order: so do its rows.
        placed.iter_mut().zip(record.rows).for_each(|(placed, &node)| *placed = table.insert(NodeId(node), rows));
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
                let first = p as usize * hop.fanout;
                let links = &mut hop.below_neighbor[valid.clone()];
                for (link, &q) in links.iter_mut().zip(&record.hops[h].below[first..]) {
                    let placed = &mut placed[q as usize];
                    if *placed == NONE {
                        *placed = table.insert(NodeId(record.rows[q as usize]), rows);
                    }
                    *link = *placed;
                }
            }
        }
        hop.below_neighbor[valid.end..(r + 1) * hop.fanout].fill(0);
    }
}
