//! The latest K of a root's visible entries (TGN, arXiv:2006.10637, section 4.2), oldest first.
//!
//! What is visible is a prefix of the row, so the sample is that prefix's tail: nothing is filtered after it was chosen, and a
//! root with at least K visible entries always gets K.

use super::block::Slots;
use crate::graph::Entry;

/// Fills the first slots with the last of the `visible` entries; returns how many.
#[inline]
pub(super) fn fill(visible: &[Entry], slots: &mut Slots<'_>) -> usize {
    let count = visible.len().min(slots.len());
    for (slot, entry) in visible[visible.len() - count..].iter().enumerate() {
        slots.put(slot, entry);
    }
    count
}
