//! How well a pass is cut: events between ranks, spread of events, nodes that moved.

use super::primary::Primaries;
use super::{Ends, PartitionTable};
use serde::Serialize;

/// One window.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WindowStatistics {
    /// Events of the window.
    pub events: usize,
    /// Events whose endpoints have two owners.
    pub cut: usize,
    /// Primary events of each rank.
    pub load: Vec<u64>,
    /// The busiest rank's primary events over the mean.
    pub balance: f64,
    /// Nodes that changed hands at the border before.
    pub moved: usize,
}

impl WindowStatistics {
    pub(super) fn of(ends: &[Ends], table: &PartitionTable, primaries: &Primaries, moved: usize) -> WindowStatistics {
        let cut = ends.iter().filter(|[source, destination]| table.owner(*source) != table.owner(*destination)).count();
        let (load, balance) = (primaries.load.clone(), primaries.balance());
        WindowStatistics { events: ends.len(), cut, load, balance, moved }
    }
}

/// A pass.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PartitionStatistics {
    /// By window.
    pub windows: Vec<WindowStatistics>,
}

impl PartitionStatistics {
    pub(super) fn push(&mut self, window: WindowStatistics) {
        self.windows.push(window);
    }

    /// Share of the events whose endpoints have two owners; 0 without events.
    pub fn cut_share(&self) -> f64 {
        let sum = |of: fn(&WindowStatistics) -> usize| self.windows.iter().map(of).sum::<usize>() as f64;
        sum(|w| w.cut) / sum(|w| w.events).max(1.0)
    }

    /// Mean over windows of the busiest rank's events over the mean; 1 without windows.
    pub fn balance(&self) -> f64 {
        if self.windows.is_empty() {
            return 1.0;
        }
        self.windows.iter().map(|w| w.balance).sum::<f64>() / self.windows.len() as f64
    }

    /// Borders at which nodes changed hands.
    pub fn migrations(&self) -> usize {
        self.windows.iter().filter(|w| w.moved > 0).count()
    }

    /// Nodes that changed hands, over all borders.
    pub fn nodes_moved(&self) -> usize {
        self.windows.iter().map(|w| w.moved).sum()
    }
}
