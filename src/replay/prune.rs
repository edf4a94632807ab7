//! Which replay units go when a queue has grown beyond its bound.
//!
//! First *lossless*: units whose mail a later one of the same node and batch replaces, then units of rows that nothing reads
//! before the correction that is already scheduled. Then *lossy*, the least important first: time decay x coming reads x how
//! far such updates moved the row before. A rank's own events are no units and are never dropped.

use super::ReplayConfig;
use crate::setting::Auto;
use std::collections::HashMap;
use tidemill_data::id::NodeId;

/// The work of one batch for one followed node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    /// Events of the batch that touch the node: so many (event, node) pairs, of which the last counts.
    pub events: u32,
    /// Batches of the window that will read the row.
    pub reads: u32,
    /// Batches until the first of them.
    pub next: u32,
    /// Nothing sees the row before it is corrected.
    pub unseen: bool,
}

/// What became of a batch's units.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Which nodes' updates are kept, as given.
    pub kept: Vec<bool>,
    /// (Event, node) pairs that went without a trace.
    pub lossless: u64,
    /// Pairs whose loss can be seen.
    pub lossy: u64,
}

/// Batches after which a coming read counts half.
const HALF_LIFE: f64 = 8.0;
/// Weight of a row's latest movement in its running mean.
const RECENT: f64 = 0.25;

/// Prunes one rank's queue.
#[derive(Clone, Debug)]
pub struct Pruner {
    delta: f64,
    lossy: bool,
    l_max: Auto<u64>,
    /// Pairs a second, and seconds of a batch, as measured.
    service: Option<(f64, f64)>,
    /// Running mean of `||new - old|| / ||new||` of each row's updates.
    moved: HashMap<NodeId, f32>,
    mean_moved: f64,
}

impl Pruner {
    /// A pruner with nothing measured yet.
    pub fn new(config: &ReplayConfig) -> Pruner {
        let (delta, lossy, l_max) = (config.delta, config.lossy, config.l_max);
        Pruner { delta, lossy, l_max, service: None, moved: HashMap::new(), mean_moved: 0.0 }
    }

    /// The length to prune down to; `None`: no bound.
    pub fn l_max(&self) -> Option<u64> {
        match self.l_max {
            Auto::Value(0) => None,
            Auto::Value(l_max) => Some(l_max),
            // A quarter of a batch's time may go into replay.
            Auto::Auto => self.service.map(|(rate, batch)| ((0.25 * rate * batch) as u64).max(1)),
        }
    }

    /// Measured: `pairs` were replayed in `seconds`, in a batch that took `batch` seconds.
    pub fn served(&mut self, pairs: u64, seconds: f64, batch: f64) {
        if pairs == 0 || seconds <= 0.0 || batch <= 0.0 {
            return;
        }
        let now = (pairs as f64 / seconds, batch);
        let mix = |old: f64, new: f64| old + RECENT * (new - old);
        self.service = Some(self.service.map_or(now, |old| (mix(old.0, now.0), mix(old.1, now.1))));
    }

    /// An update moved a row by this share of its length.
    pub fn note_movement(&mut self, node: NodeId, moved: f64) {
        let old = self.moved.entry(node).or_insert(moved as f32);
        *old += RECENT as f32 * (moved as f32 - *old);
        self.mean_moved += 0.01 * (moved - self.mean_moved);
    }

    /// Shortens a queue to its bound, if it is longer than the bound allows for.
    pub fn prune(&self, nodes: &[NodeId], units: &[Unit]) -> Pruned {
        let mut pruned = Pruned { kept: vec![true; units.len()], ..Pruned::default() };
        let length: u64 = units.iter().map(|unit| u64::from(unit.events)).sum();
        let Some(l_max) = self.l_max().filter(|&l_max| length as f64 > l_max as f64 * (1.0 + self.delta)) else {
            return pruned;
        };
        let mut over = length - l_max;
        let superseded: u64 = units.iter().map(|unit| u64::from(unit.events.saturating_sub(1))).sum();
        pruned.lossless = superseded.min(over);
        over -= pruned.lossless;
        for (unit, kept) in units.iter().zip(&mut pruned.kept) {
            if over > 0 && unit.unseen {
                *kept = false;
                pruned.lossless += 1;
                over -= 1;
            }
        }
        if !self.lossy || over == 0 {
            return pruned;
        }
        let mut rest: Vec<usize> = (0..units.len()).filter(|&i| pruned.kept[i]).collect();
        let importance = |i: usize| self.importance(nodes[i], &units[i]);
        rest.sort_by(|&a, &b| importance(a).total_cmp(&importance(b)).then(nodes[a].cmp(&nodes[b])));
        for &i in rest.iter().take(over as usize) {
            pruned.kept[i] = false;
            pruned.lossy += 1;
        }
        pruned
    }

    fn importance(&self, node: NodeId, unit: &Unit) -> f64 {
        let moved = self.moved.get(&node).map_or(self.mean_moved, |&moved| f64::from(moved));
        f64::from(unit.reads) * (-f64::from(unit.next) / HALF_LIFE).exp2() * (1e-6 + moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pruner(l_max: u64, lossy: bool) -> Pruner {
        Pruner::new(&ReplayConfig { l_max: Auto::Value(l_max), delta: 0.2, lossy })
    }

    fn nodes(count: usize) -> Vec<NodeId> {
        (0..count as u32).map(NodeId).collect()
    }

    fn read(reads: u32, next: u32) -> Unit {
        Unit { events: 1, reads, next, unseen: false }
    }

    /// The algorithm page's example: 1,250 units, a bound of 1,000 and a fifth of slack: 250 go.
    #[test]
    fn the_least_important_go_down_to_the_bound() {
        let units: Vec<Unit> = (0..1250).map(|i| read(1 + i % 7, 1)).collect();
        let pruned = pruner(1000, true).prune(&nodes(1250), &units);
        assert_eq!((pruned.lossless, pruned.lossy), (0, 250));
        assert_eq!(pruned.kept.iter().filter(|&&kept| kept).count(), 1000);
        let least =
            |kept: bool| units.iter().zip(&pruned.kept).filter(move |pair| *pair.1 == kept).map(|pair| pair.0.reads);
        assert!(least(false).max() <= least(true).min(), "none that is kept is less important than one that went");
        assert_eq!(pruner(1000, true).prune(&nodes(1200), &units[..1200]).lossy, 0, "within the slack");
        assert_eq!(pruner(0, true).prune(&nodes(1250), &units).lossy, 0, "0: no bound");
    }

    #[test]
    fn what_leaves_no_trace_goes_first() {
        let superseded = Unit { events: 3, ..read(9, 1) };
        let unseen = Unit { events: 1, unseen: true, ..Unit::default() };
        let units = [read(1, 1), superseded, unseen, read(2, 1), read(3, 1)];
        let pruned = pruner(5, true).prune(&nodes(5), &units);
        assert_eq!((pruned.lossless, pruned.lossy, pruned.kept), (2, 0, vec![true; 5]), "7 pairs: two mails replaced");
        let pruned = pruner(4, true).prune(&nodes(5), &units);
        assert_eq!((pruned.lossless, pruned.lossy), (3, 0));
        assert_eq!(pruned.kept, [true, true, false, true, true]);
        let pruned = pruner(2, true).prune(&nodes(5), &units);
        assert_eq!((pruned.lossless, pruned.lossy), (3, 2));
        assert_eq!(pruned.kept, [false, true, false, false, true]);
        let pruned = pruner(2, false).prune(&nodes(5), &units);
        assert_eq!((pruned.lossless, pruned.lossy, pruned.kept[0]), (3, 0, true), "no more than leaves no trace");
    }

    #[test]
    fn later_reads_and_small_movements_matter_less() {
        let mut pruner = pruner(2, true);
        pruner.note_movement(NodeId(0), 0.5);
        pruner.note_movement(NodeId(1), 0.01);
        pruner.note_movement(NodeId(2), 0.5);
        let pruned = pruner.prune(&nodes(3), &[read(1, 1), read(1, 1), read(1, 65)]);
        assert_eq!(pruned.kept, [true, true, false], "eight half-lives away");
        let pruned = pruner.prune(&nodes(3), &[read(1, 1), read(1, 1), read(1, 2)]);
        assert_eq!(pruned.kept, [true, false, true], "it hardly moves");
    }

    #[test]
    fn auto_follows_the_measured_rate() {
        let mut pruner = Pruner::new(&ReplayConfig { l_max: Auto::Auto, delta: 0.0, lossy: true });
        let units: Vec<Unit> = (0..100).map(|_| read(1, 1)).collect();
        assert_eq!(pruner.prune(&nodes(100), &units).lossy, 0, "nothing is measured yet");
        for _ in 0..50 {
            pruner.served(100, 0.01, 0.02); // 10,000 a second, a batch of 20 ms: 50 fit in a quarter
        }
        assert_eq!((pruner.l_max(), pruner.prune(&nodes(100), &units).lossy), (Some(50), 50));
    }
}
