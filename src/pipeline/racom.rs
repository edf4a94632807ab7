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

use super::flat_sum::FlatSum;
use super::sync::Word;
use crate::comms::{Communicator, Purpose, Tag};
use crate::error::{Error, Result};
use crate::gradient::GradientConfig;
use crate::gradient::period::{Change, Period};
use crate::gradient::sketch::{divergence, sketch};
use crate::gradient::window::{Window, agreement, second_moment_excess};
use crate::stats::Timeline;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::Instant;
use tch::{Kind, Tensor};
use tidemill_models::optimizer::{Optimizer, grad_norm};
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

/// What an exchange under way needs to be taken in.
struct Flight {
    started: Instant,
    own: Tensor,
    sum: FlatSum,
    number: u64,
    windows: Vec<Option<Window>>,
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

    /// Joins the next exchange with the contributions since the last, and returns at once.
    fn join(&mut self, parameters: &Parameters) -> Result<()> {
        let own = self.sum.take().unwrap_or_else(|| parameters.grads().zeros_like());
        let next = Window { first: self.position, end: self.position, ..Window::default() };
        let mut window = std::mem::replace(&mut self.open, next);
        window.took_part.resize(parameters.names().count(), false);
        window.norm = grad_norm(&own);
        window.sketch = sketch_of(parameters.values());
        let number = self.say(&window.to_bytes())?;
        let sum = self.start_sum(&own)?;
        let mut windows = vec![None; self.comm.world()];
        windows[self.comm.rank()] = Some(window);
        self.flight = Some(Flight { started: Instant::now(), own, sum, number, windows });
        Ok(())
    }

    fn start_sum(&mut self, tensor: &Tensor) -> Result<FlatSum> {
        self.sums += 1;
        FlatSum::start(&self.comm, self.sums, tensor)
    }

    /// Sends the same words to all others; their number.
    fn say(&mut self, bytes: &[u8]) -> Result<u64> {
        let tag = Tag { purpose: Purpose::Gradient, sequence: WORDS | self.words };
        self.words += 1;
        self.peers().try_for_each(|peer| self.comm.send(peer, tag, bytes.to_vec()))?;
        Ok(tag.sequence)
    }

    fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.comm.rank();
        (0..self.comm.world()).filter(move |&rank| rank != own)
    }

    /// Takes the exchange under way in if it is complete; false if it is not finite.
    fn take_in(&mut self, times: &mut Timeline) -> Result<bool> {
        let peers = self.peers();
        let Some(flight) = &mut self.flight else { return Ok(true) };
        let mut complete = flight.sum.progress()?;
        for peer in peers.filter(|&peer| flight.windows[peer].is_none()).collect::<Vec<_>>() {
            let tag = Tag { purpose: Purpose::Gradient, sequence: flight.number };
            match self.comm.try_receive(peer, tag)? {
                Some(message) => flight.windows[peer] = Some(window(&message.bytes)?),
                None => complete = false,
            }
        }
        if complete { self.wait(times) } else { Ok(true) }
    }

    /// Takes the exchange under way in once it is complete; false if it is not finite.
    fn wait(&mut self, times: &mut Timeline) -> Result<bool> {
        let Some(flight) = self.flight.take() else { return Ok(true) };
        let total = flight.sum.wait()?;
        let tag = Tag { purpose: Purpose::Gradient, sequence: flight.number };
        let mut windows = Vec::new();
        for (peer, known) in flight.windows.into_iter().enumerate() {
            windows.push(match known {
                Some(window) => window,
                None => window(&self.comm.receive(peer, tag)?.bytes)?,
            });
        }
        times.add_exchange(windows[self.comm.rank()].end.saturating_sub(1), flight.started);
        let norm = grad_norm(&total);
        self.arrive(&(total - flight.own), &windows);
        self.note(&windows);
        self.judge(&windows, norm);
        Ok(norm.is_finite())
    }

    /// Keeps the others' part of a sum for the next step.
    fn arrive(&mut self, others: &Tensor, windows: &[Window]) {
        let own = self.comm.rank();
        for (rank, window) in windows.iter().enumerate() {
            assert_eq!(window.first, self.here[rank], "a rank's windows follow each other");
            self.here[rank] = window.end;
            if rank == own || window.batches() == 0 {
                continue;
            }
            self.contributions += window.batches();
            let age = (self.position - 1).saturating_sub(window.first) as u64;
            self.controller.staleness_max = self.controller.staleness_max.max(age);
        }
        let theirs = || windows.iter().enumerate().filter(|&(rank, window)| rank != own && window.batches() > 0);
        if theirs().next().is_none() {
            return;
        }
        match &mut self.arrived {
            Some(arrived) => drop(arrived.g_add_(others)),
            None => {
                self.arrived = Some(others.copy());
                self.arrived_took_part.clear();
            }
        }
        for (_, window) in theirs() {
            self.arrived_took_part.resize(window.took_part.len(), false);
            self.arrived_took_part.iter_mut().zip(&window.took_part).for_each(|(ours, &theirs)| *ours |= theirs);
        }
    }

    /// Adds up the ranks' shares of losses; batches of which all have told are news.
    fn note(&mut self, windows: &[Window]) {
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
    fn judge(&mut self, windows: &[Window], norm: f64) {
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

    /// First half of a full sync, called by all ranks after the same batch: every contribution is here. What of them was in no
    /// step yet is added to the gradient, which the caller has zeroed.
    ///
    /// # Errors
    /// A lost peer.
    pub fn gather(&mut self, parameters: &mut Parameters, times: &mut Timeline) -> Result<Gathered> {
        self.contributions = 0;
        loop {
            if self.flight.is_none() {
                if self.here.iter().all(|&here| here == self.position) {
                    break;
                }
                self.join(parameters)?;
            }
            if !self.wait(times)? {
                return Ok(Gathered::NotFinite);
            }
        }
        let rest = self.arrived.is_some();
        self.add_arrived(parameters);
        Ok(if rest { Gathered::Rest } else { Gathered::Nothing })
    }

    /// Second half: parameters and moments become the ranks' mean.
    ///
    /// # Errors
    /// A lost peer.
    pub fn average(
        &mut self,
        parameters: &mut Parameters,
        optimizer: &mut Optimizer,
        reason: &'static str,
    ) -> Result<()> {
        let (first, second) = optimizer.moments();
        let flat = Tensor::cat(&[&parameters.values().detach(), first, second], 0);
        let mean = self.start_sum(&flat)?.wait()? / self.comm.world() as f64;
        let parts = mean.split(parameters.count(), 0);
        let [values, first, second] = [&parts[0], &parts[1], &parts[2]];
        let apart = length(&(parameters.values().detach() - values)) / length(values).max(f64::MIN_POSITIVE);
        let (mut farthest, mut steps, mut own_steps) = (apart, optimizer.steps(), optimizer.own_steps().to_vec());
        let mut words = vec![apart.to_bits(), steps, self.controller.staleness_max];
        words.extend(&own_steps);
        let sequence = self.say(bytemuck::cast_slice(&words))?;
        for peer in self.peers() {
            let bytes = self.comm.receive(peer, Tag { purpose: Purpose::Gradient, sequence })?.bytes;
            let words: Vec<u64> = bytemuck::allocation::pod_collect_to_vec(&bytes);
            let [theirs_apart, theirs_steps, age, theirs @ ..] = &words[..] else { return Err(unreadable()) };
            if theirs.len() != own_steps.len() {
                return Err(unreadable());
            }
            farthest = farthest.max(f64::from_bits(*theirs_apart));
            steps = steps.max(*theirs_steps);
            self.controller.staleness_max = self.controller.staleness_max.max(*age);
            own_steps.iter_mut().zip(theirs).for_each(|(own, &theirs)| *own = (*own).max(theirs));
        }
        optimizer.restore(steps, &own_steps, first, second)?;
        parameters.set_values(values)?;
        let reason = self.sync_at.take().map_or(reason, |_| DIVERGENCE);
        self.controller.forced += u64::from(reason == DIVERGENCE);
        self.controller.divergence_max = self.controller.divergence_max.max(farthest);
        self.controller.divergence = 0.0;
        if let Some((at, _)) = &mut self.stop_at {
            *at = self.position; // all ranks are here, and know of it
        }
        self.news.push(News::Synced { batch: self.position, reason, divergence: farthest });
        Ok(())
    }
}

/// What a full sync found still to be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gathered {
    /// Nothing.
    Nothing,
    /// The gradient at hand.
    Rest,
    /// A gradient that is not finite.
    NotFinite,
}

/// Why a full sync is forced.
pub const DIVERGENCE: &str = "divergence";

fn sketch_of(values: &Tensor) -> Vec<f32> {
    let values = Vec::<f64>::try_from(values.detach().to_kind(Kind::Double)).expect("a flat tensor");
    sketch(values.into_iter())
}

fn length(flat: &Tensor) -> f64 {
    grad_norm(flat)
}

fn window(bytes: &[u8]) -> Result<Window> {
    Window::from_bytes(bytes).ok_or_else(unreadable)
}

fn unreadable() -> Error {
    Error::Comms {
        problem: "a peer's words on its gradients can not be read".to_owned(),
        mend: "start the same program and configuration on every rank".to_owned(),
    }
}

#[cfg(test)]
mod tests;
