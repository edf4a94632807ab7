//! Identifiers of the event stream: nodes, events and time.
//!
//! Ids are dense: a node is a row of the state tables, an event a row of the stream, ordered by `(t, source row)`.
//! They are plain integers in memory (`repr(transparent)`), so columns can be viewed as ids without a copy.

use bytemuck::{Pod, Zeroable};
use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable, Serialize, Deserialize)]
        #[repr(transparent)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// Dense node id, `0..nodes`: the sources' space, then the destinations' (one space if they share it).
    NodeId(u32)
}
id! {
    /// Dense event id: the rank of the event in `(t, source row)` order.
    EventId(u32)
}
id! {
    /// Time in stream ticks. The tick's length is part of the stream: [`crate::stream::Tick`].
    Timestamp(i64)
}

impl NodeId {
    /// The id as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl EventId {
    /// The id as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
