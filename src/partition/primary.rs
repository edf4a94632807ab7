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
    /// An event goes to the owner of its endpoints. Where they have two it goes to the one with fewer events: of the batch, which
    /// all ranks end together, the events of a single owner counted first; then of the window so far; if these are equal too, to
    /// the source's.
    pub(super) fn of(ends: &[Ends], batch_size: usize, table: &PartitionTable) -> Primaries {
        let owners = |&[source, destination]: &Ends| (table.owner(source), table.owner(destination));
        let mut load = vec![0u64; table.ranks()];
        let mut rank = Vec::with_capacity(ends.len());
        let mut in_batch = vec![0u64; table.ranks()];
        for batch in ends.chunks(batch_size) {
            in_batch.fill(0);
            batch.iter().map(owners).filter(|(a, b)| a == b).for_each(|(a, _)| in_batch[a.index()] += 1);
            for (a, b) in batch.iter().map(owners) {
                let so_far = |rank: Rank| (in_batch[rank.index()], load[rank.index()]);
                let chosen = if so_far(b) < so_far(a) { b } else { a };
                in_batch[chosen.index()] += u64::from(a != b);
                load[chosen.index()] += 1;
                rank.push(chosen);
            }
        }
        Primaries { rank, load }
    }

    /// The busiest rank's events over the mean.
    pub(super) fn balance(&self) -> f64 {
        balance(&self.load)
    }
}

/// The largest of some loads over their mean; 1 if there is no load.
fn balance(load: &[u64]) -> f64 {
    match (load.iter().max(), load.iter().sum::<u64>()) {
        (Some(&most), sum) if sum > 0 => most as f64 * load.len() as f64 / sum as f64,
        _ => 1.0,
    }
}
