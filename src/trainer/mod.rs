//! Training: [`Trainer::fit`], the one loop.
//!
//! An epoch starts from empty memory, trains over the training split in order, then scores the validation split with the
//! state as training left it. The best epoch's whole state (parameters *and* memory and mail) is what the test split is
//! scored with, after the validation events have passed through it.

pub mod archive;
mod calibrate;
pub mod checkpoint;
mod commits;
pub mod config;
pub mod costs;
pub mod distance;
pub mod durable;
mod family;
mod history;
mod hooks;
mod kept_samples;
mod measure;
pub mod metrics_log;
pub mod node_task;
pub mod peak_rss;
pub mod progress;
mod ranks;
mod report;
mod run;
pub mod run_folder;
mod scoring;
mod setup;
pub mod signals;
mod state_hash;
mod stored_state;
pub mod summary;
mod whole_state;

pub use config::TrainConfig;
pub use history::{EpochRecord, History};
pub use hooks::{Hooks, TrainedBatch};
pub use node_task::NodeClassification;
pub use run::Console;
pub use setup::{Passes, PhiloxDraw};
pub use summary::Summary;

use crate::comms::{Communicator, Ledger};
use crate::config::Config;
use crate::device;
use crate::error::Result;
use crate::eval;
use crate::partition::PartitionTable;
use crate::pipeline::Pipeline;
use crate::pipeline::event::Pass;
use crate::pipeline::sync::Word;
use crate::stats::Stage;
use commits::{Syncing, Uncommitted};
use run::Run;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use tidemill_data::split::Split;
use tidemill_data::stream::EventStream;
use tidemill_models::model::{Mode, Model};
use whole_state::Best;

/// A run: a model, its state, the passes it makes over a stream, and the folder its results go to.
pub struct Trainer {
    config: Config,
    stream: EventStream,
    split: Split,
    passes: Passes,
    model: Box<dyn Model>,
    pipeline: Pipeline,
    sync: Syncing,
    uncommitted: VecDeque<Uncommitted>,
    lap: Instant,
    history: History,
    best: Option<Best>,
    comm: Communicator,
    /// What was sent before the first epoch: agreements, and what calibration tried out.
    set_up: Ledger,
    /// What training epochs sent and waited for.
    trained: Ledger,
    /// Collectives outside of batches so far.
    collectives: u64,
    /// What the ranks said of the latest batch with a parameter commit.
    agreed: Word,
    /// Who owns which node now; absent alone.
    owners: Option<Arc<PartitionTable>>,
    device: tch::Device,
    threads: usize,
    hooks: Hooks,
    run: Option<Run>,
}

/// Why an epoch's loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EpochEnd {
    Done,
    OutOfTime,
}

impl Trainer {
    /// Trains until the epochs, the patience or the time are used up, then scores the test split with the best state.
    ///
    /// # Errors
    /// A loss or gradient that is not finite, a request to stop (after a checkpoint), and what the run folder's disk refuses.
    pub fn fit(&mut self) -> Result<Summary> {
        while !self.history.finished(&self.config.train) {
            let before = self.comm.ledger();
            let end = self.train_epoch()?;
            self.trained = self.trained.plus(&self.comm.ledger().since(&before));
            self.close_epoch()?;
            if end == EpochEnd::OutOfTime {
                break;
            }
        }
        self.finish()
    }

    /// The loop: one pass over the training split, from wherever the history stands in it.
    fn train_epoch(&mut self) -> Result<EpochEnd> {
        self.abandon(); // what an epoch that ended in an error left
        self.lap = Instant::now();
        self.keep_training_samples();
        let pass = self.passes.train(self.history.epoch);
        let batches = self.history.batch..self.epoch_batches(&pass);
        self.owners = pass.owners_after(batches.end);
        self.agreed = Word::default();
        if let Some(racom) = self.sync.stage_mut().racom_mut() {
            racom.begin(batches.start);
        }
        self.open_bar(&format!("epoch {}", self.history.epoch), &pass, &batches);
        match self.history.batch {
            0 => self.pipeline.start_afresh(pass, batches),
            _ => self.pipeline.start(pass, batches),
        }
        while let Some(batch) = self.pipeline.next_batch()? {
            let number = batch.plan.batch;
            self.note_staleness();
            let _range = device::range(Stage::Gradient.name(), number);
            let forward = Instant::now();
            let embedded = self.model.embed(&batch.input, Mode::Train); // z [R, D_emb], rows [N, D_m]
            self.pipeline.timeline().add(Stage::Gradient, number, forward);
            self.pipeline.commit_state(&batch, &embedded, &*self.model)?;
            let backward = Instant::now();
            let z = self.pipeline.exchange_embeddings(&batch, &embedded.z)?; // [R + received, D_emb]
            let scored = self.model.score(&z, &batch.pairs); // grad_z as z
            self.start_exchange()?;
            let grad_z = self.pipeline.return_gradients(&batch, &scored.grad_z)?; // [R, D_emb]
            let rows = self.hooks.wants_batches().then(|| embedded.rows.detach());
            self.model.backward(embedded, &grad_z);
            self.pipeline.timeline().add(Stage::Gradient, number, backward);

            self.sync_batch(&batch, &scored, rows.as_ref())?;
            self.log_queue_lengths()?;
            if self.pause_after(number + 1)? == EpochEnd::OutOfTime {
                self.owners = self.passes.train(self.history.epoch).owners_after(number + 1);
                return Ok(EpochEnd::OutOfTime);
            }
        }
        self.end_epoch()
    }

    fn epoch_batches(&self, pass: &Pass) -> usize {
        match self.config.train.max_batches {
            0 => pass.batches(),
            most => pass.batches().min(most),
        }
    }

    /// After an epoch's last batch: hash, validation, the best state so far, the log.
    fn close_epoch(&mut self) -> Result<()> {
        let state_hash = self.state_hash()?;
        let (trained, owners) = (self.store_state()?, self.owners.clone());
        self.close_bar();
        self.keep_validation_samples();
        let val = self.score_split(&self.passes.val.clone())?;
        let val = eval::SplitMetrics::of(&val, &self.stream, &self.split.new_nodes, self.config.eval.new_node);
        let epoch = self.history.close_epoch(val, state_hash, self.config.eval.average).clone();
        if epoch.is_best {
            self.best = Some(Best::new(epoch.epoch, self.model.parameters(), trained, owners));
        }
        self.hooks.epoch(&epoch);
        self.log_epoch(&epoch)?;
        if self.config.train.checkpoint_every > 0 {
            self.checkpoint()?;
        }
        Ok(())
    }

    /// Scores the validation and the test split with the best state.
    ///
    /// The checkpoint comes first: a run that is given more epochs goes on from the last one, not from the best.
    fn finish(&mut self) -> Result<Summary> {
        self.checkpoint()?;
        self.return_to_best()?;
        let val = self.metrics_of(&self.passes.val.clone())?;
        let test = self.metrics_of(&self.passes.test.clone())?;
        self.log("eval", &serde_json::json!({ "epoch": self.best_epoch(), "val": val, "test": test }))?;
        let summary = self.summarise(&val, &test)?;
        self.write_summary(&summary)?;
        Ok(summary)
    }
}

#[cfg(test)]
mod tests;
