//! Finding repeats: of (node, time) among roots, of nodes among rows. First seen, first numbered.
//!
//! Both tables number keys in the order in which they first appear, and both are emptied by counting up a stamp rather than by
//! clearing, so that a batch costs what it holds. Keys are compared whole, 32 bits of node and 64 of time: nothing is folded into
//! fewer bits first. Absent on purpose: removal, iteration, threads.

use super::block::Root;
use tidemill_data::id::{NodeId, Timestamp};

/// An open-addressing index, with linear probing, over a list of distinct roots that the caller keeps.
///
/// A cell is a stamp (high word) and a place in the list (low word); the key is read there. At most half of the cells are used.
#[derive(Clone, Debug)]
pub(super) struct RootTable {
    cells: Vec<u64>,
    stamp: u32,
}

impl Default for RootTable {
    fn default() -> RootTable {
        RootTable { cells: vec![0; 1 << 10], stamp: 0 }
    }
}

impl RootTable {
    /// Forgets all keys: the list starts anew.
    pub(super) fn start(&mut self, list: &mut Vec<Root>) {
        list.clear();
        self.next_stamp();
    }

    /// The place of (node, time) in `list`; appended, with what `before` says, if it is new.
    #[inline]
    pub(super) fn insert(
        &mut self,
        node: NodeId,
        time: Timestamp,
        list: &mut Vec<Root>,
        before: impl FnOnce() -> Option<u32>,
    ) -> u32 {
        let mask = self.cells.len() - 1;
        let mut at = hash(node, time) & mask;
        loop {
            let cell = self.cells[at];
            if (cell >> 32) as u32 != self.stamp {
                break;
            }
            let known = &list[cell as u32 as usize];
            if known.node == node && known.time == time {
                return cell as u32;
            }
            at = (at + 1) & mask;
        }
        let place = list.len() as u32;
        self.cells[at] = u64::from(self.stamp) << 32 | u64::from(place);
        list.push(Root { node, time, before: before() });
        if list.len() * 2 > self.cells.len() {
            self.grow(list);
        }
        place
    }

    #[cold]
    fn grow(&mut self, list: &[Root]) {
        let len = self.cells.len() * 2;
        self.cells.clear();
        self.cells.resize(len, 0);
        self.stamp = 1;
        for (place, root) in list.iter().enumerate() {
            let mut at = hash(root.node, root.time) & (len - 1);
            while self.cells[at] != 0 {
                at = (at + 1) & (len - 1);
            }
            self.cells[at] = 1 << 32 | place as u64;
        }
    }

    fn next_stamp(&mut self) {
        self.stamp = self.stamp.wrapping_add(1);
        if self.stamp == 0 {
            self.cells.fill(0);
            self.stamp = 1;
        }
    }
}

/// Spreads a key over all bits: a linear step per word, then MurmurHash3's finalizer.
#[inline]
fn hash(node: NodeId, time: Timestamp) -> usize {
    let mut h = (time.0 as u64)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .wrapping_add(u64::from(node.0).wrapping_mul(0xC2B2_AE3D_27D4_EB4F));
    h ^= h >> 33;
    h = h.wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    (h ^ h >> 33) as usize
}

/// A dense index over a list of distinct nodes that the caller keeps: a cell (stamp, place) per node of the graph.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeTable {
    cells: Vec<u64>,
    stamp: u32,
}

impl NodeTable {
    /// Forgets all nodes: the list starts anew. Nodes are `0..nodes`.
    pub(super) fn start(&mut self, nodes: usize, list: &mut Vec<NodeId>) {
        list.clear();
        self.stamp = self.stamp.wrapping_add(1);
        if self.stamp == 0 {
            self.cells.fill(0);
            self.stamp = 1;
        }
        if self.cells.len() < nodes {
            self.cells.resize(nodes, 0);
        }
    }

    /// The place of `node` in `list`; appended if it is new.
    #[inline]
    pub(super) fn insert(&mut self, node: NodeId, list: &mut Vec<NodeId>) -> u32 {
        let cell = &mut self.cells[node.index()];
        if (*cell >> 32) as u32 != self.stamp {
            *cell = u64::from(self.stamp) << 32 | list.len() as u64;
            list.push(node);
        }
        *cell as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// Places given to `keys` by a table that was used before, and by a map.
    fn places(table: &mut RootTable, keys: &[(u32, i64)]) -> (Vec<u32>, Vec<u32>) {
        let (mut list, mut map) = (Vec::new(), HashMap::new());
        table.start(&mut list);
        let got = keys.iter().map(|&(n, t)| table.insert(NodeId(n), Timestamp(t), &mut list, || None)).collect();
        let want = keys
            .iter()
            .map(|&key| {
                let next = map.len() as u32;
                *map.entry(key).or_insert(next)
            })
            .collect();
        assert_eq!(list.len(), map.len());
        (got, want)
    }

    proptest! {
        #[test]
        fn numbers_roots_as_first_seen(batches in prop::collection::vec(prop::collection::vec((0u32..40, -20i64..20), 0..3000), 1..4)) {
            let mut table = RootTable::default();
            for keys in batches {
                let (got, want) = places(&mut table, &keys);
                prop_assert_eq!(got, want);
            }
        }

        #[test]
        fn numbers_rows_as_first_seen(batches in prop::collection::vec(prop::collection::vec(0u32..50, 0..200), 1..4)) {
            let (mut table, mut list) = (NodeTable::default(), Vec::new());
            for nodes in batches {
                table.start(50, &mut list);
                let mut want: Vec<NodeId> = Vec::new();
                for n in nodes {
                    let n = NodeId(n);
                    if !want.contains(&n) { want.push(n); }
                    let place = table.insert(n, &mut list);
                    prop_assert_eq!(want[place as usize], n);
                }
                prop_assert_eq!(&list, &want);
            }
        }
    }

    /// Keys that differ only in high bits of the time, in its sign, or by moving bits between node and time, are distinct.
    #[test]
    fn no_bit_of_the_key_is_lost() {
        let mut keys = Vec::new();
        for bit in 0..64 {
            keys.extend([(0, 1i64 << bit), (1, 1i64 << bit), (u32::MAX, !(1i64 << bit))]);
        }
        keys.extend((0..32).flat_map(|bit| [(1u32 << bit, 0i64), (1 << bit, -1), (1 << bit, i64::MIN + 5)]));
        let (got, want) = places(&mut RootTable::default(), &keys);
        assert_eq!(got, want);
    }

    /// A stamp that wraps around must not revive keys of 2^32 batches ago.
    #[test]
    fn stamps_wrap() {
        let mut table = RootTable::default();
        places(&mut table, &[(7, 7)]);
        table.stamp = u32::MAX;
        let (got, want) = places(&mut table, &[(8, 8), (7, 7), (8, 8)]);
        assert_eq!((got, table.stamp), (want, 1));
        let (mut rows, mut list) = (NodeTable::default(), Vec::new());
        rows.start(9, &mut list);
        rows.insert(NodeId(7), &mut list);
        rows.stamp = u32::MAX;
        rows.start(9, &mut list);
        assert_eq!([8, 7, 8].map(|n| rows.insert(NodeId(n), &mut list)), [0, 1, 0]);
    }
}
