//! What a remote row costs by either way: sent by its owner, or kept current by replay.
//!
//! Over a window, `F` = pushes x (bytes / bandwidth + the row's share of its messages' latency), `C` = updates x update time +
//! bytes x price of memory, and `rho = beta C / (alpha F + beta C)`: near 0 for rows that are cheap to replay, 1 for those that
//! nobody reads. A row is cached iff `rho <= tau_cache` (DepTGL, arXiv:2608.16305; algorithm page, section 5).

use serde::{Deserialize, Serialize};

/// What this machine and its network do in a second; measured at the start of a run, or given as `[calibration]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Calibration {
    /// From a send to the end of its receive, of a small message; seconds.
    pub latency_s: f64,
    /// Bytes a second between two ranks.
    pub bytes_per_s: f64,
    /// Seconds to replay one update of one row.
    pub update_s: f64,
}

impl Calibration {
    /// Whether every figure is a positive number, as a measured one is.
    pub fn is_complete(&self) -> bool {
        [self.latency_s, self.bytes_per_s, self.update_s].iter().all(|&x| x.is_finite() && x > 0.0)
    }
}

/// Seconds a byte that is held for a window.
const BYTE_PRICE_S: f64 = 1e-12;

/// Weighs sending against replay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Rates of the machine.
    pub rates: Calibration,
    /// Weight of communication.
    pub alpha: f64,
    /// Weight of replay and memory.
    pub beta: f64,
    /// Bytes of a row.
    pub row: u64,
    /// Bytes of s(peer), the memory that a mail carries.
    pub memory: u64,
    /// Bytes of an embedding.
    pub embedding: u64,
}

impl Costs {
    /// Weighted seconds of communication.
    pub fn communication(&self, messages: f64, rows: f64, memories: f64) -> f64 {
        let bytes = rows * self.row as f64 + memories * self.memory as f64;
        self.alpha * (messages * self.rates.latency_s + bytes / self.rates.bytes_per_s)
    }

    /// Weighted seconds of keeping `rows` rows current through `updates` updates over a window.
    pub fn replay(&self, updates: f64, rows: f64) -> f64 {
        self.beta * (updates * self.rates.update_s + rows * self.row as f64 * BYTE_PRICE_S)
    }

    /// rho, the share of replay in the two ways' costs; 1 for a row that is never sent.
    pub fn rho(&self, communication: f64, replay: f64) -> f64 {
        if communication <= 0.0 { 1.0 } else { replay / (communication + replay) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rho_grows_with_updates_and_shrinks_with_pushes() {
        let rates = Calibration { latency_s: 1e-4, bytes_per_s: 1e8, update_s: 1e-5 };
        let costs = Costs { rates, alpha: 1.0, beta: 1.0, row: 1000, memory: 400, embedding: 400 };
        let rho = |pushes: f64, updates: f64| {
            costs.rho(costs.communication(pushes / 10.0, pushes, 0.0), costs.replay(updates, 1.0))
        };
        assert!(rho(1.0, 1.0) < rho(1.0, 5.0) && rho(1.0, 5.0) > rho(3.0, 5.0));
        assert_eq!(rho(0.0, 1.0), 1.0);
        let even = Costs { alpha: 0.0, ..costs };
        assert_eq!(
            even.rho(even.communication(1.0, 1.0, 0.0), even.replay(1.0, 1.0)),
            1.0,
            "what is free is not saved"
        );
        assert!(!Calibration::default().is_complete() && rates.is_complete());
    }
}
