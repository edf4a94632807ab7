//! Ranks as threads of one process: a message is copied onto its receiver's desk by the thread that sends it.
//!
//! Nothing is shared but the desks, so what works here works between processes. Absent on purpose: heartbeats. A thread does
//! not die silently: its communicator tells the others when it is dropped.

use super::clock::Clock;
use super::desk::{Arrived, Desk, Lost};
use super::tag::Key;
use std::sync::Arc;

/// The way from one thread to the others.
pub(super) struct Threads {
    rank: usize,
    desks: Arc<[Arc<Desk>]>,
    /// Whether a sender's buffer is overwritten once it is copied: an alias of it would show.
    poison: bool,
}

/// What a poisoned buffer is full of: as f32 a number of no sense, as f64 another.
const POISON: u8 = 0xa5;

impl Threads {
    /// A desk and the ways to the others, for each rank.
    pub(super) fn connect(world: usize, poison: bool) -> Vec<(Arc<Desk>, Threads)> {
        let clock = Clock::start();
        let desks: Arc<[Arc<Desk>]> = (0..world).map(|rank| Arc::new(Desk::new(rank, world, clock))).collect();
        let way = |rank| (Arc::clone(&desks[rank]), Threads { rank, desks: Arc::clone(&desks), poison });
        (0..world).map(way).collect()
    }

    pub(super) fn post(&self, to: usize, key: Key, sent_ns: u64, mut bytes: Vec<u8>) {
        let copy = bytes.as_slice().to_vec();
        if self.poison {
            bytes.fill(POISON);
            std::hint::black_box(&bytes);
        }
        self.desks[to].put(self.rank, key, Arrived { bytes: copy, sent_ns });
    }

    pub(super) fn depart(&self) {
        for desk in self.desks.iter() {
            desk.depart(self.rank);
        }
    }

    pub(super) fn announce(&self, lost: &Lost) {
        for desk in self.desks.iter() {
            desk.lose(lost.clone());
        }
    }
}
