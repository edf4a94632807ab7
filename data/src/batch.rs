//! Batches of a split: batch k is its B consecutive events.
//!
//! For training the events are those left after the new-node mask (`Split::train`). B is global: all ranks share a batch.
//! The last batch may be short; none is dropped.

use crate::id::EventId;
use std::ops::Range;
use std::sync::Arc;

/// One batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch<'a> {
    /// Its number within the split, from 0.
    pub index: u32,
    /// Its events, ascending; never empty.
    pub events: &'a [EventId],
}

impl Batch<'_> {
    /// The first event: what `same_batch = hidden` compares with.
    pub fn first(&self) -> EventId {
        self.events[0]
    }
}

/// The batches of a split. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Batches {
    events: Arc<[EventId]>,
    size: usize,
}

impl Batches {
    /// Batches of `size` events.
    ///
    /// # Panics
    /// If `size` is 0.
    pub fn new(events: Arc<[EventId]>, size: usize) -> Batches {
        assert!(size > 0, "a batch needs at least one event");
        Batches { events, size }
    }

    /// Batches of the consecutive events of a split, as `Split::val`.
    pub fn of_range(events: Range<u32>, size: usize) -> Batches {
        Batches::new(events.map(EventId).collect(), size)
    }

    /// Number of batches.
    pub fn len(&self) -> usize {
        self.events.len().div_ceil(self.size)
    }

    /// Whether there is no batch.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Events in a full batch.
    pub fn size(&self) -> usize {
        self.size
    }

    /// All events, in order.
    pub fn events(&self) -> &Arc<[EventId]> {
        &self.events
    }

    /// Where batch `index` lies within [`Batches::events`].
    pub fn range(&self, index: usize) -> Range<usize> {
        let start = (index * self.size).min(self.events.len());
        start..(start + self.size).min(self.events.len())
    }

    /// Batch `index`, if there is one.
    pub fn get(&self, index: usize) -> Option<Batch<'_>> {
        let events = &self.events[self.range(index)];
        (!events.is_empty()).then_some(Batch { index: index as u32, events })
    }

    /// All batches in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Batch<'_>> {
        self.events.chunks(self.size).enumerate().map(|(k, events)| Batch { index: k as u32, events })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_is_in_one_batch() {
        for (events, size, last) in [(10, 3, 1), (9, 3, 3), (2, 5, 2), (1, 1, 1)] {
            let batches = Batches::of_range(5..5 + events, size);
            let seen: Vec<u32> = batches.iter().flat_map(|b| b.events.iter().map(|e| e.0)).collect();
            assert_eq!(seen, (5..5 + events).collect::<Vec<_>>());
            let end = batches.iter().last().unwrap();
            assert_eq!((end.events.len(), batches.get(batches.len() - 1)), (last, Some(end)));
            assert_eq!(batches.get(batches.len()), None);
            assert_eq!(batches.get(0).unwrap().first(), EventId(5));
        }
        assert!(Batches::of_range(3..3, 4).is_empty());
    }
}
