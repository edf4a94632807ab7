//! What each root of a sample depends on.

use crate::sampler::Sample;
use tidemill_data::id::{EventId, NodeId};

/// Rows and sampled events that each root of a sample depends on, over all hops.
pub(super) struct Reach(Vec<Reached>);

/// Those of one root, each once.
#[derive(Clone, Default)]
pub(super) struct Reached {
    pub(super) rows: Vec<NodeId>,
    pub(super) events: Vec<EventId>,
}

impl Reach {
    pub(super) fn of(sample: &Sample) -> Reach {
        let mut below: Vec<Reached> =
            sample.rows.iter().map(|&node| Reached { rows: vec![node], events: Vec::new() }).collect();
        for hop in sample.hops.iter().rev() {
            let root = |root: usize| {
                let mut reached = below[hop.below_root[root] as usize].clone();
                for slot in hop.slots(root) {
                    let neighbor = &below[hop.below_neighbor[slot] as usize];
                    reached.rows.extend(&neighbor.rows);
                    reached.events.extend(&neighbor.events);
                    reached.events.push(hop.event[slot]);
                }
                reached.rows.sort_unstable();
                reached.rows.dedup();
                reached.events.sort_unstable();
                reached.events.dedup();
                reached
            };
            below = (0..hop.roots.len()).map(root).collect();
        }
        Reach(below)
    }

    pub(super) fn of_root(&self, root: u32) -> &Reached {
        &self.0[root as usize]
    }
}
