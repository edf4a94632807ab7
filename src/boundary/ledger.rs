//! One rank's books at the border to the others: versions sent and got, replicas that fell behind, drift.

use super::Gate;
use crate::partition::Rank;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Condvar, Mutex, MutexGuard};
use tidemill_data::id::NodeId;

/// Ages from this on are counted together.
const OLDEST: usize = 64;

/// How far copies that were read behind their owners' rows were from these when they were refreshed, and how old.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Drift {
    /// Refreshed copies.
    pub rows: u64,
    /// Sum of `||copy - owner|| / ||owner||`.
    pub sum: f64,
    /// The largest.
    pub max: f64,
    /// Copies by age, in batches since they were first read, or replayed, behind their owner's row; the last entry may hold older ones.
    pub by_age: Vec<u64>,
    /// Copies by drift: below 1e-4, 1e-3, 1e-2, 1e-1, 1, and the rest.
    pub by_drift: [u64; 6],
    /// Part of the sum and of the rows that the other ranks have not been told of.
    untold: (f64, u64),
}

impl Drift {
    /// Notes a refreshed copy.
    pub fn note(&mut self, drift: f64, age: usize) {
        let age = age.min(OLDEST);
        self.rows += 1;
        self.sum += drift;
        self.max = self.max.max(drift);
        if self.by_age.len() <= age {
            self.by_age.resize(age + 1, 0);
        }
        self.by_age[age] += 1;
        let bin = [1e-4, 1e-3, 1e-2, 1e-1, 1.0].iter().take_while(|&&edge| drift >= edge).count();
        self.by_drift[bin] += 1;
        self.untold = (self.untold.0 + drift, self.untold.1 + 1);
    }

    /// Adds another rank's or pass's.
    pub fn add(&mut self, other: &Drift) {
        self.rows += other.rows;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
        self.by_age.resize(self.by_age.len().max(other.by_age.len()), 0);
        self.by_age.iter_mut().zip(&other.by_age).for_each(|(a, b)| *a += b);
        self.by_drift.iter_mut().zip(&other.by_drift).for_each(|(a, b)| *a += b);
    }
}

#[derive(Debug, Default)]
struct Books {
    gate: Option<Gate>,
    closed: bool,
    /// Versions that readers got last of own rows.
    sent: HashMap<(Rank, NodeId), u32>,
    /// Versions of the copies here, by who sent them: a node's next owner does not know what the one before had sent.
    held: HashMap<(Rank, NodeId), u32>,
    /// Replicas that may differ from their owners' rows, and the batch since when.
    behind: BTreeMap<NodeId, u32>,
    drift: Drift,
    /// Copies that were read in an older version since their last refresh, and the batch of the first such read.
    used_old: HashMap<NodeId, u32>,
    /// Rows used in an older version because the gate was closed.
    skipped: u64,
}

impl Books {
    fn note(&mut self, peer: Rank, node: NodeId, version: u32, reading: bool) {
        match reading {
            true => self.held.insert((peer, node), version),
            false => self.sent.insert((peer, node), version),
        };
    }
}

/// A copy that is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outdated {
    /// Whose.
    pub node: NodeId,
    /// Batches since it was first read in an older version than its owner's; `None`: it was not.
    pub age: Option<usize>,
}

/// A pass's books; its stages share them.
#[derive(Debug, Default)]
pub struct Boundary {
    books: Mutex<Books>,
    told: Condvar,
}

impl Boundary {
    /// Books for a pass; without a gate every copy is refreshed as soon as it is needed.
    pub fn new(gate: Option<Gate>) -> Boundary {
        Boundary { books: Mutex::new(Books { gate, ..Books::default() }), told: Condvar::new() }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().expect("no one panics while holding it")
    }

    /// Whether a gate decides.
    pub fn is_gated(&self) -> bool {
        self.books().gate.is_some()
    }

    /// What all ranks know of a batch's gradient once it is exchanged.
    pub fn tell(&self, batch: usize, norm: f64, drift: Option<f64>) {
        if let Some(gate) = &mut self.books().gate {
            gate.tell(batch, norm, drift);
        }
        self.told.notify_all();
    }

    /// The pass is over: whoever waits is let go.
    pub fn close(&self) {
        self.books().closed = true;
        self.told.notify_all();
    }

    /// Whether a batch's copies are refreshed; waits until it is known.
    pub fn refreshes(&self, batch: usize) -> bool {
        let waits = |books: &mut Books| !books.closed && books.gate.as_ref().is_some_and(|gate| !gate.is_ready(batch));
        let mut books = self.told.wait_while(self.books(), waits).expect("no one panics while holding it");
        books.gate.as_mut().is_none_or(|gate| gate.refreshes(batch))
    }

    /// Of the rows on offer those whose reader has an older version. If the copies are refreshed now, the books say so from here
    /// on; else none is named, and those that are read here as they are count as skipped.
    ///
    /// * `reading`: the copies here, of `peer`'s rows; else the copies that `peer` has of own rows.
    pub fn outdated(
        &self,
        peer: Rank,
        rows: &[(NodeId, u32)],
        (reading, refresh, batch): (bool, bool, usize),
    ) -> Vec<Outdated> {
        let mut books = self.books();
        let mut outdated = Vec::new();
        for &(node, version) in rows {
            let held = match reading {
                true => books.held.get(&(peer, node)),
                false => books.sent.get(&(peer, node)),
            };
            if held == Some(&version) {
                continue;
            }
            if refresh {
                books.note(peer, node, version, reading);
                let since = if reading { books.used_old.remove(&node) } else { None };
                outdated.push(Outdated { node, age: since.map(|since| batch - since as usize) });
            } else if reading {
                books.skipped += 1;
                books.used_old.entry(node).or_insert(batch as u32);
            }
        }
        outdated
    }

    /// Notes versions as sent to a reader, or (`reading`) as got from an owner.
    pub fn note_versions(&self, peer: Rank, rows: impl Iterator<Item = (NodeId, u32)>, reading: bool) {
        let mut books = self.books();
        rows.for_each(|(node, version)| books.note(peer, node, version, reading));
    }

    /// Copies that were refreshed: drift and age of each.
    pub fn note_drift(&self, found: impl Iterator<Item = (f64, usize)>) {
        let mut books = self.books();
        found.for_each(|(drift, age)| books.drift.note(drift, age));
    }

    /// A replica fell behind in a batch.
    pub fn fall_behind(&self, node: NodeId, batch: usize) {
        self.books().behind.entry(node).or_insert(batch as u32);
    }

    /// Whether a replica is known to be behind.
    pub fn is_behind(&self, node: NodeId) -> bool {
        self.books().behind.contains_key(&node)
    }

    /// Whether any is.
    pub fn any_behind(&self) -> bool {
        !self.books().behind.is_empty()
    }

    /// The replicas that are behind, and since when; they are corrected now.
    ///
    /// * `wanted`: only these, ascending; the others stay behind until someone wants them.
    pub fn take_behind(&self, wanted: Option<&[NodeId]>) -> BTreeMap<NodeId, u32> {
        let behind = &mut self.books().behind;
        match wanted {
            None => std::mem::take(behind),
            Some(wanted) => wanted.iter().filter_map(|node| behind.remove_entry(node)).collect(),
        }
    }

    /// Drift found since the last call: its sum and the number of rows, for the other ranks.
    pub fn take_untold(&self) -> (f64, u64) {
        std::mem::take(&mut self.books().drift.untold)
    }

    /// What the pass counted: drift, rows used in an older version, batches that found the gate (open, closed), and batches that
    /// refreshed.
    pub fn counted(&self) -> (Drift, u64, (u64, u64), u64) {
        let books = self.books();
        let gate = books.gate.as_ref();
        let counts = gate.map_or((0, 0), Gate::counts);
        (books.drift.clone(), books.skipped, counts, gate.map_or(0, Gate::refreshed))
    }
}
