//! What all ranks conclude from an exchange, alike: which batches are told of, whether the parameters drifted apart, who stops,
//! and the next period.

use super::Racom;
use crate::gradient::period::Change;
use crate::gradient::sketch::divergence;
use crate::gradient::window::{Window, agreement};
use crate::pipeline::sync::Word;

/// What the run's log should hold.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// All ranks have told of the next batch.
    Batch {
        /// Its loss.
        loss: f64,
        /// Norm of the latest exchange's gradient, as of one batch.
        norm: f64,
        /// Sum of the drifts of copies that the ranks have told of since the batch before, and of how many.
        drift: (f64, f64),
    },
    /// A full sync.
    Synced {
        /// After so many batches of the epoch.
        batch: usize,
        /// Why.
        reason: &'static str,
        /// Largest distance of a rank's parameters from the mean, over the mean's length, as they were before.
        divergence: f64,
    },
    /// The period has changed.
    Period(usize, Change),
}

impl Racom {
    /// Adds up the ranks' shares of losses; batches of which all have told are news.
    pub(super) fn note(&mut self, windows: &[Window]) {
        for window in windows {
            self.drift = (self.drift.0 + window.drift.0, self.drift.1 + window.drift.1);
            for (batch, loss) in (window.first..).zip(&window.losses) {
                let at = batch - self.told;
                self.losses.resize(self.losses.len().max(at + 1), 0.0);
                self.losses[at] += loss;
            }
        }
    }

    /// What all ranks conclude from an exchange, alike.
    pub(super) fn judge(&mut self, windows: &[Window], norm: f64) {
        self.controller.exchanges += 1;
        let batches = windows.iter().map(Window::batches).sum::<usize>() as f64 / windows.len() as f64;
        if batches > 0.0 {
            self.controller.norm = norm / batches;
            self.controller.window = batches;
        }
        while self.told < self.oldest_missing() {
            let loss = self.losses.pop_front().expect("all ranks have told of it");
            self.told += 1;
            let drift = std::mem::take(&mut self.drift);
            self.news.push(News::Batch { loss, norm: self.controller.norm, drift });
        }
        let agreed = self.oldest_missing() + self.max_staleness; // all know by then, or at the full sync that comes before

        let divergence = divergence(windows.iter().map(|window| window.sketch.as_slice()));
        self.controller.divergence = divergence;
        self.controller.divergence_max = self.controller.divergence_max.max(divergence);
        if divergence > self.bound {
            self.sync_at.get_or_insert(agreed);
        }
        let (stop, out_of_time) =
            (windows.iter().any(|window| window.stop), windows.iter().any(|window| window.out_of_time));
        if stop || out_of_time {
            self.stop_at.get_or_insert((agreed, Word { stop, out_of_time, ..Word::default() }));
        }
        let first = windows.iter().filter(|window| window.batches() > 0).map(|window| window.first).min();
        if let (Some(first), Some(latest)) = (first, windows.iter().map(|window| window.end).max()) {
            let agreement = agreement(norm, windows.iter().map(|window| window.norm));
            let change = self.controller.period.observe(agreement, latest - first);
            self.news.extend(change.map(|change| News::Period(latest, change)));
        }
    }
}
