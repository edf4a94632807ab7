//! The temporal graph of a stream as a T-CSR: each node's events in stream order (TGL, arXiv:2203.14883, section 3.1).
//!
//! ```text
//! events  0: a-b t=1   1: a-c t=2   2: b-b t=2        (a self-loop is two entries)
//!
//! indptr  [0,          2,                5,     6]    one row per node, [N + 1]
//! row of  a            b                 c
//! event   [0,   1,     0,   2,   2,      1]           ascending within a row, hence so is the time
//! neighbor[b,   c,     a,   b,   b,      a]
//! time    [1,   2,     1,   2,   2,      2]
//! offset  event 0: (a 0, b 0)  1: (a 1, c 0)  2: (b 1, b 1)
//! ```
//!
//! Invariants:
//! - Rows ascend in event id. Ids rank events by `(t, source row)`, so rows ascend in time too, ties in stream order; "the
//!   entries before t" and "the entries before event e" are both prefixes of a row.
//! - The offset of (event, endpoint) is the number of that endpoint's entries with a time *strictly* before the event's. It is
//!   there for every event of the stream, also for those that are not edges of this graph (masked, or of a later split).
//! - Event ids are those of the full stream, whatever subset the edges are.
//! - What is built does not depend on the number of threads.
//!
//! A training graph holds the training edges, an evaluation graph the whole stream. Without a new-node mask the latter serves
//! both: everything strictly before a training event is a training event.
//!
//! Absent on purpose: edge direction (a neighbor is a neighbor), features (looked up by event id), insertion (the stream is
//! known), and any index of the latest K entries (a prefix's last K *are* the latest K).

mod builder;
#[cfg(test)]
mod tests;

use tidemill_data::id::{EventId, NodeId, Timestamp};
use tidemill_data::stream::EventStream;

pub use tidemill_data::stream::Endpoint;

/// Consecutive events as columns of equal length: what a [`Tcsr`] is built from.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a> {
    /// Id of the first event.
    pub first: EventId,
    /// Sources, by event.
    pub source: &'a [NodeId],
    /// Destinations, by event.
    pub destination: &'a [NodeId],
    /// Times in ticks, never descending.
    pub time: &'a [Timestamp],
}

/// Temporal adjacency in compressed rows.
///
/// Memory: 40.125 bytes per event (two entries of 16 bytes, two offsets of 4, one bit; entries only for the events that are
/// edges) and 8 bytes per node. Building takes another 16 bytes per event while it lasts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tcsr {
    /// Where each node's row starts, `[N + 1]`.
    indptr: Vec<u64>,
    /// All rows, one after the other.
    entries: Vec<Entry>,
    /// Two per event: the offset of its lower-numbered endpoint, then that of the higher-numbered one. So the far end's offset
    /// is found from the two node ids alone, without a look at the stream.
    offset: Vec<u32>,
    /// One bit per event: its source has the higher number.
    descending: Vec<u64>,
}

/// One event, as seen from one of its endpoints. The three are kept together, not as columns: a draw from a long row costs one
/// cache line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct Entry {
    /// The other endpoint.
    pub neighbor: NodeId,
    /// The event.
    pub event: EventId,
    /// The event's time in ticks.
    pub time: Timestamp,
}

impl Tcsr {
    /// Builds the graph whose edges are `events` (ascending ids), over the nodes and event ids of the whole `stream`.
    ///
    /// Linear in the number of events; in parallel on the current rayon pool.
    ///
    /// # Panics
    /// If `events` does not ascend strictly or leaves the stream.
    pub fn build(stream: &EventStream, events: &[EventId]) -> Tcsr {
        let columns: Vec<Columns<'_>> = stream
            .chunks()
            .map(|c| Columns { first: c.first, source: c.source, destination: c.destination, time: c.time })
            .collect();
        builder::build(stream.nodes(), &columns, events)
    }

    /// As [`Tcsr::build`], from columns at hand: pieces of one stream of `nodes` nodes, in order and without gaps from event 0.
    ///
    /// # Panics
    /// If the pieces leave a gap, columns differ in length, times descend, a node is outside `0..nodes`, or as [`Tcsr::build`] does.
    pub fn from_columns(nodes: u32, columns: &[Columns<'_>], events: &[EventId]) -> Tcsr {
        builder::build(nodes, columns, events)
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.indptr.len() - 1
    }

    /// Number of entries: two per edge.
    pub fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Number of events of the stream, edges of this graph or not.
    pub fn events(&self) -> usize {
        self.offset.len() / 2
    }

    /// Bytes held on the heap.
    pub fn heap_bytes(&self) -> usize {
        size_of_val(&self.indptr[..])
            + size_of_val(&self.entries[..])
            + size_of_val(&self.offset[..])
            + size_of_val(&self.descending[..])
    }

    /// Entries in a node's row. A self-loop counts twice.
    #[inline]
    pub fn degree(&self, node: NodeId) -> usize {
        (self.indptr[node.index() + 1] - self.indptr[node.index()]) as usize
    }

    /// A node's entries, ascending in event id.
    #[inline]
    pub fn row(&self, node: NodeId) -> &[Entry] {
        &self.entries[self.indptr[node.index()] as usize..self.indptr[node.index() + 1] as usize]
    }

    /// How many entries in the row of `event`'s `endpoint` have a time strictly before the event's.
    #[inline]
    pub fn offset(&self, event: EventId, endpoint: Endpoint) -> u32 {
        let descending = self.descending[event.index() / 64] >> (event.0 % 64) & 1 == 1;
        let higher = (endpoint == Endpoint::Source) == descending;
        self.offset[2 * event.index() + usize::from(higher)]
    }

    /// The offset of `event`'s endpoint `far`, whose other endpoint is `near`. Equal to [`Tcsr::offset`] and cheaper where both
    /// nodes are known, as for an entry of a row.
    #[inline]
    pub fn far_offset(&self, event: EventId, near: NodeId, far: NodeId) -> u32 {
        self.offset[2 * event.index() + usize::from(far > near)]
    }

    /// How many entries in `node`'s row have a time strictly before `time`, by binary search.
    #[inline]
    pub fn search(&self, node: NodeId, time: Timestamp) -> u32 {
        self.row(node).partition_point(|entry| entry.time < time) as u32
    }
}
