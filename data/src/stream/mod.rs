//! The event stream: one totally ordered list of events `(id, src, dst, t, features[D_e]?, label?)`.
//!
//! Event ids are the dense rank in `(t, source row)` order; equal rows are legal and kept. Columns are Arrow buffers in
//! chunks of a power of two of rows, so lookup by id is a shift and a mask; they are memory-mapped ([`EventStream::open`])
//! or on the heap (from csv), and nobody can tell which. Streams larger than memory work.
//!
//! Invariants, checked when a stream is made or opened: times do not decrease, node ids are below `nodes`, features and
//! labels are as long as the stream, raw ids are ascending within their space.
//!
//! Absent on purpose: appending. A stream is immutable; a change makes another stream that shares the rest.

mod columns;
mod features;
mod hash;
mod ids;
pub(crate) mod ipc;
mod mapping;
mod read;
mod tick;
mod write;

pub(crate) use columns::{Columns, EventColumns, Labels};
pub use ids::{Endpoint, IdMap, IdSpace, RawId};
pub(crate) use ids::{SpaceIds, Strings};
pub(crate) use mapping::Mapping;
pub(crate) use read::FORMAT_KEY;
pub use tick::{Tick, TimeUnit};
pub(crate) use write::temporary;

use crate::error::{Error, Fault, FaultKind, Result};
use crate::id::{EventId, NodeId, Timestamp};
use arrow::buffer::ScalarBuffer;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Rows of a chunk in files this build writes: 2^16.
pub(crate) const CHUNK_SHIFT: u32 = 16;

/// What is known about a stream as a whole; kept in the file's schema metadata.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamMeta {
    /// Name, by default the file's stem.
    pub name: String,
    /// Whether the events were generated rather than observed.
    pub synthetic: bool,
    /// Length of one unit of [`Timestamp`].
    pub tick: Tick,
    /// Whether sources and destinations have id spaces of their own.
    pub bipartite: bool,
    /// Number of nodes N.
    pub nodes: u32,
    /// Start of the destinations' id space; 0 if there is one space.
    pub first_destination: u32,
    /// Number of events E.
    pub events: u64,
    /// Name of the label column in the source file.
    #[serde(default)]
    pub label_column: Option<String>,
    /// Names of the feature columns in the source file; empty if they had none.
    #[serde(default)]
    pub feature_columns: Vec<String>,
}

/// An event stream. Cheap to clone; may be shared between threads.
#[derive(Clone, Debug)]
pub struct EventStream {
    inner: Arc<Inner>,
}

#[derive(Clone, Debug)]
pub(crate) struct Inner {
    meta: StreamMeta,
    shift: u32,
    chunks: Vec<Columns>,
    feature_dim: usize,
    ids: Arc<IdMap>,
    node_features: Option<NodeFeatures>,
    /// Where the features are mapped from, if they are.
    mapping: Option<Mapping>,
    hash: OnceLock<String>,
}

/// Node features `[N, D_v]`, row-major.
#[derive(Clone, Debug)]
pub(crate) struct NodeFeatures {
    pub(crate) rows: ScalarBuffer<f32>,
    pub(crate) dim: usize,
}

/// Consecutive events as slices, at most one chunk of the file.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// Id of the first event.
    pub first: EventId,
    /// Sources.
    pub source: &'a [NodeId],
    /// Destinations.
    pub destination: &'a [NodeId],
    /// Times.
    pub time: &'a [Timestamp],
}

impl EventStream {
    /// Makes a stream from whole columns on the heap.
    ///
    /// # Errors
    /// If there are too many events or nodes. Other broken invariants are bugs of the caller and panic.
    pub(crate) fn from_columns(meta: StreamMeta, ids: IdMap, columns: EventColumns) -> Result<EventStream> {
        let events = columns.time.len();
        if events as u64 >= u64::from(u32::MAX) {
            return Err(Error::TooMany { what: "events", found: events as u64 });
        }
        check_range(columns.time.first().copied(), columns.time.last().copied())?;
        assert_eq!(ids.nodes(), meta.nodes, "the id map names every node");
        assert_eq!((meta.events, columns.row.len()), (events as u64, events), "columns of one length");
        assert!(columns.time.is_sorted(), "events are ordered by time");
        let (feature_dim, mapping) = (columns.feature_dim, columns.mapping.clone());
        let chunks = columns.into_chunks(CHUNK_SHIFT);
        Ok(EventStream::from_inner(Inner {
            meta,
            shift: CHUNK_SHIFT,
            chunks,
            feature_dim,
            ids: Arc::new(ids),
            node_features: None,
            mapping,
            hash: OnceLock::new(),
        }))
    }

    fn from_inner(inner: Inner) -> EventStream {
        EventStream { inner: Arc::new(inner) }
    }

    /// What is known about the stream as a whole.
    pub fn meta(&self) -> &StreamMeta {
        &self.inner.meta
    }

    /// Number of events E.
    pub fn len(&self) -> usize {
        self.inner.meta.events as usize
    }

    /// Whether there are no events.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of nodes N.
    pub fn nodes(&self) -> u32 {
        self.inner.meta.nodes
    }

    /// Length of a tick.
    pub fn tick(&self) -> Tick {
        self.inner.meta.tick
    }

    /// The dense ids of the sources' space; all nodes if there is one space.
    pub fn source_space(&self) -> Range<u32> {
        0..if self.meta().bipartite { self.meta().first_destination } else { self.nodes() }
    }

    /// The dense ids of the destinations' space; all nodes if there is one space.
    pub fn destination_space(&self) -> Range<u32> {
        self.meta().first_destination..self.nodes()
    }

    #[inline]
    fn locate(&self, event: EventId) -> (&Columns, usize) {
        let inner = &*self.inner;
        (&inner.chunks[event.index() >> inner.shift], event.index() & ((1 << inner.shift) - 1))
    }

    /// Source of an event.
    ///
    /// # Panics
    /// Like all lookups by id, if the event is beyond the stream.
    #[inline]
    pub fn source(&self, event: EventId) -> NodeId {
        let (chunk, at) = self.locate(event);
        NodeId(chunk.source[at])
    }

    /// Destination of an event.
    #[inline]
    pub fn destination(&self, event: EventId) -> NodeId {
        let (chunk, at) = self.locate(event);
        NodeId(chunk.destination[at])
    }

    /// Time of an event, in ticks.
    #[inline]
    pub fn time(&self, event: EventId) -> Timestamp {
        let (chunk, at) = self.locate(event);
        Timestamp(chunk.time[at])
    }

    /// The event's data row in the source file, from 0.
    pub fn row(&self, event: EventId) -> u64 {
        let (chunk, at) = self.locate(event);
        chunk.row[at]
    }

    /// Label of an event, if the stream has labels and this event has one.
    pub fn label(&self, event: EventId) -> Option<i8> {
        let (chunk, at) = self.locate(event);
        chunk.labels.as_ref()?.get(at)
    }

    /// Whether the stream has a label column.
    pub fn has_labels(&self) -> bool {
        self.inner.chunks.first().is_some_and(|c| c.labels.is_some())
    }

    /// The integer columns, chunk by chunk, in order.
    pub fn chunks(&self) -> impl Iterator<Item = Chunk<'_>> {
        let shift = self.inner.shift;
        self.inner.chunks.iter().enumerate().map(move |(k, c)| Chunk {
            first: EventId((k << shift) as u32),
            source: bytemuck::cast_slice(&c.source),
            destination: bytemuck::cast_slice(&c.destination),
            time: bytemuck::cast_slice(&c.time),
        })
    }

    /// Number of events at or before `time`. O(log E).
    pub fn count_until(&self, time: Timestamp) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.time(EventId(middle as u32)) <= time {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Dense ids to the user's ids and back.
    pub fn ids(&self) -> &IdMap {
        &self.inner.ids
    }

    /// SHA-256 in hex over columns, features, tick and id map: equal iff the streams' contents are.
    ///
    /// A stream from a file answers with the hash that was written into it; see [`EventStream::verify`].
    pub fn hash(&self) -> String {
        self.inner.hash.get_or_init(|| hash::content_hash(&self.inner)).clone()
    }

    /// Whether the contents have the hash that the file claims. Reads everything; a stream that was not opened claims none.
    pub fn verify(&self) -> bool {
        self.inner.hash.get().is_none_or(|claimed| *claimed == hash::content_hash(&self.inner))
    }

    /// Opens a stream as [`EventStream::open`] and reads all of it, to see that it is what it says.
    ///
    /// # Errors
    /// As [`EventStream::open`]; [`crate::FaultKind::HashMismatch`] if the contents are not those that were written.
    pub fn open_verified(path: &std::path::Path) -> Result<EventStream> {
        let stream = EventStream::open(path)?;
        if stream.verify() { Ok(stream) } else { Err(Fault::of_file(path, FaultKind::HashMismatch).into()) }
    }

    /// The same events under another name.
    #[must_use]
    pub fn with_name(&self, name: impl Into<String>) -> EventStream {
        let mut inner = (*self.inner).clone();
        inner.meta.name = name.into();
        EventStream::from_inner(inner)
    }
}

impl Inner {
    /// Gives back the memory of a chunk's features if they are mapped from a file.
    fn release_features(&self, chunk: &Columns) {
        if let (Some(mapping), Some(features)) = (&self.mapping, &chunk.features) {
            mapping.release(bytemuck::cast_slice(features));
        }
    }
}

/// Refuses times whose differences could overflow.
pub(crate) fn check_range(first: Option<i64>, last: Option<i64>) -> Result<()> {
    const MOST: i64 = 1 << 62;
    match (first, last) {
        (Some(first), Some(last)) if first <= -MOST || last >= MOST => Err(Error::TimeRange { first, last }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
