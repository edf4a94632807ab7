//! Timers of the pipeline's stages.

use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// The four stages of the pipeline, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Batches, negatives, samples, masks.
    Event,
    /// State reads, feature gathers, copies to the device.
    State,
    /// Forward, state commit, backward.
    Gradient,
    /// Gradient exchange, optimizer.
    Sync,
}

impl Stage {
    /// All stages in order.
    pub const ALL: [Stage; 4] = [Stage::Event, Stage::State, Stage::Gradient, Stage::Sync];

    /// The stage's name in reports.
    pub fn name(self) -> &'static str {
        ["event", "state", "gradient", "sync"][self as usize]
    }
}

/// How long each stage was busy.
#[derive(Clone, Copy, Debug, Default)]
pub struct StageTimes {
    busy: [Duration; 4],
}

impl StageTimes {
    /// Runs `work` on a stage's account.
    pub fn time<T>(&mut self, stage: Stage, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.add(stage, start.elapsed());
        result
    }

    /// Adds to a stage's account.
    pub fn add(&mut self, stage: Stage, busy: Duration) {
        self.busy[stage as usize] += busy;
    }

    /// Time a stage was busy.
    pub fn busy(&self, stage: Stage) -> Duration {
        self.busy[stage as usize]
    }
}
