//! Which copies of others' rows (or features) one rank holds, in which version, and which go when room is short.
//!
//! Owners push without being asked, so owner and reader must agree on what the reader has: every rank plays this same
//! bookkeeping for every rank. Least recently used goes first, ties by key, so that nothing depends on a hash table's order.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

/// What a need finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A copy of the current version.
    Fresh,
    /// A copy that is behind.
    Stale,
    /// No copy.
    Absent,
}

/// The copies of one rank.
#[derive(Clone, Debug)]
pub struct Copies<K> {
    held: HashMap<K, Held>,
    by_use: BTreeSet<(u32, K)>,
    capacity: usize,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    version: u32,
    used: u32,
}

impl<K: Copy + Ord + Hash> Copies<K> {
    /// No copies, and room for `capacity` from one batch to the next.
    pub fn new(capacity: usize) -> Copies<K> {
        Copies { held: HashMap::new(), by_use: BTreeSet::new(), capacity }
    }

    /// What a need of `key` in `version` would find.
    pub fn find(&self, key: K, version: u32) -> Found {
        match self.held.get(&key) {
            None => Found::Absent,
            Some(held) if held.version == version => Found::Fresh,
            Some(_) => Found::Stale,
        }
    }

    /// Batch `now` needs `key` in `version`: what it finds; from here on a copy of that version is held.
    pub fn need(&mut self, key: K, version: u32, now: u32) -> Found {
        let found = self.find(key, version);
        if let Some(old) = self.held.insert(key, Held { version, used: now }) {
            self.by_use.remove(&(old.used, key));
        }
        self.by_use.insert((now, key));
        found
    }

    /// Drops a copy, as when its node becomes the rank's own.
    pub fn forget(&mut self, key: K) {
        if let Some(held) = self.held.remove(&key) {
            self.by_use.remove(&(held.used, key));
        }
    }

    /// Makes room: copies that no batch from `now` on has used go, least recently used first.
    pub fn evict_before(&mut self, now: u32) -> Vec<K> {
        self.evict(|used| used < now)
    }

    /// As [`Copies::evict_before`], those of the batch at hand too: they served it and do not stay.
    pub fn evict_all(&mut self) -> Vec<K> {
        self.evict(|_| true)
    }

    /// Changes the room, from the next eviction on.
    pub fn make_room(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    /// What is held, ascending.
    pub fn keys(&self) -> Vec<K> {
        let mut keys: Vec<K> = self.held.keys().copied().collect();
        keys.sort_unstable();
        keys
    }

    /// Copies held.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether none is held.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    fn evict(&mut self, may_go: impl Fn(u32) -> bool) -> Vec<K> {
        let mut gone = Vec::new();
        while self.held.len() > self.capacity {
            match self.by_use.first() {
                Some(&(used, key)) if may_go(used) => {
                    self.forget(key);
                    gone.push(key);
                }
                _ => break,
            }
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_serves_until_its_owner_writes() {
        let mut copies = Copies::new(8);
        assert_eq!(copies.need(3u32, 1, 0), Found::Absent);
        assert_eq!(copies.need(3, 1, 1), Found::Fresh);
        assert_eq!(copies.find(3, 2), Found::Stale);
        assert_eq!(copies.need(3, 2, 2), Found::Stale);
        assert_eq!((copies.find(3, 2), copies.find(4, 0)), (Found::Fresh, Found::Absent));
        copies.forget(3);
        assert_eq!((copies.find(3, 2), copies.len()), (Found::Absent, 0));
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut copies = Copies::new(2);
        for (key, now) in [(7u32, 0), (5, 0), (9, 1), (7, 2)] {
            copies.need(key, 1, now);
        }
        assert_eq!(copies.evict_before(2), [5], "used longest ago");
        copies.need(1, 1, 3);
        copies.need(2, 1, 3);
        copies.need(8, 1, 3);
        assert_eq!(copies.evict_before(3), [9, 7]);
        assert_eq!(copies.evict_all(), [1], "three of one batch do not fit into two");
        assert_eq!(copies.len(), 2);
    }

    #[test]
    fn without_room_nothing_stays() {
        let mut copies = Copies::new(0);
        copies.need(1u32, 1, 0);
        assert!(copies.evict_before(0).is_empty(), "the batch at hand still needs it");
        assert_eq!((copies.evict_all(), copies.is_empty()), (vec![1], true));
    }
}
