//! Stage 4, sync: the gradient exchange, the optimizer and the parameter commit.
//!
//! With `pipeline.staleness = 0` the stage runs inline: the next forward pass needs its result. With more it is a worker
//! ([`SyncWorker`]) that keeps the parameters of the latest commit for itself, so that the forward and the backward pass of
//! the next batches never see a step half done:
//!
//! ```text
//!  trainer's loop --gradient of k, [P]--> sync worker --parameters after k, [P]--> trainer's loop
//! ```
//! The way back is the parameter frontier: the loop starts a batch when at most `s` of those before it are still out.
//!
//! **All-reduce.** The flat gradient is summed in the order of the ranks, bucket by bucket (`comm.bucket_bytes`), all buckets in
//! flight at once, so the bits do not depend on the buckets. Autograd has no hook that says when a parameter's gradient is
//! complete, and needs none: the decoder's are once the pairs are scored, before the embeddings' gradients have come back from
//! other ranks and before the encoder's backward pass, and the decoder's parameters are the flat buffer's end. So that end is
//! sent off then ([`SyncStage::start_early`]), the rest after the backward pass. `bucket_bytes = 0` sends one message, after it.
//!
//! **RaCoM** ([`super::racom`]) takes the place of the all-reduce, and of the worker: nobody waits for it.

use super::flat_sum::FlatSum;
use super::racom::{Gathered, News, Racom};
use crate::comms::Communicator;
use crate::device::GpuSum;
use crate::error::Result;
use crate::gradient::{GradientConfig, GradientMode};
use crate::queue::{self, Gauge, Receiver, Sender};
use crate::stats::{self, Stage, Stall, Timeline};
use std::thread::JoinHandle;
use tch::Tensor;
use tidemill_models::optimizer::{LrSchedule, Optimizer, clip_norm, grad_norm};
use tidemill_models::parameters::Parameters;

/// Turns a batch's gradient into a step of the parameters.
pub struct SyncStage {
    optimizer: Optimizer,
    lr: f64,
    schedule: Option<LrSchedule>,
    clip_norm: Option<f64>,
    comm: Communicator,
    /// The ranks' GPUs, where all have one and NCCL connects them.
    gpus: Option<GpuSum>,
    /// Exchanges so far; all ranks make the same ones.
    exchanges: u64,
    /// The sum of the batch's gradients from an index on, if it is under way.
    early: Option<(i64, FlatSum)>,
    racom: Option<Box<Racom>>,
}

/// What one rank says of a batch beside its gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Word {
    /// Its share of the batch's loss; the loss, once exchanged.
    pub loss: f64,
    /// A rank was asked to stop after this batch.
    pub stop: bool,
    /// A rank's time is up after this batch.
    pub out_of_time: bool,
    /// Sum of the drifts that it found in copies, and of how many.
    pub drift: (f64, f64),
}

impl Word {
    /// Mean drift, if any copy was refreshed.
    pub fn mean_drift(&self) -> Option<f64> {
        (self.drift.1 > 0.0).then(|| self.drift.0 / self.drift.1)
    }
}

impl SyncStage {
    /// A stage around an optimizer with its learning rate, schedule and the longest gradient allowed.
    pub fn new(
        optimizer: Optimizer,
        lr: f64,
        schedule: Option<LrSchedule>,
        clip_norm: Option<f64>,
        comm: Communicator,
    ) -> SyncStage {
        SyncStage { optimizer, lr, schedule, clip_norm, comm, gpus: None, exchanges: 0, early: None, racom: None }
    }

    /// The same, its gradients going from GPU to GPU.
    pub fn between_gpus(self, gpus: Option<GpuSum>) -> SyncStage {
        SyncStage { gpus, ..self }
    }

    /// The same, exchanging gradients as configured.
    pub fn exchanging(self, config: &GradientConfig) -> SyncStage {
        let apart = config.mode == GradientMode::Racom && self.comm.world() > 1;
        SyncStage { racom: apart.then(|| Box::new(Racom::new(config, self.comm.clone()))), ..self }
    }

    /// The asynchronous exchange, where that is the mode.
    pub fn racom(&self) -> Option<&Racom> {
        self.racom.as_deref()
    }

    /// As [`SyncStage::racom`].
    pub fn racom_mut(&mut self) -> Option<&mut Racom> {
        self.racom.as_deref_mut()
    }

    /// Uses the time until a batch's gradient is complete: starts to sum what is, of [`SyncStage::exchange`] to come.
    ///
    /// * `from`: index from which on the flat gradient is complete.
    ///
    /// # Errors
    /// A lost peer.
    pub fn start_early(&mut self, parameters: &Parameters, from: i64) -> Result<()> {
        if let Some(racom) = &mut self.racom {
            return racom.progress();
        }
        let count = parameters.count() - from;
        if self.comm.world() > 1 && self.comm.has_buckets() && self.gpus.is_none() && count > 0 {
            let part = parameters.grads().narrow(0, from, count);
            self.early = Some((from, FlatSum::start(&self.comm, 3 * self.exchanges + 1, &part)?));
        }
        Ok(())
    }

    /// Sums the gradient, and what the ranks say of the batch, over all ranks; a rank without events gives zeros.
    ///
    /// Returns the gradient's Euclidean norm, not finite if any part of it is not, and the word of all.
    ///
    /// # Errors
    /// A lost peer.
    pub fn exchange(&mut self, parameters: &mut Parameters, word: Word) -> Result<(f64, Word)> {
        if self.comm.world() == 1 {
            return Ok((grad_norm(parameters.grads()), word));
        }
        let flags = [word.stop, word.out_of_time].map(|flag| f64::from(u8::from(flag)));
        let mut said = vec![word.loss, flags[0], flags[1], word.drift.0, word.drift.1];
        said.extend(parameters.spans().map(|span| f64::from(u8::from(span.took_part))));
        let pending = self.comm.start_sum(3 * self.exchanges, said)?;
        let summed = self.summed(parameters.grads())?;
        self.exchanges += 1;
        let said = pending.wait()?;
        let took_part: Vec<bool> = said[5..].iter().map(|&ranks| ranks > 0.0).collect();
        parameters.take_over_grads(&summed, &took_part).expect("a gradient of the same parameters");
        let (stop, out_of_time) = (said[1] > 0.0, said[2] > 0.0);
        let word = Word { loss: said[0], stop, out_of_time, drift: (said[3], said[4]) };
        Ok((grad_norm(parameters.grads()), word))
    }

    /// The flat gradient summed over the ranks, `[P]`.
    fn summed(&mut self, grads: &Tensor) -> Result<Tensor> {
        if let Some(gpus) = &self.gpus {
            let mut sum = grads.copy();
            gpus.sum(&mut sum)?;
            return Ok(sum);
        }
        let early = self.early.take();
        let rest = early.as_ref().map_or(grads.size()[0], |(from, _)| *from);
        let rest = FlatSum::start(&self.comm, 3 * self.exchanges + 2, &grads.narrow(0, 0, rest))?;
        match early {
            Some((_, early)) => {
                let early = early.wait()?; // its first messages left before the rest's
                Ok(Tensor::cat(&[rest.wait()?, early], 0))
            }
            None => rest.wait(),
        }
    }

    /// Gradient exchanges so far.
    pub fn exchanges(&self) -> u64 {
        self.racom.as_ref().map_or(self.exchanges, |racom| racom.controller().exchanges)
    }

    /// Under RaCoM: adds what has come from the others to a batch's own gradient, which is then what to step by. False if it is
    /// not finite: no step may follow.
    ///
    /// # Errors
    /// A lost peer.
    pub fn contribute(&mut self, word: Word, parameters: &mut Parameters, times: &mut Timeline) -> Result<bool> {
        self.racom.as_mut().expect("the mode is racom").contribute(word, parameters, times)
    }

    /// Under RaCoM, on all ranks after the same batch: applies what is not applied yet, and makes parameters and moments equal.
    /// False if that is not finite.
    ///
    /// # Errors
    /// A lost peer.
    pub fn sync_fully(
        &mut self,
        parameters: &mut Parameters,
        total: u64,
        reason: &'static str,
        times: &mut Timeline,
    ) -> Result<bool> {
        let Some(racom) = &mut self.racom else { return Ok(true) };
        match racom.gather(parameters, times)? {
            Gathered::NotFinite => return Ok(false),
            Gathered::Rest => self.step(parameters, None, total),
            Gathered::Nothing => {}
        }
        let racom = self.racom.as_mut().expect("as above");
        racom.average(parameters, &mut self.optimizer, reason).map(|()| true)
    }

    /// Under RaCoM: what has happened since the last call.
    pub fn take_news(&mut self) -> Vec<News> {
        self.racom.as_mut().map(|racom| racom.take_news()).unwrap_or_default()
    }

    /// One optimizer step, after clipping; zeroes the gradient.
    ///
    /// * `norm`: the gradient's, where it is known. * `total`: steps that the run is planned to take, for the learning rate's
    ///   schedule.
    pub fn step(&mut self, parameters: &mut Parameters, norm: Option<f64>, total: u64) {
        if let Some(longest) = self.clip_norm {
            let batches = self.racom.as_ref().map_or(1.0, |racom| racom.global_batches());
            let norm = norm.unwrap_or_else(|| grad_norm(parameters.grads()));
            clip_norm(parameters, norm, longest * batches);
        }
        let rate = |schedule: LrSchedule| schedule.rate(self.lr, self.optimizer.steps(), total);
        let lr = self.schedule.map_or(self.lr, rate);
        let lumps = self.racom.as_ref().map_or(1.0, |racom| racom.rate_factor());
        self.optimizer.step(parameters, lr * lumps);
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

/// A batch's gradient on its way to the worker.
struct Gradient {
    batch: usize,
    word: Word,
    /// `[P]`; comes back with the parameters in it.
    numbers: Tensor,
    took_part: Vec<bool>,
}

/// What became of a batch's gradient.
pub enum Step {
    /// The parameter commit: the batch with this loss and gradient norm can no longer be taken back.
    Taken {
        /// Euclidean norm of its gradient.
        norm: f64,
        /// What the ranks said of it.
        word: Word,
    },
    /// A rank is lost.
    Failed(crate::error::Error),
    /// Loss or gradient is not finite. No step was taken, none will follow.
    Refused {
        /// The batch.
        batch: usize,
        /// Its loss.
        loss: f64,
    },
}

struct Answer {
    step: Step,
    numbers: Tensor,
}

/// The sync stage on a thread of its own, for `pipeline.staleness > 0`.
pub struct SyncWorker {
    gradients: Sender<Gradient>,
    gauge: Gauge<Gradient>,
    answers: Receiver<Answer>,
    worker: JoinHandle<(SyncStage, Timeline)>,
    /// Batches whose gradient is out.
    out: usize,
    free: Vec<Tensor>,
}

impl SyncWorker {
    /// Starts the worker on parameters whose gradient is zero.
    ///
    /// * `staleness`: most batches that may be out when one is added. * `total`: as for [`SyncStage::step`].
    pub fn start(
        stage: SyncStage,
        parameters: &Parameters,
        total: u64,
        staleness: usize,
        timeline: &Timeline,
    ) -> SyncWorker {
        let (gradients, work) = queue::bounded(staleness + 1);
        let (done, answers) = queue::bounded(staleness + 1);
        let (own, times) = (parameters.twin(), timeline.twin());
        let worker = super::workers::spawn(Stage::Sync, move || sync_all(stage, own, total, work, done, times));
        let gauge = gradients.gauge();
        SyncWorker { gradients, gauge, answers, worker, out: 0, free: Vec::new() }
    }

    /// Batches whose parameter commit has not come back.
    pub fn out(&self) -> usize {
        self.out
    }

    /// Sends a batch's gradient off and zeroes it.
    pub fn send(&mut self, batch: usize, word: Word, parameters: &mut Parameters) {
        let mut numbers = self.free.pop().unwrap_or_else(|| parameters.grads().empty_like());
        numbers.copy_(parameters.grads());
        let took_part = parameters.spans().map(|span| span.took_part).collect();
        parameters.zero_grads();
        self.out += 1;
        // A worker that is gone has refused an earlier batch, or panicked: `receive` tells.
        let _ = self.gradients.send(Gradient { batch, word, numbers, took_part });
    }

    /// The next answer, which is waited for while more than `most` batches are out; `parameters` become those it brings. One
    /// that comes earlier is taken only if `early`: several ranks take their steps after the same batches.
    ///
    /// `Some(None)`: the worker panicked; [`SyncWorker::join`] has its words.
    pub fn receive(
        &mut self,
        (most, early): (usize, bool),
        parameters: &mut Parameters,
        times: &mut Timeline,
    ) -> Option<Option<Step>> {
        let answer = if self.out > most {
            times.wait(Stage::Gradient, Stall::Hazard, || self.answers.recv())
        } else if early {
            Some(self.answers.try_recv()?)
        } else {
            return None;
        };
        let Some(Answer { step, numbers }) = answer else { return Some(None) };
        self.out -= 1;
        if let Step::Taken { .. } = step {
            parameters.set_values(&numbers).expect("a twin's values");
        }
        self.free.push(numbers);
        Some(Some(step))
    }

    /// Ends the worker once it has done what it was sent, and gives the stage back.
    ///
    /// # Panics
    /// With the worker's own panic, if it had one.
    pub fn join(self, times: &mut Timeline) -> SyncStage {
        drop(self.gradients);
        let (stage, own) = self.worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        times.merge(own);
        times.add_queue(stats::Queue::Gradients, &self.gauge.stats());
        stage
    }
}

fn sync_all(
    mut stage: SyncStage,
    mut parameters: Parameters,
    total: u64,
    mut gradients: Receiver<Gradient>,
    mut answers: Sender<Answer>,
    mut times: Timeline,
) -> (SyncStage, Timeline) {
    while let Some(gradient) = times.wait(Stage::Sync, Stall::Empty, || gradients.recv()) {
        let Gradient { batch, word, mut numbers, took_part } = gradient;
        let step = times.time(Stage::Sync, batch, || {
            parameters.take_over_grads(&numbers, &took_part).expect("a twin's gradient");
            let (norm, word) = match stage.exchange(&mut parameters, word) {
                Ok(exchanged) => exchanged,
                Err(error) => return Step::Failed(error),
            };
            if !(word.loss.is_finite() && norm.is_finite()) {
                return Step::Refused { batch, loss: word.loss };
            }
            stage.step(&mut parameters, Some(norm), total);
            numbers.copy_(&parameters.values().detach());
            Step::Taken { norm, word }
        });
        let last = !matches!(step, Step::Taken { .. });
        if answers.send(Answer { step, numbers }).is_err() || last {
            break;
        }
    }
    (stage, times)
}
