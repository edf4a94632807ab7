//! Which rank runs each event of a window.

use super::{Ends, PartitionTable, Rank};

/// The primary rank of each event of a window, and how many each rank has.
#[derive(Clone, Debug)]
pub(super) struct Primaries {
    /// By position in the window.
    pub(super) rank: Vec<Rank>,
    /// By rank.
    pub(super) load: Vec<u64>,
}

impl Primaries {
    /// An event goes to the owner of its endpoints or, where they have two, to the one with fewer events of the window so far;
    /// if these are equal, to the source's.
    pub(super) fn of(ends: &[Ends], table: &PartitionTable) -> Primaries {
        let mut load = vec![0u64; table.ranks()];
        let choose = |&[source, destination]: &Ends| {
            let (a, b) = (table.owner(source), table.owner(destination));
            let rank = if load[b.index()] < load[a.index()] { b } else { a };
            load[rank.index()] += 1;
            rank
        };
        let rank = ends.iter().map(choose).collect();
        Primaries { rank, load }
    }

    /// The busiest rank's events over the mean.
    pub(super) fn balance(&self) -> f64 {
        balance(&self.load)
    }
}

/// The largest of some loads over their mean; 1 if there is no load.
pub(super) fn balance(load: &[u64]) -> f64 {
    match (load.iter().max(), load.iter().sum::<u64>()) {
        (Some(&most), sum) if sum > 0 => most as f64 * load.len() as f64 / sum as f64,
        _ => 1.0,
    }
}
