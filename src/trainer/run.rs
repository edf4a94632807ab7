//! Where a run's results go: its folder, its metrics, its checkpoints and the progress on the terminal.

use super::checkpoint::{CheckpointError, CheckpointStore};
use super::metrics_log::MetricsLog;
use super::progress::Progress;
use super::run_folder::RunFolder;
use super::signals::StopRequest;
use super::whole_state::SameRun;
use super::{EpochRecord, Trainer};
use crate::error::{Error, Result};
use crate::pipeline::event::Pass;
use serde_json::json;
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The outputs of a run.
pub(super) struct Run {
    pub(super) folder: RunFolder,
    pub(super) store: CheckpointStore,
    /// Of the first rank alone.
    pub(super) metrics: Option<MetricsLog>,
    pub(super) progress: Progress,
    pub(super) stop: StopRequest,
}

/// How a run shows itself while it lasts.
#[derive(Clone, Debug, Default)]
pub struct Console {
    /// Nothing but results and errors.
    pub quiet: bool,
    /// A request to stop, checked after every batch.
    pub stop: StopRequest,
}

impl Trainer {
    /// Gives a new run its folder: `out`, or the next `runs/NAME-N`. The first rank makes it, the others are told where it is.
    ///
    /// # Errors
    /// A folder that holds anything, or a disk that refuses.
    pub fn start_run(&mut self, out: Option<&Path>, name: &str, console: Console) -> Result<()> {
        let mut path = Vec::new();
        let mut metrics = None;
        if self.is_first() {
            let folder = RunFolder::create(out, name)?;
            folder.write_config(&self.config.to_toml())?;
            metrics = Some(folder.create_metrics()?);
            path = folder.path().as_os_str().as_bytes().to_vec();
        }
        let sequence = self.next_collective();
        self.comm.broadcast(0, sequence, &mut path)?;
        self.attach(RunFolder::open(Path::new(OsStr::from_bytes(&path)))?, metrics, console);
        Ok(())
    }

    /// Goes on with the run in `folder`: from its newest intact checkpoint, or from the start if it never finished one.
    ///
    /// # Errors
    /// A folder whose checkpoints can not be used.
    pub fn resume_run(&mut self, folder: &Path, console: Console) -> Result<()> {
        let folder = RunFolder::open(folder)?;
        let offset = match self.load_checkpoint(&folder, SameRun::Required) {
            Ok(archive) => archive.meta["metrics_offset"].as_u64().unwrap_or(0),
            Err(Error::Checkpoint(error @ CheckpointError::Empty { .. })) => {
                tracing::warn!("{error}; it begins anew");
                0
            }
            Err(error) => return Err(error),
        };
        let sequence = self.next_collective();
        self.comm.barrier(sequence)?; // all have read
        let mut metrics = None;
        if self.is_first() {
            folder.write_config(&self.config.to_toml())?;
            metrics = Some(folder.resume_metrics(offset)?);
        }
        self.attach(folder, metrics, console);
        Ok(())
    }

    /// Takes over the best state of the run in `folder`, to score it.
    ///
    /// # Errors
    /// A folder without a checkpoint that can be used.
    pub fn open_best(&mut self, folder: &Path) -> Result<()> {
        self.load_checkpoint(&RunFolder::open(folder)?, SameRun::SameData)?;
        self.restore_best()
    }

    fn attach(&mut self, folder: RunFolder, metrics: Option<MetricsLog>, console: Console) {
        let store = CheckpointStore::new(folder.checkpoint_dir(), self.config.train.keep_checkpoints);
        let progress = Progress::new(console.quiet || !self.is_first());
        self.run = Some(Run { folder, store, metrics, progress, stop: console.stop });
    }

    /// The run's folder, once it has one.
    pub fn run_folder(&self) -> Option<&Path> {
        self.run.as_ref().map(|run| run.folder.path())
    }

    pub(super) fn open_bar(&mut self, label: &str, pass: &Pass, batches: &Range<usize>) {
        if let Some(run) = &mut self.run {
            let events = |batch: usize| (batch * pass.batch_size).min(pass.events.len()) as u64;
            run.progress.start(label, events(batches.end), events(batches.start));
        }
    }

    pub(super) fn advance_bar(&mut self, events: u64, loss: Option<f64>) {
        if let Some(run) = &mut self.run {
            run.progress.advance(events, loss);
        }
    }

    pub(super) fn close_bar(&mut self) {
        if let Some(run) = &mut self.run {
            run.progress.finish();
        }
    }

    pub(super) fn log_batch(&mut self, loss: f64, norm: f64) -> Result<()> {
        let record = json!({ "epoch": self.history.epoch, "batch": self.history.batch - 1, "loss": loss, "gradient_norm": norm });
        self.log("batch", &record)
    }

    pub(super) fn log_epoch(&mut self, epoch: &EpochRecord) -> Result<()> {
        self.log("epoch", &serde_json::to_value(epoch).expect("an epoch has a JSON form"))?;
        let val = match epoch.val.mrr {
            Some(mrr) => format!("val MRR {:.4}", mrr.mrr),
            None => format!("val AP {:.4}, AUC {:.4}", epoch.val_ap, epoch.val.links.auc),
        };
        let line = format!(
            "epoch {}: loss {:.4}, {val}, {:.1} s, {:.0} events/s{}",
            epoch.epoch,
            epoch.loss,
            epoch.seconds,
            epoch.train_events_per_s,
            if epoch.is_best { " (best)" } else { "" }
        );
        if let Some(run) = &mut self.run {
            run.progress.line(&line);
        }
        Ok(())
    }

    /// Logs what became of the queues' lengths since the last time.
    pub(super) fn log_queue_lengths(&mut self) -> Result<()> {
        for change in self.pipeline.queue_lengths().take_changes() {
            let mut record = change.record();
            (record["epoch"], record["batch"]) = (json!(self.history.epoch), json!(self.history.batch));
            self.log("adapt", &record)?;
        }
        Ok(())
    }

    pub(super) fn log(&mut self, kind: &str, record: &serde_json::Value) -> Result<()> {
        match self.run.as_mut().and_then(|run| run.metrics.as_mut()) {
            Some(metrics) => Ok(metrics.append(kind, record)?),
            None => Ok(()),
        }
    }
}
