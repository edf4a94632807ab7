//! The sync stage as the trainer's loop meets it: a batch's gradient goes in, its parameter commit comes out, at once or, with
//! `pipeline.staleness > 0`, a few batches later.

use super::{EpochEnd, TrainedBatch, Trainer};
use crate::error::{Error, Result};
use crate::pipeline::racom::{DIVERGENCE, News, Racom};
use crate::pipeline::state::ReadyBatch;
use crate::pipeline::sync::{Step, SyncStage, SyncWorker, Word};
use crate::sampler::SampleHash;
use crate::stats::{Seen, Stage};
use serde_json::json;
use std::time::Instant;
use tch::Tensor;
use tidemill_models::input::Scored;

/// Who has the sync stage.
pub(super) enum Syncing {
    /// The trainer.
    Here(SyncStage),
    /// A worker, while batches without parameter commit are out.
    Away(SyncWorker),
    /// Between the two.
    Moving,
}

impl Syncing {
    /// The stage; it is here whenever no epoch is under way.
    pub(super) fn stage(&self) -> &SyncStage {
        match self {
            Syncing::Here(stage) => stage,
            _ => unreachable!("batches are out"),
        }
    }

    /// As [`Syncing::stage`].
    pub(super) fn stage_mut(&mut self) -> &mut SyncStage {
        match self {
            Syncing::Here(stage) => stage,
            _ => unreachable!("batches are out"),
        }
    }
}

/// What is kept of a batch until its parameter commit.
pub(super) struct Uncommitted {
    pub(super) batch: usize,
    pub(super) events: usize,
    pub(super) hash: SampleHash,
}

impl Trainer {
    /// Before a batch's backward pass: the exchange of what its loss has given starts.
    pub(super) fn start_exchange(&mut self) -> Result<()> {
        match &mut self.sync {
            Syncing::Here(stage) if self.pipeline.staleness() == 0 || stage.racom().is_some() => {
                let complete = self.model.complete_once_scored();
                stage.start_early(self.model.parameters(), complete)
            }
            _ => Ok(()), // the worker is sent the gradient as a whole
        }
    }

    /// After a batch's backward pass: the batch hook, then the gradient exchange and the optimizer, or the way there.
    ///
    /// * `rows`: `[N, D_m]`, for the hook.
    pub(super) fn sync_batch(&mut self, batch: &ReadyBatch, scored: &Scored, rows: Option<&Tensor>) -> Result<()> {
        let plan = &batch.plan;
        let uncommitted = Uncommitted { batch: plan.batch, events: plan.all.len(), hash: batch.hash };
        let word = self.word(scored.loss);
        if matches!(&self.sync, Syncing::Here(stage) if stage.racom().is_some()) {
            return self.sync_apart(batch, scored, rows, uncommitted, word);
        }
        if self.pipeline.staleness() > 0 {
            self.call_batch_hook(batch, scored, rows);
            self.send_off(uncommitted, word);
            return self.settle(self.pipeline.staleness());
        }
        let start = Instant::now();
        let (norm, word) = self.sync.stage_mut().exchange(self.model.parameters_mut(), word)?;
        if !(word.loss.is_finite() && norm.is_finite()) {
            return self.refuse(plan.batch, word.loss);
        }
        self.call_batch_hook(batch, scored, rows);
        self.sync.stage_mut().step(self.model.parameters_mut(), Some(norm), self.history.planned_batches);
        self.pipeline.commit_parameters();
        self.pipeline.timeline().add(Stage::Sync, plan.batch, start);
        self.record(&uncommitted, norm, word)
    }

    /// Under RaCoM: the step is taken at once, and the batch counts once all ranks have told of theirs.
    fn sync_apart(
        &mut self,
        batch: &ReadyBatch,
        scored: &Scored,
        rows: Option<&Tensor>,
        uncommitted: Uncommitted,
        word: Word,
    ) -> Result<()> {
        let start = Instant::now();
        let number = uncommitted.batch;
        self.uncommitted.push_back(uncommitted);
        let times = self.pipeline.timeline();
        if !self.sync.stage_mut().contribute(word, self.model.parameters_mut(), times)? {
            return self.refuse_apart(number, word.loss);
        }
        self.call_batch_hook(batch, scored, rows);
        self.sync.stage_mut().step(self.model.parameters_mut(), None, self.history.planned_batches);
        self.pipeline.commit_parameters();
        self.pipeline.timeline().add(Stage::Sync, number, start);
        self.take_news()?;
        if self.sync.stage().racom().is_some_and(Racom::syncs_here) {
            self.sync_fully(DIVERGENCE)?;
        }
        self.note_stop();
        Ok(())
    }

    /// Under RaCoM: whether all ranks stop after the batches done so far.
    fn note_stop(&mut self) {
        if let Some(word) = self.sync.stage().racom().and_then(Racom::stops_here) {
            (self.agreed.stop, self.agreed.out_of_time) = (word.stop, word.out_of_time);
        }
    }

    /// Under RaCoM, on all ranks after the same batch: equal parameters and moments, every batch counted.
    fn sync_fully(&mut self, reason: &'static str) -> Result<()> {
        let start = Instant::now();
        let (total, times) = (self.history.planned_batches, self.pipeline.timeline());
        if !self.sync.stage_mut().sync_fully(self.model.parameters_mut(), total, reason, times)? {
            return self.refuse_apart(self.history.batch, 0.0);
        }
        self.pipeline.timeline().add(Stage::Sync, self.history.batch, start);
        self.take_news()
    }

    /// Counts and logs what the exchange has brought.
    fn take_news(&mut self) -> Result<()> {
        for news in self.sync.stage_mut().take_news() {
            let epoch = self.history.epoch;
            match news {
                News::Batch { loss, norm, drift } => {
                    let batch = self.uncommitted.pop_front().expect("ranks tell of batches in order");
                    self.record(&batch, norm, Word { loss, drift, ..Word::default() })?;
                }
                News::Synced { batch, reason, divergence } => {
                    let record = json!({ "epoch": epoch, "batch": batch, "reason": reason, "divergence": divergence });
                    self.log("sync", &record)?;
                }
                News::Period(batch, change) => {
                    let (what, from, to, reason) = ("gradient.period", change.from, change.to, change.reason);
                    let record = json!({ "epoch": epoch, "batch": batch, "what": what, "from": from, "to": to, "reason": reason });
                    self.log("adapt", &record)?;
                }
            }
        }
        Ok(())
    }

    /// Under RaCoM the ranks stand at different batches, so there is no state of all to keep but the latest checkpoint's.
    fn refuse_apart(&mut self, batch: usize, loss: f64) -> Result<()> {
        let what = if loss.is_finite() { "gradient" } else { "loss" };
        self.abandon();
        Err(Error::NonFiniteApart { what, epoch: self.history.epoch, batch })
    }

    /// What this rank says of a batch: its share of the loss, and whether it is to stop.
    fn word(&self, loss: f64) -> Word {
        let limit = self.config.train.max_seconds;
        let (sum, rows) = if self.comm.world() == 1 { (0.0, 0) } else { self.pipeline.untold_drift() };
        Word {
            loss,
            stop: self.run.as_ref().is_some_and(|run| run.stop.requested()),
            out_of_time: limit > 0.0 && self.history.train_seconds() + self.lap.elapsed().as_secs_f64() >= limit,
            drift: (sum, rows as f64),
        }
    }

    fn call_batch_hook(&mut self, batch: &ReadyBatch, scored: &Scored, rows: Option<&Tensor>) {
        let Some(rows) = rows else { return };
        let memory = self.pipeline.memory();
        self.hooks.batch(&TrainedBatch {
            epoch: self.history.epoch,
            plan: &batch.plan,
            input: &batch.input,
            rows,
            scored,
            parameters: self.model.parameters(),
            memory: &memory,
        });
    }

    /// Sends the gradient to the sync worker, which is started if it does not run.
    fn send_off(&mut self, batch: Uncommitted, word: Word) {
        let parameters = self.model.parameters_mut();
        if let Syncing::Here(_) = self.sync {
            let Syncing::Here(stage) = std::mem::replace(&mut self.sync, Syncing::Moving) else { unreachable!() };
            let (total, most) = (self.history.planned_batches, self.pipeline.staleness());
            let worker = SyncWorker::start(stage, parameters, total, most, self.pipeline.timeline());
            self.sync = Syncing::Away(worker);
        }
        let Syncing::Away(worker) = &mut self.sync else { unreachable!("just started") };
        worker.send(batch.batch, word, parameters);
        self.uncommitted.push_back(batch);
    }

    /// The parameter frontier: takes in the commits that came back, and waits for more while over `most` batches are out.
    pub(super) fn settle(&mut self, most: usize) -> Result<()> {
        let how = (most, self.comm.world() == 1);
        while let Syncing::Away(worker) = &mut self.sync {
            let Some(step) = worker.receive(how, self.model.parameters_mut(), self.pipeline.timeline()) else { break };
            match step {
                Some(Step::Taken { norm, word }) => {
                    self.pipeline.commit_parameters();
                    let batch = self.uncommitted.pop_front().expect("commits come back in order");
                    self.record(&batch, norm, word)?;
                }
                Some(Step::Failed(error)) => return Err(error),
                Some(Step::Refused { batch, loss }) => return self.refuse(batch, loss),
                None => self.call_home(),
            }
        }
        Ok(())
    }

    /// Waits for the parameter commit of every batch that is out; the sync stage is here then, and all ranks' parameters are
    /// equal. `reason`: for the log.
    pub(super) fn drain(&mut self, reason: &'static str) -> Result<()> {
        self.settle(0)?;
        self.call_home();
        match self.sync.stage().racom() {
            Some(_) => self.sync_fully(reason),
            None => Ok(()),
        }
    }

    /// Notes how many parameter commits a batch that starts now does not see.
    pub(super) fn note_staleness(&mut self) {
        let out = match &self.sync {
            Syncing::Away(worker) => worker.out(),
            _ => 0,
        };
        self.pipeline.timeline().saw(Seen::Parameters, out);
    }

    /// Forgets the batches without parameter commit: state and parameters are those of the last one, the pass is over.
    pub(super) fn abandon(&mut self) {
        self.call_home();
        self.uncommitted.clear();
        self.model.parameters_mut().zero_grads();
        self.pipeline.roll_back();
    }

    /// Ends the sync worker, if there is one, once it has done what it was sent.
    fn call_home(&mut self) {
        self.sync = match std::mem::replace(&mut self.sync, Syncing::Moving) {
            Syncing::Away(worker) => Syncing::Here(worker.join(self.pipeline.timeline())),
            here => here,
        };
    }

    /// A loss or gradient that is not finite ends the run with parameters and state as the last parameter commit left them.
    fn refuse(&mut self, batch: usize, loss: f64) -> Result<()> {
        let what = if loss.is_finite() { "gradient" } else { "loss" };
        self.abandon();
        self.checkpoint()?;
        Err(Error::NonFinite { what, epoch: self.history.epoch, batch })
    }

    /// A batch had its parameter commit: it counts, and is logged where the configuration says so.
    fn record(&mut self, batch: &Uncommitted, norm: f64, word: Word) -> Result<()> {
        let now = Instant::now();
        let took = now - std::mem::replace(&mut self.lap, now);
        self.pipeline.tell(batch.batch, norm, word.mean_drift());
        self.history.record(batch.events, batch.hash, word.loss, took);
        (self.agreed.stop, self.agreed.out_of_time) = (word.stop, word.out_of_time);
        if every(self.config.train.log_every, self.history.batch) {
            self.log_batch(word.loss, norm)?;
        }
        self.advance_bar(self.history.events_in_epoch, Some(self.history.mean_loss()));
        Ok(())
    }

    /// Checkpoints and stops where the configuration, a signal or the clock says so, with no batch out.
    ///
    /// * `done`: batches of the epoch whose gradient is made.
    pub(super) fn pause_after(&mut self, done: usize) -> Result<EpochEnd> {
        let due = every(self.config.train.checkpoint_every, done);
        // Alone there is nobody to agree with, and a batch that is out need not come back first.
        let Word { stop, out_of_time, .. } = if self.comm.world() == 1 { self.word(0.0) } else { self.agreed };
        if !(due || stop || out_of_time) {
            return Ok(EpochEnd::Done);
        }
        self.drain(if due { "checkpoint" } else { "stop" })?;
        if due {
            self.checkpoint()?;
            self.go_on_as_if_resumed(done);
        }
        self.stop_if(stop, out_of_time, done)
    }

    /// After an epoch's last batch. Under RaCoM a stop may have been agreed on for a batch that there is not.
    pub(super) fn end_epoch(&mut self) -> Result<EpochEnd> {
        self.drain("epoch")?;
        if self.sync.stage().racom().is_none() {
            return Ok(EpochEnd::Done);
        }
        self.note_stop();
        self.stop_if(self.agreed.stop, self.agreed.out_of_time, self.history.batch)
    }

    fn stop_if(&mut self, stop: bool, out_of_time: bool, done: usize) -> Result<EpochEnd> {
        if let Some(run) = self.run.as_ref().filter(|_| stop) {
            let run = run.folder.path().to_owned();
            self.checkpoint()?;
            return Err(Error::Stopped { epoch: self.history.epoch, batch: done, run });
        }
        Ok(if out_of_time { EpochEnd::OutOfTime } else { EpochEnd::Done })
    }
}

impl Trainer {
    /// After a checkpoint: replicas, copies and the gate start as they do in a run that is resumed from it. Exact runs need none of
    /// that to equal a resumed one.
    fn go_on_as_if_resumed(&mut self, done: usize) {
        if !self.pipeline.approximates() {
            return;
        }
        let pass = self.passes.train(self.history.epoch);
        let batches = done..self.epoch_batches(&pass);
        self.pipeline.stop();
        self.pipeline.start(pass, batches);
    }
}

fn every(n: usize, done: usize) -> bool {
    n > 0 && done.is_multiple_of(n)
}
