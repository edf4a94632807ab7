//! Edge features within reach of a rank: its own events' from the mapped file, other ranks' from messages.
//!
//! An event's features belong to the owners of its two endpoints. A rank that samples an edge between two others' nodes gets
//! its features once and keeps them while there is room; a copied row brings those of its pending mails along. Those of mails are
//! kept in one place for the stage that reads copies and the stage that replays their mails.
//!
//! Invariant: on one of several ranks the file is read for own events alone; anything else is a fault of the plan.

use crate::partition::{PartitionTable, Rank};
use dashmap::DashMap;
use std::collections::HashMap;
use std::sync::Arc;
use tidemill_data::id::{EventId, NodeId};
use tidemill_data::stream::EventStream;

/// A rank's edge features.
pub struct Features {
    stream: EventStream,
    own: Option<(Rank, Arc<PartitionTable>)>,
    sampled: HashMap<EventId, Box<[f32]>>,
    mailed: Arc<DashMap<NodeId, Vec<f32>>>,
}

impl Features {
    /// Those of a stream, all of them within reach until [`Features::restrict`].
    pub fn new(stream: EventStream) -> Features {
        Features { stream, own: None, sampled: HashMap::new(), mailed: Arc::new(DashMap::new()) }
    }

    /// All of the stream's, and what `other` keeps of mails.
    pub fn beside(other: &Features) -> Features {
        Features { mailed: other.mailed.clone(), ..Features::new(other.stream.clone()) }
    }

    /// D_e.
    pub fn dim(&self) -> usize {
        self.stream.feature_dim()
    }

    /// From now on this rank's own events are those with an endpoint that it owns.
    pub fn restrict(&mut self, me: Rank, table: Arc<PartitionTable>) {
        self.own = Some((me, table));
    }

    /// Drops all copies.
    pub fn clear(&mut self) {
        self.sampled.clear();
        self.mailed.clear();
    }

    /// Features of sampled edges, `[E, D_e]` into `out`; slots without an edge hold event 0 and may get anything.
    pub fn gather(&self, events: &[EventId], valid: impl Fn(usize) -> bool, out: &mut [f32]) {
        if self.own.is_none() {
            return self.stream.gather_features(events, out);
        }
        for ((i, &event), row) in events.iter().enumerate().zip(out.chunks_exact_mut(self.dim())) {
            match self.sampled.get(&event) {
                _ if !valid(i) => row.fill(0.0),
                Some(copy) => row.copy_from_slice(copy),
                None => row.copy_from_slice(self.own_event(event)),
            }
        }
    }

    /// Features of a node's pending mails, `[Q, D_e]`, event after event.
    pub fn of_mails(&self, node: NodeId, events: impl ExactSizeIterator<Item = EventId>, out: &mut Vec<f32>) {
        match self.mailed.get(&node) {
            _ if self.dim() == 0 => {}
            Some(copy) => out.extend_from_slice(&copy[..events.len() * self.dim()]),
            None => events.for_each(|event| out.extend_from_slice(self.own_event(event))),
        }
    }

    /// Features of events that are within reach, `[E, D_e]`.
    pub fn of_events(&self, events: impl Iterator<Item = EventId>) -> Vec<f32> {
        let mut rows = Vec::new();
        for event in events {
            match self.sampled.get(&event) {
                Some(copy) => rows.extend_from_slice(copy),
                None => rows.extend_from_slice(self.own_event(event)),
            }
        }
        rows
    }

    /// Features of own events, `[E, D_e]`, to be sent.
    pub fn to_send(&self, events: &[EventId]) -> Vec<f32> {
        events.iter().flat_map(|&event| self.own_event(event)).copied().collect()
    }

    /// Keeps features that a peer sent.
    ///
    /// * `rows`: `[E, D_e]`.
    pub fn keep(&mut self, events: &[EventId], rows: &[f32]) {
        let rows = rows.chunks_exact(self.dim()).map(Box::from);
        self.sampled.extend(events.iter().copied().zip(rows));
    }

    /// Drops copies.
    pub fn forget(&mut self, events: &[EventId]) {
        events.iter().for_each(|event| drop(self.sampled.remove(event)));
    }

    /// Keeps the features of copied rows' mails.
    ///
    /// * `counts`: mails of each node. * `rows`: `[Q, D_e]`.
    pub fn keep_mailed(&self, nodes: &[NodeId], counts: &[u32], rows: &[f32]) {
        let mut at = 0;
        for (&node, &count) in nodes.iter().zip(counts) {
            let end = at + count as usize * self.dim();
            self.mailed.insert(node, rows[at..end].to_vec());
            at = end;
        }
    }

    /// Drops those of rows that are no longer copies, or no longer here.
    pub fn forget_mailed(&self, nodes: &[NodeId]) {
        nodes.iter().for_each(|node| drop(self.mailed.remove(node)));
    }

    /// Bytes of copies.
    pub fn copied_bytes(&self) -> usize {
        4 * (self.sampled.len() * self.dim() + self.mailed.iter().map(|mailed| mailed.len()).sum::<usize>())
    }

    fn own_event(&self, event: EventId) -> &[f32] {
        if let Some((me, table)) = &self.own {
            let ends = [self.stream.source(event), self.stream.destination(event)];
            assert!(ends.iter().any(|&node| table.owner(node) == *me), "features of event {} were not sent", event.0);
        }
        self.stream.features(event)
    }
}
