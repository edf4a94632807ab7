//! The cost curve: what an epoch of training would send and replay at each threshold `dependency.tau_cache`.
//!
//! The planner of a run shares out every batch, once for each threshold; what it plans is what would be sent. Seconds come from
//! `[calibration]`, or from a 1 Gbit/s network where the configuration has none.

use super::measure::Batches;
use crate::config::Config;
use crate::dependency::window::{WindowNeeds, thresholds};
use crate::dependency::{Calibration, Costs, GlobalBatch, PassFacts, Planner, Policy, Traffic, Weights};
use crate::partition::{Partition, Rank};
use crate::sampler::SampleScratch;
use crate::setting::Auto;
use rayon::prelude::*;
use serde::Serialize;
use std::sync::Arc;

/// What is assumed of a network that nobody measured: 1 Gbit/s, 100 us, 5 us a replayed update.
const ASSUMED: Calibration = Calibration { latency_s: 1e-4, bytes_per_s: 1.1e8, update_s: 5e-6 };

/// An epoch at all thresholds.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Curve {
    /// The rates that seconds are made with.
    pub(super) calibration: Calibration,
    /// They are the configuration's own.
    pub(super) calibrated: bool,
    /// In the order of the thresholds, the configuration's own value behind them if it is another.
    pub(super) points: Vec<CurvePoint>,
    /// The cheapest of them.
    pub(super) best: f64,
    /// The configuration's.
    pub(super) configured: Auto<f64>,
}

/// An epoch at one threshold, over all ranks.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct CurvePoint {
    /// The threshold; `"auto"`: chosen window by window.
    pub(super) tau: Auto<f64>,
    /// Rows, embeddings, messages, updates.
    #[serde(flatten)]
    pub(super) traffic: Traffic,
    /// Share of the remote rows that a replica serves.
    pub(super) cached_share: f64,
    /// Bytes of rows, of s(peer) and of embeddings both ways.
    pub(super) bytes: u64,
    /// alpha times the seconds of sending, over all ranks.
    pub(super) communication_s: f64,
    /// beta times the seconds of replay.
    pub(super) replay_s: f64,
}

impl CurvePoint {
    /// Both together.
    pub(super) fn cost(&self) -> f64 {
        self.communication_s + self.replay_s
    }
}

impl Curve {
    /// Plans an epoch at each threshold.
    ///
    /// * `costs`: of the configured model's rows and embeddings.
    pub(super) fn of(
        config: &Config,
        (costs, weights): (Costs, Weights),
        batches: &Batches<'_>,
        partition: &Partition,
    ) -> Curve {
        let calibrated = config.calibration.is_complete();
        let rates = if calibrated { config.calibration } else { ASSUMED };
        let (costs, stream) = (Costs { rates, ..costs }, batches.stream);
        let mut taus: Vec<Auto<f64>> = thresholds().map(Auto::Value).collect();
        if !taus.contains(&config.dependency.tau_cache) {
            taus.push(config.dependency.tau_cache);
        }
        let partition = Arc::new(partition.clone());
        let point = |&tau: &Auto<f64>| {
            let facts = PassFacts { training: true, blank: true, writes: true, embeddings_mailed: false };
            let policy = Policy { tau, costs, gated: false, corrections: None, looks_ahead: false };
            let delegate = config.delegate();
            let planner = Planner::new(Rank(0), stream, partition.clone(), delegate, weights, facts);
            let planner = if policy.follows() { planner.with_policy(policy) } else { planner };
            plan(planner, batches, tau, &costs)
        };
        let points: Vec<CurvePoint> = taus.par_iter().map(point).collect();
        let grid = points.iter().filter(|point| point.tau != Auto::Auto);
        let best = grid.min_by(|a, b| a.cost().total_cmp(&b.cost())).map_or(Auto::Value(0.0), |point| point.tau);
        let Auto::Value(best) = best else { unreachable!("thresholds are numbers") };
        Curve { calibration: rates, calibrated, points, best, configured: config.dependency.tau_cache }
    }
}

fn plan(mut planner: Planner, batches: &Batches<'_>, tau: Auto<f64>, costs: &Costs) -> CurvePoint {
    let (mut scratch, mut traffic, mut needs) = (SampleScratch::default(), Traffic::default(), (0, 0));
    for batch in 0..batches.count() {
        if let Some(window) = planner.window_to_inspect(batch) {
            let (mut inspector, mut found) = (planner.inspector(), WindowNeeds::default());
            for batch in window {
                let roots = batches.roots(batch);
                inspector.inspect(&global(batches, batch, &roots), &mut scratch, &mut found);
            }
            planner.open_window(&found);
        }
        let roots = batches.roots(batch);
        let share = planner.share(&global(batches, batch, &roots), &mut scratch);
        traffic.add(&share.traffic);
        needs = (needs.0 + share.counts.cached, needs.1 + share.counts.remote);
    }
    let embeddings = 2 * traffic.embeddings * costs.embedding;
    let bytes = traffic.rows * costs.row + traffic.memories * costs.memory + embeddings;
    let embedded = embeddings as f64 / costs.row as f64;
    CurvePoint {
        tau,
        traffic,
        cached_share: needs.0 as f64 / needs.1.max(1) as f64,
        bytes,
        communication_s: costs.communication(
            traffic.messages as f64,
            traffic.rows as f64 + embedded,
            traffic.memories as f64,
        ),
        replay_s: costs.replay(traffic.updates as f64, 0.0),
    }
}

fn global<'a>(batches: &'a Batches<'_>, batch: usize, roots: &'a [crate::sampler::Root]) -> GlobalBatch<'a> {
    let positions = batches.positions(batch);
    GlobalBatch {
        number: batch,
        first: positions.start,
        events: &batches.events[positions],
        roots,
        key: batches.key(batch),
        sampler: &batches.sampler,
        cache: None,
        known: 0,
    }
}
