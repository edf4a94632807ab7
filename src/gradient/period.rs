//! How many batches a rank sums up before it tells the others: longer while the ranks' gradients agree, shorter when they do
//! not, or when contributions grow old.
//!
//! Decided from what all ranks know of an exchange, so that all decide alike. Invariants: the period stays between half and
//! four times the configured one, and within half of the staleness allowed (the configured one itself is always allowed); it
//! changes by one batch, and not again for [`PATIENCE`] exchanges.

use super::GradientConfig;
use serde::{Deserialize, Serialize};

/// Exchanges between two changes.
pub const PATIENCE: u32 = 8;

/// Weight of the latest exchange in the running mean of the agreement.
const WEIGHT: f64 = 0.2;

/// Agreement above which a rank's own gradient serves for the others' for longer, and below which it does not.
const AGREES: f64 = 0.5;
const DISAGREES: f64 = 0.05;

/// The period in force, and what it is decided by.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Period {
    batches: usize,
    shortest: usize,
    longest: usize,
    /// Age of contributions, in batches, that is near to what is allowed.
    old: usize,
    agreement: f64,
    exchanges: u32,
    since_change: u32,
}

/// A change, for the log.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// Batches before.
    pub from: usize,
    /// Batches from now on.
    pub to: usize,
    /// Why.
    pub reason: String,
}

impl Period {
    /// The configured period, to be adapted.
    pub fn new(config: &GradientConfig) -> Period {
        let (batches, allowed) = (config.period as usize, config.max_staleness as usize);
        let longest = (4 * batches).min((allowed / 2).max(batches));
        let shortest = (batches / 2).max(1);
        Period { batches, shortest, longest, old: allowed - allowed / 4, agreement: 0.0, exchanges: 0, since_change: 0 }
    }

    /// Batches that a window spans at least.
    pub fn batches(&self) -> usize {
        self.batches
    }

    /// Mean agreement of late.
    pub fn agreement(&self) -> f64 {
        self.agreement
    }

    /// Takes in an exchange.
    ///
    /// * `agreement`: of the ranks' sums, see [`agreement`](super::window::agreement).
    /// * `age`: batches between the first that was summed and the latest that a rank had done.
    pub fn observe(&mut self, agreement: f64, age: usize) -> Option<Change> {
        self.exchanges += 1;
        self.since_change += 1;
        let weight = WEIGHT.max(1.0 / f64::from(self.exchanges));
        self.agreement += weight * (agreement - self.agreement);
        if self.since_change < PATIENCE {
            return None;
        }
        let (from, mean) = (self.batches, self.agreement);
        let (to, reason) = if age > self.old && from > self.shortest {
            (from - 1, format!("contributions are {age} batches old"))
        } else if mean < DISAGREES && from > self.shortest {
            (from - 1, format!("gradients agree to {mean:.2}"))
        } else if mean > AGREES && age <= self.old && from < self.longest {
            (from + 1, format!("gradients agree to {mean:.2}"))
        } else {
            return None;
        };
        (self.batches, self.since_change) = (to, 0);
        Some(Change { from, to, reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn period(batches: u32, max_staleness: u32) -> Period {
        Period::new(&GradientConfig { period: batches, max_staleness, ..GradientConfig::default() })
    }

    /// The periods gone through under a constant load.
    fn course(mut period: Period, agreement: f64, age: usize) -> Vec<usize> {
        (0..400).filter_map(|_| period.observe(agreement, age)).map(|change| change.to).collect()
    }

    #[test]
    fn grows_while_gradients_agree_and_shrinks_otherwise_within_bounds() {
        assert_eq!(course(period(4, 16), 0.9, 6), [5, 6, 7, 8]); // half of the staleness
        assert_eq!(course(period(2, 400), 0.9, 6), [3, 4, 5, 6, 7, 8]); // four times the configured one
        assert_eq!(course(period(4, 16), -0.2, 6), [3, 2]);
        assert!(course(period(4, 16), 0.3, 6).is_empty());
        assert_eq!(course(period(8, 16), 0.9, 15), [7, 6, 5, 4]); // agreed, but too late
        assert!(course(period(1, 0), 0.9, 1).is_empty());
        assert!(course(period(1, 0), -0.9, 1).is_empty());
    }

    #[test]
    fn a_swinging_load_does_not_swing_the_period() {
        let mut period = period(4, 16);
        let swing = |at: u32| if at.is_multiple_of(2) { 0.9 } else { -0.4 };
        assert_eq!((0..400).filter_map(|at| period.observe(swing(at), 6)).count(), 0);
        assert!((period.agreement() - 0.25).abs() < 0.2);
    }
}
