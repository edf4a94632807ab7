//! Stage 4, sync: the gradient exchange, the optimizer and the parameter commit.

use tidemill_models::optimizer::{LrSchedule, Optimizer, clip_norm, grad_norm};
use tidemill_models::parameters::Parameters;

/// Turns a batch's gradient into a step of the parameters.
pub struct SyncStage {
    optimizer: Optimizer,
    lr: f64,
    schedule: Option<LrSchedule>,
    clip_norm: Option<f64>,
}

impl SyncStage {
    /// A stage around an optimizer with its learning rate, schedule and the longest gradient allowed.
    pub fn new(optimizer: Optimizer, lr: f64, schedule: Option<LrSchedule>, clip_norm: Option<f64>) -> SyncStage {
        SyncStage { optimizer, lr, schedule, clip_norm }
    }

    /// Euclidean norm of the whole gradient, summed over ranks; not finite if any part of it is not.
    pub fn exchange(&self, parameters: &Parameters) -> f64 {
        grad_norm(parameters.grads())
    }

    /// One optimizer step, after clipping; zeroes the gradient.
    ///
    /// * `total`: steps that the run is planned to take, for the learning rate's schedule.
    pub fn step(&mut self, parameters: &mut Parameters, total: u64) {
        if let Some(longest) = self.clip_norm {
            clip_norm(parameters, longest);
        }
        let rate = |schedule: LrSchedule| schedule.rate(self.lr, self.optimizer.steps(), total);
        let lr = self.schedule.map_or(self.lr, rate);
        self.optimizer.step(parameters, lr);
        parameters.zero_grads();
    }

    /// The optimizer, for checkpoints.
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// The optimizer, to restore it.
    pub fn optimizer_mut(&mut self) -> &mut Optimizer {
        &mut self.optimizer
    }
}
