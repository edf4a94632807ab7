//! Where each node's state lies: a rank keeps its own nodes' and copies of others', not the whole stream's.
//!
//! Alone, a node's place is its number. Otherwise places are given out as nodes come and used again when they go; the map
//! from node to place covers all nodes (4 bytes each), the state behind it only the residents.
//!
//! Invariants: residents have distinct places; own nodes are listed in node order.

use tidemill_data::id::NodeId;

/// Row of a node in the state's tables.
pub type Place = u32;

const NOWHERE: Place = Place::MAX;

/// Which nodes have a place, and which of them are this rank's own.
#[derive(Clone, Debug)]
pub enum Places {
    /// Every node, at its own number.
    All {
        /// How many there are.
        nodes: usize,
    },
    /// This rank's own nodes and some copies of others'.
    Some(Residents),
}

/// The nodes that have a place on one of several ranks.
#[derive(Clone, Debug)]
pub struct Residents {
    place: Vec<Place>,
    own: Vec<NodeId>,
    free: Vec<Place>,
    given: Place,
}

impl Places {
    /// Places of `own` nodes, in node order, out of `nodes`.
    pub fn of_own(nodes: usize, own: Vec<NodeId>) -> Places {
        debug_assert!(own.is_sorted());
        let mut residents = Residents { place: vec![NOWHERE; nodes], own: Vec::new(), free: Vec::new(), given: 0 };
        own.iter().for_each(|&node| {
            residents.admit(node);
        });
        residents.own = own;
        Places::Some(residents)
    }

    /// Whether every node has its place.
    pub fn is_all(&self) -> bool {
        matches!(self, Places::All { .. })
    }

    /// Whether a node has a place.
    pub fn holds(&self, node: NodeId) -> bool {
        match self {
            Places::All { nodes } => node.index() < *nodes,
            Places::Some(residents) => residents.place[node.index()] != NOWHERE,
        }
    }

    /// Number of own nodes.
    pub fn own_len(&self) -> usize {
        match self {
            Places::All { nodes } => *nodes,
            Places::Some(residents) => residents.own.len(),
        }
    }

    /// Own nodes `range` in node order.
    pub fn own(&self, range: std::ops::Range<usize>) -> Vec<NodeId> {
        match self {
            Places::All { .. } => range.map(|n| NodeId(n as u32)).collect(),
            Places::Some(residents) => residents.own[range].to_vec(),
        }
    }

    /// Where a resident's state is.
    ///
    /// # Panics
    /// If the node has no place here: a row that no plan brought.
    #[inline]
    pub fn of(&self, node: NodeId) -> Place {
        match self {
            Places::All { .. } => node.0,
            Places::Some(residents) => {
                let place = residents.place[node.index()];
                assert_ne!(place, NOWHERE, "node {} has no row on this rank", node.0);
                place
            }
        }
    }

    /// Rows that the tables need.
    pub fn capacity(&self) -> usize {
        match self {
            Places::All { nodes } => *nodes,
            Places::Some(residents) => residents.given as usize,
        }
    }

    /// Nodes with a place that are not own.
    pub fn copies(&self) -> usize {
        match self {
            Places::All { .. } => 0,
            Places::Some(residents) => residents.given as usize - residents.free.len() - residents.own.len(),
        }
    }

    /// Nodes with a place that are not own, in node order.
    pub fn copied(&self) -> Vec<NodeId> {
        let Places::Some(residents) = self else { return Vec::new() };
        let mut own = residents.own.iter().peekable();
        let here = residents.place.iter().enumerate().filter(|(_, place)| **place != NOWHERE);
        let here = here.map(|(node, _)| NodeId(node as u32));
        here.filter(|node| own.next_if_eq(&node).is_none()).collect()
    }

    /// Gives a node a place, unless it has one; true if it is new.
    pub fn admit(&mut self, node: NodeId) -> bool {
        match self {
            Places::All { .. } => false,
            Places::Some(residents) => residents.admit(node),
        }
    }

    /// Takes a node's place; the one it had.
    pub fn dismiss(&mut self, node: NodeId) -> Option<Place> {
        match self {
            Places::All { .. } => None,
            Places::Some(residents) => residents.dismiss(node),
        }
    }

    /// Makes `own` the own nodes; all must have a place.
    pub fn set_own(&mut self, own: Vec<NodeId>) {
        debug_assert!(own.is_sorted());
        if let Places::Some(residents) = self {
            residents.own = own;
        }
    }
}

impl Residents {
    fn admit(&mut self, node: NodeId) -> bool {
        let place = &mut self.place[node.index()];
        if *place != NOWHERE {
            return false;
        }
        *place = self.free.pop().unwrap_or_else(|| {
            self.given += 1;
            self.given - 1
        });
        true
    }

    fn dismiss(&mut self, node: NodeId) -> Option<Place> {
        let place = std::mem::replace(&mut self.place[node.index()], NOWHERE);
        (place != NOWHERE).then(|| {
            self.free.push(place);
            place
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again() {
        let mut places = Places::of_own(6, vec![NodeId(1), NodeId(4)]);
        assert_eq!((places.of(NodeId(1)), places.of(NodeId(4)), places.capacity()), (0, 1, 2));
        assert!(places.admit(NodeId(5)) && !places.admit(NodeId(5)) && places.admit(NodeId(0)));
        assert_eq!((places.copies(), places.capacity()), (2, 4));
        assert_eq!(places.copied(), [NodeId(0), NodeId(5)]);
        assert_eq!(places.dismiss(NodeId(5)), Some(2));
        assert_eq!((places.dismiss(NodeId(5)), places.copies()), (None, 1));
        assert!(places.admit(NodeId(3)));
        assert_eq!((places.of(NodeId(3)), places.capacity()), (2, 4), "the place of node 5");
        places.set_own(vec![NodeId(1), NodeId(3), NodeId(4)]);
        assert_eq!((places.own_len(), places.own(1..3), places.copies()), (3, vec![NodeId(3), NodeId(4)], 1));
    }

    #[test]
    #[should_panic(expected = "node 2 has no row on this rank")]
    fn a_row_that_was_not_brought_is_a_bug() {
        Places::of_own(6, vec![NodeId(1)]).of(NodeId(2));
    }
}
