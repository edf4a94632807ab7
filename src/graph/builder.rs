//! Building a [`Tcsr`] in linear time: one stable radix pass by node range, then each range on its own.
//!
//! 1. The stream is cut into pieces of consecutive events, the nodes into at most 1,024 ranges ("buckets") of equal width.
//! 2. Each piece counts, then scatters, two records per event into the buckets: a bucket's records are in stream order.
//! 3. Each bucket counts its rows and fills them. Its rows are contiguous in the output, its counters fit a cache.
//!
//! Pieces and buckets run in parallel, and all they write is disjoint: the result is the same for any number of threads.
//! Scattered writes go through relaxed atomics, which cost what plain stores cost and need no `unsafe`.

use super::{Columns, Entry, Tcsr};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use tidemill_data::id::{EventId, NodeId, Timestamp};

/// Events in a piece.
const PIECE: usize = 1 << 16;
/// There are at most `2^BUCKET_BITS` buckets.
const BUCKET_BITS: u32 = 10;

pub(super) fn build(nodes: u32, columns: &[Columns<'_>], events: &[EventId]) -> Tcsr {
    let total = check(nodes, columns, events);
    let shift = (u32::BITS - nodes.saturating_sub(1).leading_zeros()).saturating_sub(BUCKET_BITS);
    let pieces = cut(columns, events);
    let (records, buckets) = scatter(&pieces, (nodes as usize).div_ceil(1 << shift), shift);
    let indptr = count_rows(nodes as usize, &records, &buckets, shift);
    let offset: Vec<AtomicU32> = (0..2 * total).map(|_| AtomicU32::new(0)).collect();
    let mut entries = vec![Entry::default(); indptr[nodes as usize] as usize];
    let starts = (0..=buckets.len()).map(|b| indptr[(b << shift).min(nodes as usize)] as usize).collect::<Vec<_>>();
    split(&mut entries, &starts).into_par_iter().zip(buckets.par_iter().enumerate()).for_each(|(out, (b, range))| {
        let row_start = &indptr[b << shift..((b + 1) << shift).min(nodes as usize)];
        fill(b << shift, row_start, &records[range.clone()], columns, out, &offset);
    });
    Tcsr {
        indptr,
        entries,
        offset: offset.into_iter().map(AtomicU32::into_inner).collect(),
        descending: descending(total, columns),
    }
}

/// Checks what can be checked in one cheap pass; returns the number of events.
fn check(nodes: u32, columns: &[Columns<'_>], events: &[EventId]) -> usize {
    let (mut next, mut time) = (0, Timestamp(i64::MIN));
    for piece in columns {
        assert_eq!(piece.first.index(), next, "columns must follow each other without gaps");
        assert_eq!(piece.source.len(), piece.destination.len(), "source and destination columns differ in length");
        assert_eq!(piece.source.len(), piece.time.len(), "source and time columns differ in length");
        let ascending = piece.time.is_sorted() && piece.time.first().is_none_or(|&t| time <= t);
        assert!(ascending, "times descend at or after event {next}");
        next += piece.source.len();
        time = piece.time.last().copied().unwrap_or(time);
    }
    assert!(next <= u32::MAX as usize, "event ids are u32");
    assert!(events.is_sorted_by(|a, b| a < b), "edges must ascend in event id");
    assert!(events.last().is_none_or(|e| e.index() < next), "an edge is outside the stream of {next} events");
    let outside = |column: &[NodeId]| column.par_iter().any(|n| n.0 >= nodes);
    assert!(!columns.iter().any(|c| outside(c.source) || outside(c.destination)), "a node is outside 0..{nodes}");
    next
}

/// Consecutive events and those of them that are edges.
struct Piece<'a> {
    columns: Columns<'a>,
    edges: &'a [EventId],
}

fn cut<'a>(columns: &[Columns<'a>], events: &'a [EventId]) -> Vec<Piece<'a>> {
    let mut pieces = Vec::new();
    let mut edges = events;
    for c in columns {
        for at in (0..c.source.len()).step_by(PIECE) {
            let range = at..(at + PIECE).min(c.source.len());
            let end = c.first.0 + range.end as u32;
            let (here, rest) = edges.split_at(edges.partition_point(|e| e.0 < end));
            edges = rest;
            let columns = Columns {
                first: EventId(c.first.0 + at as u32),
                source: &c.source[range.clone()],
                destination: &c.destination[range.clone()],
                time: &c.time[range],
            };
            pieces.push(Piece { columns, edges: here });
        }
    }
    pieces
}

/// One end of one event, as a bucket sees it: node within the bucket (30 bits), event (32), is an edge (1), destination (1).
#[derive(Clone, Copy)]
struct Record(u64);

impl Record {
    fn new(local: u32, event: u32, edge: bool, destination: bool) -> Record {
        Record(u64::from(local) << 34 | u64::from(event) << 2 | u64::from(edge) << 1 | u64::from(destination))
    }
    fn local(self) -> usize {
        (self.0 >> 34) as usize
    }
    fn event(self) -> EventId {
        EventId((self.0 >> 2) as u32)
    }
    fn is_edge(self) -> bool {
        self.0 & 2 != 0
    }
    fn is_destination(self) -> bool {
        self.0 & 1 != 0
    }
}

/// All records, bucket by bucket and in stream order within each; and each bucket's range.
fn scatter(pieces: &[Piece<'_>], buckets: usize, shift: u32) -> (Vec<Record>, Vec<Range<usize>>) {
    let mut place: Vec<Vec<usize>> = pieces.par_iter().map(|p| count_records(&p.columns, buckets, shift)).collect();
    let mut ranges = Vec::with_capacity(buckets);
    let mut total = 0;
    for b in 0..buckets {
        let start = total;
        for counts in &mut place {
            total += std::mem::replace(&mut counts[b], total);
        }
        ranges.push(start..total);
    }
    let records: Vec<AtomicU64> = (0..total).map(|_| AtomicU64::new(0)).collect();
    pieces.par_iter().zip(place).for_each(|(piece, place)| scatter_piece(piece, place, shift, &records));
    (records.into_iter().map(|r| Record(r.into_inner())).collect(), ranges)
}

fn count_records(columns: &Columns<'_>, buckets: usize, shift: u32) -> Vec<usize> {
    let mut counts = vec![0; buckets];
    for node in columns.source.iter().chain(columns.destination) {
        counts[node.index() >> shift] += 1;
    }
    counts
}

fn scatter_piece(piece: &Piece<'_>, mut place: Vec<usize>, shift: u32, records: &[AtomicU64]) {
    let mut edges = piece.edges.iter().peekable();
    let ends = piece.columns.source.iter().zip(piece.columns.destination);
    for (event, (&source, &destination)) in (piece.columns.first.0..).zip(ends) {
        let edge = edges.next_if(|e| e.0 == event).is_some();
        for (node, is_destination) in [(source, false), (destination, true)] {
            let at = &mut place[node.index() >> shift];
            let local = node.0 & ((1 << shift) - 1);
            records[*at].store(Record::new(local, event, edge, is_destination).0, Relaxed);
            *at += 1;
        }
    }
}

/// Where each row starts, `[N + 1]`.
fn count_rows(nodes: usize, records: &[Record], buckets: &[Range<usize>], shift: u32) -> Vec<u64> {
    let mut indptr = vec![0u64; nodes + 1];
    indptr[1..].par_chunks_mut(1 << shift).zip(buckets).for_each(|(degree, range)| {
        for record in &records[range.clone()] {
            degree[record.local()] += u64::from(record.is_edge());
        }
    });
    let mut sum = 0;
    for start in &mut indptr {
        sum += *start;
        *start = sum;
    }
    indptr
}

/// Each bucket's part of the rows; `starts` holds where each begins, and the end.
fn split<'a>(mut entries: &'a mut [Entry], starts: &[usize]) -> Vec<&'a mut [Entry]> {
    let lengths = starts.windows(2).map(|pair| pair[1] - pair[0]);
    lengths.map(|len| entries.split_off_mut(..len).expect("rows cover every bucket")).collect()
}

/// A row being filled.
#[derive(Clone, Copy)]
struct Cursor {
    /// Where the next entry goes, within the bucket.
    next: usize,
    /// Entries of the row before `time`: the offset of every event of that time.
    before: u32,
    /// Time of the node's latest event so far, an edge or not.
    time: Option<Timestamp>,
}

/// Fills the rows of one bucket and the offsets of its records.
fn fill(
    base: usize,
    row_start: &[u64],
    records: &[Record],
    columns: &[Columns<'_>],
    out: &mut [Entry],
    offset: &[AtomicU32],
) {
    let origin = row_start.first().copied().unwrap_or(0);
    let start = |local: usize| (row_start[local] - origin) as usize;
    let mut cursors: Vec<Cursor> =
        (0..row_start.len()).map(|local| Cursor { next: start(local), before: 0, time: None }).collect();
    let mut columns = columns.iter();
    let mut piece = columns.next();
    for &record in records {
        let event = record.event();
        let (here, at) = loop {
            let here = piece.expect("a record's event is in the stream");
            let at = event.index() - here.first.index();
            if at < here.source.len() {
                break (here, at);
            }
            piece = columns.next();
        };
        let (local, time) = (record.local(), here.time[at]);
        let node = NodeId((base + local) as u32);
        let far = if record.is_destination() { here.source[at] } else { here.destination[at] };
        let cursor = &mut cursors[local];
        if cursor.time != Some(time) {
            cursor.time = Some(time);
            cursor.before = (cursor.next - start(local)) as u32;
        }
        let higher = node > far || (node == far && record.is_destination());
        offset[2 * event.index() + usize::from(higher)].store(cursor.before, Relaxed);
        if record.is_edge() {
            out[cursor.next] = Entry { neighbor: far, event, time };
            cursor.next += 1;
        }
    }
}

/// One bit per event: its source has the higher number.
fn descending(total: usize, columns: &[Columns<'_>]) -> Vec<u64> {
    let mut bits = vec![0u64; total.div_ceil(64)];
    for c in columns {
        for (event, (source, destination)) in (c.first.index()..).zip(c.source.iter().zip(c.destination)) {
            bits[event / 64] |= u64::from(source > destination) << (event % 64);
        }
    }
    bits
}
