//! Which of other ranks' nodes one rank keeps current by replay, and which of these it has.
//!
//! A node that a rank *follows* in a window becomes *current* there when it is first needed: for nothing while no batch has
//! written it, else by one push. From then on each event that touches it is replayed, and nothing is sent. Owners must know
//! what they need not send, so every rank plays this bookkeeping for every rank: one bit a node and rank, read and written by
//! the event stage alone, which is why there is no lock here.

use tidemill_data::id::NodeId;
use tidemill_data::node_set::NodeSet;

/// One rank's replicas.
#[derive(Clone, Debug)]
pub struct Replicas {
    followed: NodeSet,
    current: NodeSet,
}

impl Replicas {
    /// None, of `nodes` nodes.
    pub fn none(nodes: u32) -> Replicas {
        Replicas { followed: NodeSet::new(nodes), current: NodeSet::new(nodes) }
    }

    /// Whether the rank keeps the node current once it has it.
    pub fn follows(&self, node: NodeId) -> bool {
        self.followed.contains(node)
    }

    /// Whether it has the node, up to date.
    pub fn is_current(&self, node: NodeId) -> bool {
        self.current.contains(node)
    }

    /// The rank has the node from now on; true if it had not.
    pub fn make_current(&mut self, node: NodeId) -> bool {
        debug_assert!(self.follows(node));
        self.current.insert(node)
    }

    /// Followed nodes.
    pub fn len(&self) -> usize {
        self.followed.len()
    }

    /// Whether none is followed.
    pub fn is_empty(&self) -> bool {
        self.followed.is_empty()
    }

    /// Follows other nodes from now on. Those that stay remain current, unless they are now the rank's `own`; the other nodes
    /// that were current and are not its own are returned, ascending.
    pub fn turn_to(&mut self, followed: NodeSet, own: impl Fn(NodeId) -> bool) -> Vec<NodeId> {
        let before = std::mem::replace(&mut self.current, NodeSet::new(0));
        let mut current = before.clone();
        let mut left = Vec::new();
        for node in before.iter() {
            if own(node) {
                current.remove(node);
            } else if !followed.contains(node) {
                current.remove(node);
                left.push(node);
            }
        }
        (self.followed, self.current) = (followed, current);
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(nodes: &[u32]) -> NodeSet {
        let mut set = NodeSet::new(8);
        nodes.iter().for_each(|&node| {
            set.insert(NodeId(node));
        });
        set
    }

    #[test]
    fn what_stays_is_current_and_what_goes_is_named() {
        let mut replicas = Replicas::none(8);
        assert!(replicas.turn_to(set(&[1, 2, 3, 4]), |_| false).is_empty() && !replicas.is_empty());
        for node in [1, 2, 4] {
            assert!(replicas.make_current(NodeId(node)) && !replicas.make_current(NodeId(node)));
        }
        let left = replicas.turn_to(set(&[1, 3, 5]), |node| node == NodeId(4));
        assert_eq!(left, [NodeId(2)], "4 is the rank's own now");
        assert_eq!((replicas.len(), replicas.follows(NodeId(2))), (3, false));
        let current: Vec<bool> = [1, 3, 5].map(|node| replicas.is_current(NodeId(node))).to_vec();
        assert_eq!(current, [true, false, false]);
    }
}
