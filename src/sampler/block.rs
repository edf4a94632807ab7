//! A batch's sample: one [`Hop`] per layer, linked downwards (a message-flow graph, as in TGL and DGL).
//!
//! ```text
//! roots (a,9) (b,9) (a,9)                 logical, with repeats:  root_of = [0, 1, 0]
//! hops[0].roots   (a,9) (b,9)             distinct; each has `fanout` slots, the valid ones first
//!    below_root     |     |
//!    below_neighbor |     |     \ ...
//! hops[1].roots   (a,9) (b,9) (c,4) ...   the hop above's roots in its order, then its new neighbors in slot order
//!    below_*        |     |     |
//! rows              a     b     c         distinct nodes: the rows of node memory that are read
//! ```

use crate::graph::Entry;
use tidemill_data::id::{EventId, NodeId, Timestamp};

/// A node at a time: what is embedded, and what neighbors are sampled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// The node.
    pub node: NodeId,
    /// Only events strictly before this time are visible, in ticks.
    pub time: Timestamp,
    /// How many entries of the node's row are strictly before `time`, if the caller knows (`Tcsr::offset`); else it is searched.
    pub before: Option<u32>,
}

/// The distinct roots of one hop and their sampled neighbors: R roots, K slots each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hop {
    /// K: slots per root.
    pub fanout: usize,
    /// The distinct (node, time), in first-seen order, `[R]`. `before` is known for each.
    pub roots: Vec<Root>,
    /// Valid slots of each root, `[R]`. They are slots `0..count`, from the oldest event to the latest.
    pub count: Vec<u16>,
    /// The neighbor in each slot, `[R * K]`; node 0 where absent.
    pub neighbor: Vec<NodeId>,
    /// The event that each neighbor was reached by, `[R * K]`; event 0 where absent.
    pub event: Vec<EventId>,
    /// That event's time in ticks, `[R * K]`; 0 where absent.
    pub time: Vec<Timestamp>,
    /// Each root one hop below, `[R]`: an index into the next hop's roots, at the deepest hop into [`Sample::rows`].
    pub below_root: Vec<u32>,
    /// Each neighbor one hop below, `[R * K]`: likewise; 0 where absent.
    pub below_neighbor: Vec<u32>,
}

impl Hop {
    /// The valid slots of root `r`, as indices into the `[R * K]` columns.
    #[inline]
    pub fn slots(&self, r: usize) -> std::ops::Range<usize> {
        let first = r * self.fanout;
        first..first + usize::from(self.count[r])
    }

    /// Number of sampled edges: valid slots of all roots.
    pub fn edges(&self) -> usize {
        self.count.iter().map(|&c| usize::from(c)).sum()
    }

    /// Gives every root `fanout` slots. What they held is left for the sampler to overwrite.
    pub(super) fn resize(&mut self, fanout: usize) {
        let (roots, slots) = (self.roots.len(), self.roots.len() * fanout);
        self.fanout = fanout;
        self.count.resize(roots, 0);
        self.neighbor.resize(slots, NodeId(0));
        self.event.resize(slots, EventId(0));
        self.time.resize(slots, Timestamp(0));
        self.below_root.resize(roots, 0);
        self.below_neighbor.resize(slots, 0);
    }
}

/// What a batch of roots reads of the graph. Its buffers are reused from batch to batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// One per layer, the roots' own hop first.
    pub hops: Vec<Hop>,
    /// Where each logical root is among `hops[0].roots`.
    pub root_of: Vec<u32>,
    /// The distinct nodes read, in first-seen order: the deepest hop's roots, then its neighbors, `[N]`.
    pub rows: Vec<NodeId>,
}

impl Sample {
    /// Bytes read and written to make it: one entry of the graph a sampled edge, and all of its own columns.
    pub fn bytes_touched(&self) -> usize {
        let hop = |hop: &Hop| {
            hop.edges() * size_of::<Entry>()
                + size_of_val(&hop.roots[..])
                + size_of_val(&hop.count[..])
                + size_of_val(&hop.neighbor[..])
                + size_of_val(&hop.event[..])
                + size_of_val(&hop.time[..])
                + size_of_val(&hop.below_root[..])
                + size_of_val(&hop.below_neighbor[..])
        };
        self.hops.iter().map(hop).sum::<usize>() + size_of_val(&self.root_of[..]) + size_of_val(&self.rows[..])
    }
}

/// The slots of one root. Until they are filled, the event column carries the strategy's choice: places in the row.
pub(super) struct Slots<'a> {
    pub(super) neighbor: &'a mut [NodeId],
    pub(super) event: &'a mut [EventId],
    pub(super) time: &'a mut [Timestamp],
}

impl Slots<'_> {
    #[inline]
    pub(super) fn put(&mut self, slot: usize, entry: &Entry) {
        (self.neighbor[slot], self.event[slot], self.time[slot]) = (entry.neighbor, entry.event, entry.time);
    }

    /// Marks all slots from `count` on as absent.
    #[inline]
    pub(super) fn clear_from(&mut self, count: usize) {
        self.neighbor[count..].fill(NodeId(0));
        self.event[count..].fill(EventId(0));
        self.time[count..].fill(Timestamp(0));
    }
}

/// Asks for an entry's cache line ahead of its use.
#[inline]
pub(super) fn prefetch(entry: &Entry) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program sees and faults at no address; this one is valid anyway.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(entry).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = entry;
}
