//! Who sends what to whom in one batch: at most one message per pair of ranks and purpose.

use crate::partition::Rank;

/// What one rank sends and receives of one kind in one batch. Both sides derive a message's contents from the same plan, so
/// none is described on the wire and none is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routes<T> {
    /// To each peer that gets something, ranks ascending: what.
    pub out: Vec<(Rank, Vec<T>)>,
    /// From each peer that sends something, ranks ascending: what.
    pub into: Vec<(Rank, Vec<T>)>,
}

impl<T> Default for Routes<T> {
    fn default() -> Self {
        Routes { out: Vec::new(), into: Vec::new() }
    }
}

impl<T> Routes<T> {
    /// An item that `from` sends to `to`, noted if `me` is either.
    pub fn note(&mut self, me: Rank, from: Rank, to: Rank, item: T) {
        debug_assert_ne!(from, to);
        if from == me {
            list(&mut self.out, to).push(item);
        } else if to == me {
            list(&mut self.into, from).push(item);
        }
    }

    /// Whether nothing is sent or received.
    pub fn is_empty(&self) -> bool {
        self.out.is_empty() && self.into.is_empty()
    }

    /// Items received.
    pub fn received(&self) -> usize {
        self.into.iter().map(|(_, items)| items.len()).sum()
    }
}

/// The list of one peer, made where it is wanted first.
fn list<T>(lists: &mut Vec<(Rank, Vec<T>)>, peer: Rank) -> &mut Vec<T> {
    let at = match lists.binary_search_by_key(&peer, |(rank, _)| *rank) {
        Ok(at) => at,
        Err(at) => {
            lists.insert(at, (peer, Vec::new()));
            at
        }
    };
    &mut lists[at].1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_note_the_same_and_others_nothing() {
        let items = [(0u16, 2u16, 'a'), (1, 2, 'b'), (2, 0, 'c'), (0, 2, 'd'), (0, 1, 'e')];
        let of = |me| {
            let mut routes = Routes::default();
            items.iter().for_each(|&(from, to, item)| routes.note(Rank(me), Rank(from), Rank(to), item));
            routes
        };
        assert_eq!(of(0).out, [(Rank(1), vec!['e']), (Rank(2), vec!['a', 'd'])]);
        assert_eq!(of(2).into, [(Rank(0), vec!['a', 'd']), (Rank(1), vec!['b'])]);
        assert_eq!((of(0).received(), of(2).received(), of(1).received()), (1, 3, 1));
        assert!(of(3).is_empty() && !of(1).is_empty());
    }
}
