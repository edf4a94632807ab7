//! RaCoM, the ready-to-update asynchronous consistent model (MQ-GNN, arXiv:2601.04707): no rank waits for the others' gradients.
//!
//! A *contribution* is what a rank's own backward passes gave for a batch, over the batch's global events. A rank's step of
//! batch k takes its own contribution at once, and the others' that have come since its last step. It sums its contributions
//! up, and once it has a *window* of `period` batches and its last exchange is complete it joins the next exchange:
//!
//! ```text
//!  rank 0   batch  4   5   6   7 | 8   9  10  11  12 | 13 ..       |: joins with its window, goes on at once
//!                      exchange j ========>+           windows of other lengths are summed alike
//!  rank 1   batch  3   4   5   6 | 7   8   9  10 | 11 ..            +: the others' part goes into the step at hand
//! ```
//! Ranks need not be at the same batch, and a slow network makes windows longer rather than ranks slower.
//!
//! Invariants:
//! - A rank's windows have neither gap nor overlap, all ranks make the same exchanges, and from an exchange's sum a rank takes off
//!   its own part: each contribution is applied exactly once on each rank.
//! - The step of batch k waits until all contributions of batches up to k - `max_staleness` are here. Nobody else ever waits.
//! - So at an exchange that all joined after batch p or later, no rank passes p + `max_staleness` before it knows the outcome:
//!   what all must do after the same batch (a full sync because the parameters drifted apart, a stop) they do there.
//! - A full sync leaves equal parameters and moments: all windows are exchanged, the rest is applied, the mean is taken.
//! - With `max_staleness = 0` each batch waits for all of its contributions: an all-reduce, but for rounding.
//!
//! Moments are each rank's own between full syncs; the learning rate makes up for what lumps do to the second one
//! ([`second_moment_excess`]). There is no thread for the exchange: the thread that owns MPI carries the
//! messages, and sums are moved on when the rank looks, twice a batch. Absent: sums by NCCL, which the host's messages could
//! not go beside; rolling back (a gradient that is not finite ends the run, which resumes from its latest checkpoint).

mod exchange;
mod full_sync;
mod verdict;

pub use full_sync::{DIVERGENCE, Gathered};
pub use verdict::News;

use super::sync::Word;
use crate::comms::Communicator;
use crate::error::{Error, Result};
use crate::gradient::GradientConfig;
use crate::gradient::period::Period;
use crate::gradient::window::{Window, second_moment_excess};
use crate::stats::Timeline;
use exchange::Flight;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use tch::Tensor;
use tidemill_models::optimizer::grad_norm;
use tidemill_models::parameters::Parameters;

/// Messages between ranks that are no sums; above the numbers of passes' messages.
const WORDS: u64 = 1 << 63;

/// One rank's side of the asynchronous exchange.
pub struct Racom {
    comm: Communicator,
    max_staleness: usize,
    bound: f64,
    controller: Controller,
    /// Batches of the epoch that this rank has contributed to.
    position: usize,
    /// Its contributions that are in no exchange yet; `sum` is `[P]`.
    open: Window,
    sum: Option<Tensor>,
    /// Others' contributions that are in no step yet, `[P]`, and which parameters they move.
    arrived: Option<Tensor>,
    arrived_took_part: Vec<bool>,
    /// Batches of single ranks in the gradient at hand.
    contributions: usize,
    /// Up to which batch each rank's contributions are here.
    here: Vec<usize>,
    flight: Option<Flight>,
    /// Losses of the batches that not all ranks have told of, from `told` on.
    losses: VecDeque<f64>,
    told: usize,
    /// Drift of copies that ranks have told of since `told`.
    drift: (f64, f64),
    /// Sums and messages so far; all ranks make the same ones.
    sums: u64,
    words: u64,
    /// Where all ranks sync because they drifted apart so far, and where they stop.
    sync_at: Option<usize>,
    stop_at: Option<(usize, Word)>,
    news: Vec<News>,
}

/// What outlives a full sync: the period, and counts for the summary. Part of every checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Controller {
    period: Period,
    /// Exchanges made.
    pub exchanges: u64,
    /// Full syncs that the bound on divergence forced.
    pub forced: u64,
    /// Largest divergence that was found.
    pub divergence_max: f64,
    /// Oldest contribution applied, in batches: by this rank, by any as of the latest full sync.
    pub staleness_max: u64,
    /// The latest divergence found.
    pub divergence: f64,
    /// Norm of the latest exchange's sum, as of one batch.
    norm: f64,
    /// Batches of a rank in the latest exchange, on average.
    window: f64,
}

impl Racom {
    /// The exchange of a rank whose parameters are the others'.
    pub fn new(config: &GradientConfig, comm: Communicator) -> Racom {
        let controller = Controller {
            period: Period::new(config),
            exchanges: 0,
            forced: 0,
            divergence_max: 0.0,
            staleness_max: 0,
            divergence: 0.0,
            norm: 0.0,
            window: 0.0,
        };
        let here = vec![0; comm.world()];
        Racom {
            comm,
            max_staleness: config.max_staleness as usize,
            bound: config.divergence_bound,
            controller,
            position: 0,
            open: Window::default(),
            sum: None,
            arrived: None,
            arrived_took_part: Vec::new(),
            contributions: 0,
            here,
            flight: None,
            losses: VecDeque::new(),
            told: 0,
            drift: (0.0, 0.0),
            sums: 0,
            words: 0,
            sync_at: None,
            stop_at: None,
            news: Vec::new(),
        }
    }

    /// Starts an epoch, or goes on with it after `batch` batches: all ranks have the same parameters and moments.
    pub fn begin(&mut self, batch: usize) {
        (self.position, self.told) = (batch, batch);
        self.open = Window { first: batch, end: batch, ..Window::default() };
        self.here.fill(batch);
        (self.sum, self.arrived, self.flight) = (None, None, None);
        (self.sync_at, self.stop_at, self.drift) = (None, None, (0.0, 0.0));
        self.losses.clear();
        self.news.clear();
    }

    /// The period and the counts.
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// Goes on with the period and the counts of a checkpoint.
    pub fn restore(&mut self, controller: Controller) {
        self.controller = controller;
    }

    /// What has happened since the last call, in order.
    pub fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    /// Whether all ranks stop after the batches done so far, and why.
    pub fn stops_here(&self) -> Option<Word> {
        self.stop_at.filter(|&(at, _)| at <= self.position).map(|(_, word)| word)
    }

    /// Whether all ranks sync after the batches done so far, because they had drifted apart.
    pub fn syncs_here(&self) -> bool {
        self.sync_at.is_some_and(|at| at <= self.position)
    }

    /// How many global batches the gradient at hand is as much as: a limit on a batch's gradient is one on so many.
    pub fn global_batches(&self) -> f64 {
        (self.contributions as f64 / self.comm.world() as f64).max(1.0)
    }

    /// What the learning rate is raised by: others' contributions come in lumps, which Adam's second moment makes too much of.
    pub fn rate_factor(&self) -> f64 {
        let Controller { window, period, .. } = &self.controller;
        second_moment_excess(self.comm.world(), *window, period.agreement())
    }

    /// Moves sums on that are under way.
    ///
    /// # Errors
    /// A lost peer.
    pub fn progress(&mut self) -> Result<()> {
        match &mut self.flight {
            Some(flight) => flight.sum.progress().map(|_| ()),
            None => Ok(()),
        }
    }

    /// Contributes a batch's gradient, and adds to it what has come from the others: what is to be stepped by. False if that is
    /// not finite, or the gradient or loss was not.
    ///
    /// # Errors
    /// A lost peer.
    pub fn contribute(&mut self, word: Word, parameters: &mut Parameters, times: &mut Timeline) -> Result<bool> {
        if !(word.loss.is_finite() && grad_norm(parameters.grads()).is_finite()) {
            return Ok(false);
        }
        self.add_own(word, parameters);
        let mut finite = self.take_in(times)?;
        if self.flight.is_none() && self.open.batches() >= self.controller.period.batches() {
            self.join(parameters)?;
        }
        while finite && self.oldest_missing() + self.max_staleness < self.position {
            if self.flight.is_none() {
                self.join(parameters)?;
            }
            finite = self.wait(times)?;
        }
        self.add_arrived(parameters);
        Ok(finite)
    }

    /// The first batch of which a contribution of some rank is not here.
    fn oldest_missing(&self) -> usize {
        self.here.iter().copied().min().unwrap_or(self.position)
    }

    fn add_own(&mut self, word: Word, parameters: &Parameters) {
        let open = &mut self.open;
        open.took_part.resize(parameters.names().count(), false);
        open.took_part.iter_mut().zip(parameters.spans()).for_each(|(took_part, span)| *took_part |= span.took_part);
        open.losses.push(word.loss);
        open.drift = (open.drift.0 + word.drift.0, open.drift.1 + word.drift.1);
        (open.stop, open.out_of_time) = (open.stop || word.stop, open.out_of_time || word.out_of_time);
        self.position += 1;
        open.end = self.position;
        self.contributions = 1;
        match &mut self.sum {
            Some(sum) => drop(sum.g_add_(parameters.grads())),
            None => self.sum = Some(parameters.grads().copy()),
        }
    }

    /// Adds what has arrived to the gradient.
    fn add_arrived(&mut self, parameters: &mut Parameters) {
        let Some(arrived) = self.arrived.take() else { return };
        let took_part: Vec<bool> =
            parameters.spans().zip(&self.arrived_took_part).map(|(span, &theirs)| span.took_part || theirs).collect();
        let sum = parameters.grads() + arrived;
        parameters.take_over_grads(&sum, &took_part).expect("a gradient of the same parameters");
    }
}

fn unreadable() -> Error {
    Error::Comms {
        problem: "a peer's words on its gradients can not be read".to_owned(),
        mend: "start the same program and configuration on every rank".to_owned(),
    }
}

#[cfg(test)]
mod tests;
