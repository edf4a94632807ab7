//! How long a queue between two stages may be: a controller that is shown readings and answers with a length and the reason.
//!
//! MQ-GNN (arXiv:2601.04707) sizes its queues by memory and by how busy the workers are; here, at each look:
//! 1. *Short of memory*: a place has less left than its reserve. The queue gives up what makes up for it, a quarter at least.
//! 2. *No room*: were the queue full, a place would have less left than its reserve. The queue gives up what does not fit.
//! 3. *Idle*: the consumer waited for items. The queue doubles, as far as twice the reserve stays.
//!
//! Growing needs twice what shrinking does, so a queue never grows into what makes it shrink. After a shrink it does not grow
//! for a number of looks, which doubles each time that growing turned out wrong: a load that comes and goes is met by ever fewer
//! changes. All within `[min, max]`. Deliberately absent: clocks, files, the queue itself; results of a run never depend on what
//! is decided here.

use crate::device::memory::Space;
use std::fmt;

/// The lengths that a queue may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Least items, at least 1.
    pub min: usize,
    /// Most items.
    pub max: usize,
}

/// What is seen at one look.
#[derive(Clone, Copy, Debug)]
pub struct Reading<'a> {
    /// What an item takes, in bytes.
    pub item_bytes: u64,
    /// Items in the queue now; their memory is in use already.
    pub held: usize,
    /// Where items take their memory from.
    pub spaces: &'a [Space],
    /// Queues like this one, of other ranks, that take from the same places; this one included.
    pub sharers: u64,
    /// Share of the time since the last look that the consumer waited for an item, 0 to 1.
    pub consumer_idle: f64,
}

/// A new length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resize {
    /// Items before.
    pub from: usize,
    /// Items from now on.
    pub to: usize,
    /// Why.
    pub reason: Reason,
}

/// Why a queue has another length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// A place has less left than its reserve.
    ShortOfMemory(Space),
    /// A full queue would leave a place less than its reserve.
    NoRoom(Space),
    /// The consumer waited this share of the time, and there is room.
    Idle(f64),
}

impl Reason {
    /// In one word, for logs.
    pub fn name(&self) -> &'static str {
        match self {
            Reason::ShortOfMemory(_) => "short_of_memory",
            Reason::NoRoom(_) => "no_room",
            Reason::Idle(_) => "idle",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        match self {
            Reason::ShortOfMemory(space) | Reason::NoRoom(space) => {
                let (name, free, limit) = (space.place.name(), mib(space.free_bytes), mib(space.limit_bytes));
                let reserve = mib(reserve(space));
                let would =
                    if matches!(self, Reason::NoRoom(_)) { "; full, the queue would leave" } else { ", which is" };
                write!(f, "{name} has {free:.0} of {limit:.0} MiB left{would} less than the {reserve:.0} kept free")
            }
            Reason::Idle(share) => {
                write!(f, "the consumer waited {:.0} % of the time and there is room", 100.0 * share)
            }
        }
    }
}

/// Items of a queue that nothing is known of yet: enough for stages of about equal pace.
const START: usize = 4;

/// Least share of the time that a consumer waits before its queue grows.
const IDLE: f64 = 0.05;

/// Looks without growth after a first shrink, and at most.
const HOLD: (u32, u32) = (4, 256);

/// What is kept free: a tenth, a GiB at most.
fn reserve(space: &Space) -> u64 {
    (space.limit_bytes / 10).min(1 << 30)
}

/// The length of one queue.
#[derive(Clone, Debug, PartialEq)]
pub struct LengthController {
    bounds: Bounds,
    length: usize,
    /// Looks until it may grow.
    rest: u32,
    /// `rest` after the next shrink.
    hold: u32,
    /// It grew since it last shrank.
    grew: bool,
}

impl LengthController {
    /// A controller that starts with a short queue.
    pub fn new(bounds: Bounds) -> LengthController {
        LengthController::at(bounds, START)
    }

    /// A controller that starts with `length` items, as far as the bounds allow.
    pub fn at(bounds: Bounds, length: usize) -> LengthController {
        let bounds = Bounds { min: bounds.min.max(1), max: bounds.max.max(bounds.min).max(1) };
        LengthController { bounds, length: length.clamp(bounds.min, bounds.max), rest: 0, hold: HOLD.0, grew: false }
    }

    /// Goes on with the length of an earlier run, as far as the bounds allow.
    pub fn restart_at(&mut self, length: usize) {
        *self = LengthController::at(self.bounds, length);
    }

    /// The length in force.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Whether a look at this reading shortens the queue.
    pub fn would_shrink(&self, reading: &Reading<'_>) -> bool {
        self.shrunk(reading).is_some()
    }

    /// One look; the new length, if there is one.
    pub fn look(&mut self, reading: &Reading<'_>) -> Option<Resize> {
        let from = self.length;
        if let Some((to, reason)) = self.shrunk(reading) {
            if std::mem::take(&mut self.grew) {
                self.hold = (2 * self.hold).min(HOLD.1);
            }
            (self.length, self.rest) = (to, self.hold);
            return Some(Resize { from, to, reason });
        }
        if self.rest > 0 {
            self.rest -= 1;
            return None;
        }
        let to = self.grown(reading)?;
        (self.length, self.rest, self.grew) = (to, 1, true); // the next look still sees the idle time from before
        Some(Resize { from, to, reason: Reason::Idle(reading.consumer_idle) })
    }

    fn shrunk(&self, reading: &Reading<'_>) -> Option<(usize, Reason)> {
        let short = |space: &&Space| reserve(space).saturating_sub(space.free_bytes);
        if self.length == self.bounds.min {
            return None;
        }
        if let Some(space) = reading.spaces.iter().filter(|space| short(space) > 0).max_by_key(short) {
            let lacking = usize::try_from(short(&space) / reading.item_bytes.max(1)).unwrap_or(usize::MAX);
            let less = lacking.saturating_add(1).max(self.length.div_ceil(4));
            let to = self.length.saturating_sub(less).max(self.bounds.min);
            return Some((to, Reason::ShortOfMemory(*space)));
        }
        let (fit, space) = reading.fitting(1)?;
        let to = fit.max(self.bounds.min);
        (to < self.length).then_some((to, Reason::NoRoom(space)))
    }

    fn grown(&self, reading: &Reading<'_>) -> Option<usize> {
        let room = reading.spaces.iter().all(|space| space.free_bytes >= 2 * reserve(space));
        let most = reading.fitting(2).map_or(usize::MAX, |(fit, _)| fit);
        let to = (2 * self.length).min(self.bounds.max).min(most);
        (room && reading.consumer_idle >= IDLE && to > self.length).then_some(to)
    }
}

impl Reading<'_> {
    /// Most items for which every place keeps `reserves` of its reserve, and the place that says so.
    fn fitting(&self, reserves: u64) -> Option<(usize, Space)> {
        let more = |space: &Space| {
            let free = space.free_bytes.saturating_sub(reserves * reserve(space));
            usize::try_from(free / (self.item_bytes.max(1) * self.sharers.max(1))).unwrap_or(usize::MAX)
        };
        let tightest = self.spaces.iter().min_by_key(|space| more(space))?;
        Some((self.held.saturating_add(more(tightest)), *tightest))
    }
}

#[cfg(test)]
mod tests;
