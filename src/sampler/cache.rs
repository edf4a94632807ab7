//! The sample cache: what a batch's known roots see, sampled once and kept for every later epoch.
//!
//! Under `recent` the sample of a root is a function of the graph, the root and the batch's first event, so the positive roots of
//! a pass (in evaluation its fixed negatives too) see the same in every epoch. A record holds a batch's sample of those roots
//! alone, without repeats:
//!
//! ```text
//! [hops] [roots fanout].. [rows logical first_event]    header: lengths of what follows
//! hop:  (node, before) (time) (count, below) ..           three words a distinct root
//!       neighbors, events, links, times                    its slots by column, as the sample has them
//! rows, place of each logical root
//! ```
//! A batch served from its record equals what the sampler gives, to the bit: places are numbered anew as first seen, since the
//! other roots of the batch come in between. Any subset of the known roots can be asked for.
//!
//! Records beyond [`HEAP_BYTES`] lie in an unnamed mapped file, whose pages the kernel may drop; records that do not fit into the
//! bound are not kept, and their batches are sampled. Deliberately absent: eviction (a pass reads all its batches in turn).

use super::{Root, Sample, SampleScratch, Sampler, Strategy};
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

pub(super) fn halves(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

/// A list of half words, two to a word.
fn packed(list: impl Iterator<Item = u32>, words: &mut Vec<u64>) {
    let mut list: Vec<u32> = list.collect();
    list.resize(list.len().next_multiple_of(2), 0);
    words.extend(list.chunks_exact(2).map(|two| bytemuck::cast::<[u32; 2], u64>([two[0], two[1]])));
}

fn encode(sample: &Sample, first_event: EventId) -> Box<[u64]> {
    let mut words = vec![sample.hops.len() as u64];
    for hop in &sample.hops {
        words.extend([hop.roots.len() as u64, hop.fanout as u64]);
    }
    words.extend([sample.rows.len() as u64, sample.root_of.len() as u64, u64::from(first_event.0)]);
    for hop in &sample.hops {
        for ((root, &count), &below) in hop.roots.iter().zip(&hop.count).zip(&hop.below_root) {
            let before = root.before.expect("the sampler has found it");
            words.extend([pair(root.node.0, before), root.time.0 as u64, pair(u32::from(count), below)]);
        }
        packed(hop.neighbor.iter().map(|node| node.0), &mut words);
        packed(hop.event.iter().map(|event| event.0), &mut words);
        packed(hop.below_neighbor.iter().copied(), &mut words);
        words.extend(hop.time.iter().map(|time| time.0 as u64));
    }
    packed(sample.rows.iter().map(|node| node.0), &mut words);
    packed(sample.root_of.iter().copied(), &mut words);
    words.into_boxed_slice()
}

/// A batch's record, looked at.
pub(super) struct Record<'a> {
    pub(super) hops: smallvec::SmallVec<[HopRecord<'a>; 3]>,
    pub(super) rows: &'a [u32],
    pub(super) logical: &'a [u32],
    pub(super) first_event: EventId,
}

/// A hop of a record: words as the module tells.
#[derive(Clone, Copy)]
pub(super) struct HopRecord<'a> {
    pub(super) roots: &'a [[u64; 3]],
    pub(super) fanout: usize,
    pub(super) neighbor: &'a [NodeId],
    pub(super) event: &'a [EventId],
    pub(super) below: &'a [u32],
    pub(super) time: &'a [Timestamp],
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
        let hop = |lengths: &[u64]| {
            let (roots, fanout) = (lengths[0] as usize, lengths[1] as usize);
            let slots = roots * fanout;
            let halves = slots.div_ceil(2);
            HopRecord {
                roots: bytemuck::cast_slice(take(3 * roots)),
                fanout,
                neighbor: &bytemuck::cast_slice(take(halves))[..slots],
                event: &bytemuck::cast_slice(take(halves))[..slots],
                below: &bytemuck::cast_slice(take(halves))[..slots],
                time: bytemuck::cast_slice(take(slots)),
            }
        };
        let hops = header[..2 * hops].chunks_exact(2).map(hop).collect();
        let [row_count, logical_count] = [header[header.len() - 3], header[header.len() - 2]].map(|n| n as usize);
        let (rows, logical) = rest.split_at(row_count.div_ceil(2));
        let list = |words, count| &bytemuck::cast_slice::<u64, u32>(words)[..count];
        let (rows, logical) = (list(rows, row_count), list(logical, logical_count));
        let first_event = EventId(header[header.len() - 1] as u32);
        Record { hops, rows, logical, first_event }
    }

    /// Whether logical root `place` of the record is `root`.
    pub(super) fn is(&self, place: u32, root: &Root) -> bool {
        self.logical.get(place as usize).is_some_and(|&at| {
            let [node, time, _] = self.hops[0].roots[at as usize];
            halves(node).0 == root.node.0 && time as i64 == root.time.0
        })
    }
}
