//! By degree: the nodes with the most events first, each to the rank with the fewest so far. Even loads, whatever is cut.

use crate::partition::Ends;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The owner of each node. Nodes without events count as one endpoint, so that they are spread as well.
pub(super) fn table(nodes: u32, ends: &[Ends], ranks: usize) -> Vec<u16> {
    let mut degree = vec![1u64; nodes as usize];
    ends.iter().flatten().for_each(|node| degree[node.index()] += 1);
    let mut order: Vec<u32> = (0..nodes).collect();
    order.sort_by_key(|&node| (Reverse(degree[node as usize]), node));
    let mut owner = vec![0; nodes as usize];
    let mut lightest: BinaryHeap<Reverse<(u64, u16)>> = (0..ranks as u16).map(|rank| Reverse((0, rank))).collect();
    for node in order {
        let Reverse((load, rank)) = lightest.pop().expect("there is a rank");
        owner[node as usize] = rank;
        lightest.push(Reverse((load + degree[node as usize], rank)));
    }
    owner
}
