//! Who owns each node in one window.

use tidemill_data::id::NodeId;

/// One process of a run, from 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Rank(pub u16);

impl Rank {
    /// The rank as an index.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The owner of every node in one window. 2 bytes a node; shared by `Arc`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartitionTable {
    owner: Box<[u16]>,
    ranks: usize,
}

impl PartitionTable {
    /// A table from the owner of each node.
    ///
    /// # Panics
    /// If an owner is no rank.
    pub fn new(owner: Vec<u16>, ranks: usize) -> PartitionTable {
        assert!(owner.iter().all(|&r| usize::from(r) < ranks), "an owner is not in 0..{ranks}");
        PartitionTable { owner: owner.into(), ranks }
    }

    /// The rank that owns a node.
    #[inline]
    pub fn owner(&self, node: NodeId) -> Rank {
        Rank(self.owner[node.index()])
    }

    /// Ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The owner of each node, in node order.
    pub fn owners(&self) -> &[u16] {
        &self.owner
    }

    /// The nodes that a rank owns, in order.
    pub fn nodes_of(&self, rank: Rank) -> Vec<NodeId> {
        let nodes = (0..self.owner.len() as u32).map(NodeId);
        nodes.filter(|&node| self.owner(node) == rank).collect()
    }

    /// The nodes that each rank owns, counted.
    pub fn nodes_by_rank(&self) -> Vec<usize> {
        let mut nodes = vec![0; self.ranks];
        self.owner.iter().for_each(|&rank| nodes[usize::from(rank)] += 1);
        nodes
    }

    /// The same table, with these nodes' owners.
    pub(super) fn with(&self, owners: impl IntoIterator<Item = (NodeId, Rank)>) -> PartitionTable {
        let mut table = self.clone();
        owners.into_iter().for_each(|(node, rank)| table.owner[node.index()] = rank.0);
        table
    }

    /// What differs in `next`: node, owner here, owner there; ascending.
    pub(super) fn moved_to(&self, next: &PartitionTable) -> Vec<(NodeId, Rank, Rank)> {
        let pairs = (0..).zip(self.owner.iter().zip(&next.owner));
        pairs.filter(|(_, (a, b))| a != b).map(|(node, (&a, &b))| (NodeId(node), Rank(a), Rank(b))).collect()
    }
}
