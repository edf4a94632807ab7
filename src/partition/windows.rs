//! How a pass is cut into windows: runs of whole batches.

use std::ops::Range;

/// The windows of a pass: all of one length, but for the last.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    events: usize,
    batch_size: usize,
    /// Batches of a window.
    batches: usize,
}

impl Windows {
    /// Windows of `window_events` events, rounded up to whole batches and at least one.
    pub(super) fn new(events: usize, batch_size: usize, window_events: usize) -> Windows {
        assert!(batch_size > 0, "a batch needs at least one event");
        Windows { events, batch_size, batches: window_events.div_ceil(batch_size).max(1) }
    }

    pub(super) fn batch_size(&self) -> usize {
        self.batch_size
    }

    fn batch_count(&self) -> usize {
        self.events.div_ceil(self.batch_size)
    }

    pub(super) fn count(&self) -> usize {
        self.batch_count().div_ceil(self.batches)
    }

    pub(super) fn of_batch(&self, batch: usize) -> usize {
        debug_assert!(batch < self.batch_count(), "batch {batch} of {}", self.batch_count());
        batch / self.batches
    }

    pub(super) fn first_batch(&self, window: usize) -> usize {
        (window.saturating_mul(self.batches)).min(self.batch_count())
    }

    /// Positions of a window's events in the pass.
    pub(super) fn positions(&self, window: usize) -> Range<usize> {
        let at = |window| (self.first_batch(window) * self.batch_size).min(self.events);
        at(window)..at(window + 1)
    }
}
