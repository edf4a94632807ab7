//! A set of dense node ids, one bit a node.

use crate::id::NodeId;

/// A set of nodes among `0..nodes`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSet {
    words: Vec<u64>,
    len: usize,
}

impl NodeSet {
    /// The empty set over `nodes` nodes.
    pub fn new(nodes: u32) -> NodeSet {
        NodeSet { words: vec![0; (nodes as usize).div_ceil(64)], len: 0 }
    }

    /// Adds a node; true if it was absent.
    ///
    /// # Panics
    /// If the node is beyond the set's range.
    pub fn insert(&mut self, node: NodeId) -> bool {
        let (word, bit) = (node.index() / 64, 1u64 << (node.0 % 64));
        let added = self.words[word] & bit == 0;
        self.words[word] |= bit;
        self.len += usize::from(added);
        added
    }

    /// Removes a node; true if it was present.
    pub fn remove(&mut self, node: NodeId) -> bool {
        let (word, bit) = (node.index() / 64, 1u64 << (node.0 % 64));
        let removed = self.words[word] & bit != 0;
        self.words[word] &= !bit;
        self.len -= usize::from(removed);
        removed
    }

    /// Whether the node is in the set.
    #[inline]
    pub fn contains(&self, node: NodeId) -> bool {
        self.words.get(node.index() / 64).is_some_and(|w| w >> (node.0 % 64) & 1 == 1)
    }

    /// Number of nodes in the set.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the set has no node.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The nodes, ascending.
    pub fn iter(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.words.iter().enumerate().flat_map(|(w, &word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                (rest != 0).then(|| {
                    let bit = rest.trailing_zeros();
                    rest &= rest - 1;
                    NodeId(w as u32 * 64 + bit)
                })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_what_was_put_in() {
        let mut set = NodeSet::new(130);
        assert!(set.is_empty() && set.insert(NodeId(0)) && set.insert(NodeId(129)) && set.insert(NodeId(64)));
        assert!(!set.insert(NodeId(64)));
        assert_eq!(set.iter().collect::<Vec<_>>(), [NodeId(0), NodeId(64), NodeId(129)]);
        assert!(set.contains(NodeId(129)) && !set.contains(NodeId(128)) && !set.contains(NodeId(100_000)));
        assert!(set.remove(NodeId(64)) && !set.remove(NodeId(64)));
        assert_eq!(set.len(), 2);
    }
}
