//! The gate: large gradients ask for fresh copies, small ones can do with older ones.
//!
//! Batch k looks at the gradient of batch k - 2 - s, the last whose exchange is sure to be over when k's rows are brought with
//! staleness s, in serial runs too; before there is one the gate is open. All ranks know the same norms, so owner and reader
//! decide alike and nothing is said about it.

use super::SyncConfig;
use crate::setting::Auto;
use std::collections::VecDeque;

/// Most batches between two refreshes that `eps_grad = "auto"` goes to.
const LONGEST: f64 = 64.0;

/// What a batch's gradient exchange told all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Told {
    batch: usize,
    norm: f64,
    /// Mean drift of the copies that were refreshed since the batch before, if any were.
    drift: Option<f64>,
}

/// When rows are refreshed.
#[derive(Clone, Debug)]
pub struct Gate {
    threshold: Auto<f64>,
    /// Batches between two refreshes while the gate is closed.
    interval: f64,
    drift_budget: f64,
    lag: usize,
    first: usize,
    told: VecDeque<Told>,
    latest: Option<Told>,
    /// The batch that refreshed last.
    refreshed: Option<usize>,
    open: u64,
    closed: u64,
    done: u64,
}

impl Gate {
    /// A gate for batches from `first` on; batch k looks at that of batch k - `lag`.
    pub fn new(config: &SyncConfig, lag: usize, first: usize) -> Gate {
        Gate {
            threshold: config.eps_grad,
            interval: f64::from(config.relaxed_interval.max(1)),
            drift_budget: config.drift_budget,
            lag,
            first,
            told: VecDeque::new(),
            latest: None,
            refreshed: None,
            open: 0,
            closed: 0,
            done: 0,
        }
    }

    /// The batch whose gradient decides over batch `batch`, if it had one.
    pub fn decides(&self, batch: usize) -> Option<usize> {
        batch.checked_sub(self.lag).filter(|&deciding| deciding >= self.first)
    }

    /// Whether everything that [`Gate::refreshes`] looks at for a batch is known.
    pub fn is_ready(&self, batch: usize) -> bool {
        let Some(deciding) = self.decides(batch) else { return true };
        let known = |told: &Told| told.batch >= deciding;
        self.latest.as_ref().is_some_and(known) || self.told.back().is_some_and(known)
    }

    /// A batch's gradient norm, and the mean drift that the ranks found since the one before. Batches come in order.
    pub fn tell(&mut self, batch: usize, norm: f64, drift: Option<f64>) {
        self.told.push_back(Told { batch, norm, drift });
    }

    /// Whether the rows that a batch needs are refreshed. Asked of each batch, in order.
    pub fn refreshes(&mut self, batch: usize) -> bool {
        if let Some(deciding) = self.decides(batch) {
            while self.told.front().is_some_and(|told| told.batch <= deciding) {
                let told = self.told.pop_front().expect("one is there");
                self.steer(told);
            }
        }
        let open = match (self.threshold, self.latest) {
            (_, None) => true,
            (Auto::Value(eps), Some(told)) => told.norm >= eps,
            (Auto::Auto, Some(_)) => false,
        };
        *(if open { &mut self.open } else { &mut self.closed }) += 1;
        let since = self.refreshed.map_or(usize::MAX, |refreshed| batch - refreshed);
        let refreshes = open || since >= self.interval as usize;
        if refreshes {
            self.refreshed = Some(batch);
            self.done += 1;
        }
        refreshes
    }

    /// `"auto"` keeps the measured drift between half of the budget and the budget.
    fn steer(&mut self, told: Told) {
        self.latest = Some(told);
        let (Auto::Auto, Some(drift)) = (self.threshold, told.drift) else { return };
        if drift > self.drift_budget {
            self.interval = (self.interval / 2.0).max(1.0);
        } else if drift < self.drift_budget / 2.0 {
            self.interval = (self.interval * 1.25).min(LONGEST);
        }
    }

    /// Batches that found the gate open, and closed.
    pub fn counts(&self) -> (u64, u64) {
        (self.open, self.closed)
    }

    /// Batches that refreshed.
    pub fn refreshed(&self) -> u64 {
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(eps: Auto<f64>) -> Gate {
        Gate::new(&SyncConfig { eps_grad: eps, ..SyncConfig::default() }, 2, 0)
    }

    fn run(gate: &mut Gate, batches: usize, norm: impl Fn(usize) -> f64, drift: impl Fn(usize) -> f64) -> Vec<bool> {
        let mut refreshes = Vec::new();
        for batch in 0..batches {
            if batch >= 1 {
                gate.tell(batch - 1, norm(batch - 1), Some(drift(batch - 1)));
            }
            assert!(gate.is_ready(batch), "batch {batch}");
            refreshes.push(gate.refreshes(batch));
        }
        refreshes
    }

    /// The algorithm page's example: 0.008 under 0.01, from every batch to every fifth.
    #[test]
    fn small_gradients_refresh_every_fifth_batch() {
        let mut gate = gate(Auto::Value(0.01));
        let refreshes = run(&mut gate, 102, |_| 0.008, |_| 0.0);
        assert_eq!(refreshes[..3], [true, true, false], "open until a norm is known");
        assert_eq!(refreshes[2..].iter().filter(|&&done| done).count(), 20, "80 % fewer");
        assert_eq!(gate.counts(), (2, 100));
    }

    #[test]
    fn zero_never_closes_and_large_gradients_open() {
        let mut never = gate(Auto::Value(0.0));
        assert!(run(&mut never, 50, |_| 0.0, |_| 9.0).into_iter().all(|done| done));
        let mut gate = gate(Auto::Value(1.0));
        let refreshes = run(&mut gate, 9, |batch| if batch == 3 { 2.0 } else { 0.5 }, |_| 0.0);
        assert_eq!(refreshes, [true, true, false, false, false, true, false, false, false]);
    }

    #[test]
    fn a_decision_waits_for_its_norm() {
        let mut gate = Gate::new(&SyncConfig::default(), 3, 10);
        assert!(gate.is_ready(12) && !gate.is_ready(13));
        gate.tell(10, 1.0, None);
        assert!(gate.is_ready(13) && !gate.is_ready(14));
    }

    #[test]
    fn auto_finds_an_interval_within_the_budget() {
        let mut auto = gate(Auto::Auto);
        let config = SyncConfig::default();
        // Drift grows with the interval: 0.01 a batch.
        let mut last = 0;
        let mut worst: f64 = 0.0;
        for batch in 0..400 {
            if batch >= 1 {
                auto.tell(batch - 1, 1.0, Some(0.01 * auto.interval.floor()));
            }
            if auto.refreshes(batch) {
                if batch > 200 {
                    worst = worst.max(0.01 * (batch - last) as f64);
                }
                last = batch;
            }
        }
        assert!(worst <= 1.25 * config.drift_budget && worst >= config.drift_budget / 2.0, "{worst}");
    }
}
