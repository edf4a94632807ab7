//! The latest K of a root's visible entries (TGN, arXiv:2006.10637, section 4.2), oldest first.
//!
//! What is visible is a prefix of the row, so the sample is that prefix's tail: nothing is filtered after it was chosen, and a
//! root with at least K visible entries always gets K.

use super::block::{Slots, prefetch};
use crate::graph::Entry;
use tidemill_data::id::EventId;

/// Entries in a cache line.
const LINE: usize = 64 / size_of::<Entry>();

/// Writes the place of the first entry to take into `places[0]`; returns how many are taken, the last of `visible`.
#[inline]
pub(super) fn choose(visible: &[Entry], places: &mut [EventId]) -> usize {
    let count = visible.len().min(places.len());
    let first = visible.len() - count;
    places[0] = EventId(first as u32);
    visible[first..].iter().step_by(LINE).chain(visible.last()).for_each(prefetch);
    count
}

/// Fills the first `count` slots as chosen, and clears the others.
#[inline]
pub(super) fn take(row: &[Entry], count: usize, mut slots: Slots<'_>) {
    let first = slots.event[0].index();
    for (slot, entry) in row[first..first + count].iter().enumerate() {
        slots.put(slot, entry);
    }
    slots.clear_from(count);
}
