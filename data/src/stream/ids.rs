//! Dense node ids and the ids that users know.
//!
//! Dense ids are the sources' space, then the destinations' (one space if they share it), each sorted by raw value:
//! integers by number, strings by bytes. So a raw id is found by binary search, and the map may lie in a mapped file.

use crate::id::NodeId;
use arrow::buffer::{Buffer, ScalarBuffer};
use serde::{Deserialize, Serialize};
use std::fmt;

/// An id as the user wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RawId<'a> {
    /// An integer id.
    Integer(i64),
    /// Any other id.
    Text(&'a str),
}

impl fmt::Display for RawId<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RawId::Integer(i) => i.fmt(f),
            RawId::Text(s) => s.fmt(f),
        }
    }
}

/// An end of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Endpoint {
    /// The event's source.
    Source,
    /// The event's destination.
    Destination,
}

/// The id space of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IdSpace {
    /// The sources' own space.
    Source,
    /// The destinations' own space.
    Destination,
    /// One space for both.
    Shared,
}

/// Raw ids of one space, strictly ascending.
#[derive(Clone, Debug)]
pub(crate) enum SpaceIds {
    Integers(ScalarBuffer<i64>),
    Texts(Strings),
}

/// Strings end to end: entry `i` is `bytes[offsets[i]..offsets[i + 1]]`, valid UTF-8.
#[derive(Clone, Debug)]
pub(crate) struct Strings {
    pub(crate) offsets: ScalarBuffer<i64>,
    pub(crate) bytes: Buffer,
}

impl Strings {
    pub(crate) fn new<'a>(texts: impl IntoIterator<Item = &'a str>) -> Strings {
        let (mut offsets, mut bytes) = (vec![0i64], Vec::new());
        for text in texts {
            bytes.extend_from_slice(text.as_bytes());
            offsets.push(bytes.len() as i64);
        }
        Strings { offsets: offsets.into(), bytes: Buffer::from_vec(bytes) }
    }

    pub(crate) fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    pub(crate) fn get(&self, at: usize) -> &str {
        let bytes = &self.bytes[self.offsets[at] as usize..self.offsets[at + 1] as usize];
        std::str::from_utf8(bytes).expect("checked when the map was made")
    }
}

impl SpaceIds {
    pub(crate) fn len(&self) -> usize {
        match self {
            SpaceIds::Integers(ids) => ids.len(),
            SpaceIds::Texts(ids) => ids.len(),
        }
    }

    pub(crate) fn get(&self, at: usize) -> RawId<'_> {
        match self {
            SpaceIds::Integers(ids) => RawId::Integer(ids[at]),
            SpaceIds::Texts(ids) => RawId::Text(ids.get(at)),
        }
    }

    /// Whether the ids ascend strictly, which lookups rely on.
    pub(crate) fn is_ascending(&self) -> bool {
        (1..self.len()).all(|i| self.get(i - 1) < self.get(i))
    }

    fn find(&self, text: &str) -> Option<usize> {
        let wanted = match self {
            SpaceIds::Integers(_) => RawId::Integer(text.trim().parse().ok()?),
            SpaceIds::Texts(_) => RawId::Text(text),
        };
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.get(middle).cmp(&wanted) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Some(middle),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }
}

/// The map between dense node ids and raw ids.
#[derive(Clone, Debug)]
pub struct IdMap {
    pub(crate) source: SpaceIds,
    pub(crate) destination: Option<SpaceIds>,
}

impl IdMap {
    /// Number of nodes N.
    pub fn nodes(&self) -> u32 {
        (self.source.len() + self.destination.as_ref().map_or(0, SpaceIds::len)) as u32
    }

    /// Start of the destinations' space; 0 if there is one space.
    pub fn first_destination(&self) -> u32 {
        if self.destination.is_some() { self.source.len() as u32 } else { 0 }
    }

    /// The id space of a node.
    pub fn space(&self, node: NodeId) -> IdSpace {
        match &self.destination {
            None => IdSpace::Shared,
            Some(_) if node.index() < self.source.len() => IdSpace::Source,
            Some(_) => IdSpace::Destination,
        }
    }

    /// The id that the user knows a node by.
    ///
    /// # Panics
    /// If the node is beyond the stream.
    pub fn raw(&self, node: NodeId) -> RawId<'_> {
        match &self.destination {
            Some(destination) if node.index() >= self.source.len() => destination.get(node.index() - self.source.len()),
            _ => self.source.get(node.index()),
        }
    }

    /// The node that a user's id names at one end of an event.
    pub fn find(&self, end: Endpoint, raw: &str) -> Option<NodeId> {
        let at = match (&self.destination, end) {
            (Some(destination), Endpoint::Destination) => destination.find(raw)? + self.source.len(),
            _ => self.source.find(raw)?,
        };
        Some(NodeId(at as u32))
    }

    /// The node of an entry in a list of ids: `ID`, `src:ID`, `dst:ID` or `dense:NUMBER`. A bare id must be in one
    /// space only.
    ///
    /// # Errors
    /// Why the entry names no node, with the mend.
    pub fn find_entry(&self, entry: &str) -> std::result::Result<NodeId, String> {
        let entry = entry.trim();
        let absent = || format!("`{entry}` is no node of the stream");
        if let Some(number) = entry.strip_prefix("dense:") {
            let dense: u32 = number.parse().map_err(|_| absent())?;
            return if dense < self.nodes() { Ok(NodeId(dense)) } else { Err(absent()) };
        }
        let (source, destination) = (self.find(Endpoint::Source, entry), self.find(Endpoint::Destination, entry));
        match (source, destination) {
            (Some(a), Some(b)) if a != b => {
                Err(format!("`{entry}` is both a source and a destination; write src:{entry} or dst:{entry}"))
            }
            (Some(node), _) | (None, Some(node)) => Ok(node),
            (None, None) => self.find_prefixed(entry).ok_or_else(absent),
        }
    }

    fn find_prefixed(&self, entry: &str) -> Option<NodeId> {
        match entry.split_once(':')? {
            ("src", raw) => self.find(Endpoint::Source, raw),
            ("dst", raw) => self.find(Endpoint::Destination, raw),
            _ => None,
        }
    }
}
