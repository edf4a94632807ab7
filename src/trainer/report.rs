//! The summary of a run, from what its parts counted.

use super::Trainer;
use super::distance::Baseline;
use super::ranks::Account;
use super::summary::{self, Summary};
use crate::device;
use crate::error::{Error, Result};
use crate::eval::SplitMetrics;
use crate::pipeline::racom::Racom;
use crate::stats::{Queue, Seen, Stage, Stall};
use std::path::Path;

impl Trainer {
    /// Number of the epoch with the best validation AP; 0 before there is one.
    pub fn best_epoch(&self) -> u32 {
        self.history.best_epoch()
    }

    /// Scores the validation split and, if `test`, the test split after it, from the state as [`Trainer::open_best`] left it.
    ///
    /// # Errors
    /// A score that is not finite.
    pub fn score_best(&mut self, test: bool) -> Result<(SplitMetrics, Option<SplitMetrics>)> {
        self.return_to_best()?;
        let val = self.metrics_of(&self.passes.val.clone())?;
        let test = if test { Some(self.metrics_of(&self.passes.test.clone())?) } else { None };
        Ok((val, test))
    }

    pub(super) fn summarise(&mut self, val: &SplitMetrics, test: &SplitMetrics) -> Result<Summary> {
        let accounts = self.gather_accounts()?;
        self.join_sample_hash()?;
        let epochs = &self.history.epochs;
        let train_events: u64 = epochs.iter().map(|epoch| epoch.events).sum();
        let scored = (val.events + test.events) as f64;
        let meta = self.stream.meta();
        Ok(Summary {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            preset: self.config.name(),
            seed: self.config.seed,
            ranks: self.comm.world() as u32,
            threads: self.threads as u32,
            device: device::name(self.device),
            dataset: summary::Dataset {
                name: meta.name.clone(),
                events: self.stream.len() as u64,
                nodes: u64::from(self.stream.nodes()),
                synthetic: meta.synthetic,
                hash: self.stream.hash(),
            },
            splits: self.splits(),
            val: Some(val.clone()),
            test: Some(test.clone()),
            epochs: epochs.iter().map(epoch).collect(),
            train_events_per_s: train_events as f64 / self.history.train_seconds().max(1e-9),
            eval_events_per_s: scored / (val.seconds + test.seconds).max(1e-9),
            peak_rss_bytes: Account::most_rss(&accounts),
            state_hash: epochs.last().map(|epoch| epoch.state_hash.clone()).unwrap_or_default(),
            sample_hash: self.history.sample_hash.to_string(),
            queues: self.queues(),
            stages: self.stages(),
            staleness: self.staleness(),
            comm: Account::comm(&accounts, self.history.train_seconds()),
            dependency: Account::dependency(&accounts, self.pipeline.costs()),
            sync: Account::sync(&accounts),
            replay: Account::replay(&accounts),
            partition: self.partition(),
            gradient: self.gradient(),
            ..Summary::default()
        })
    }

    /// Events in each split.
    fn splits(&self) -> summary::Splits {
        summary::Splits {
            train: self.split.train.len() as u64,
            val: self.split.val.len() as u64,
            test: self.split.test.len() as u64,
        }
    }

    /// Refuses a run to compare with that is of other events than this one.
    ///
    /// # Errors
    /// As [`Baseline::check`].
    pub fn check_baseline(&self, baseline: &Baseline) -> Result<()> {
        baseline.check(&self.config, &self.stream.hash(), self.splits())
    }

    /// Puts the distance from a baseline into this run's summary, in its folder too.
    ///
    /// # Errors
    /// What the run folder's disk refuses.
    pub fn compare(&mut self, summary: &mut Summary, baseline: &Baseline) -> Result<()> {
        summary.distance = Some(baseline.distance_of(summary));
        self.write_summary(summary)
    }

    fn gradient(&self) -> summary::Gradient {
        let stage = self.sync.stage();
        let (mode, exchanges) = (self.config.gradient.mode.name().to_owned(), stage.exchanges());
        let counted = stage.racom().map(Racom::controller).map(|counts| summary::Gradient {
            forced: counts.forced,
            divergence_max: counts.divergence_max,
            staleness_max: counts.staleness_max,
            ..summary::Gradient::default()
        });
        summary::Gradient { mode, exchanges, ..counted.unwrap_or_default() }
    }

    fn partition(&self) -> summary::Partition {
        let Some(partition) = &self.passes.train.partition else { return summary::Partition::default() };
        let statistics = partition.statistics();
        summary::Partition {
            cut_share: statistics.cut_share(),
            balance: statistics.balance(),
            migrations: statistics.migrations() as u64,
            rows_migrated: statistics.nodes_moved() as u64,
        }
    }

    /// Keeps, from now on, what each stage did when.
    pub fn keep_trace(&mut self) {
        self.pipeline.timeline().keep_spans();
    }

    /// Writes what each stage did when since [`Trainer::keep_trace`], as a Chrome trace.
    ///
    /// # Errors
    /// A file that can not be written.
    pub fn write_trace(&mut self, path: &Path) -> Result<()> {
        let trace = self.pipeline.timeline().chrome_trace();
        std::fs::write(path, trace.to_string()).map_err(Error::io("write", path))
    }

    fn queues(&mut self) -> Vec<summary::Queue> {
        let times = self.pipeline.timeline();
        let of = |queue: Queue| {
            let stats = times.queue(queue);
            summary::Queue {
                name: queue.name().to_owned(),
                min: stats.length_min,
                max: stats.length_max,
                mean: stats.length_sum as f64 / stats.sent.max(1) as f64,
                sent: stats.sent,
                full_s: stats.full_ns as f64 / 1e9,
                empty_s: stats.empty_ns as f64 / 1e9,
                resized: stats.resized,
                limit: stats.limit,
            }
        };
        Queue::ALL.into_iter().filter(|&queue| times.queue(queue).sent > 0).map(of).collect()
    }

    fn staleness(&mut self) -> summary::Staleness {
        let times = self.pipeline.timeline();
        let of = |what| times.staleness(what).to_vec();
        summary::Staleness { state: of(Seen::State), parameters: of(Seen::Parameters) }
    }

    fn stages(&mut self) -> Vec<summary::Stage> {
        let times = self.pipeline.timeline();
        let stage = |stage: Stage| summary::Stage {
            name: stage.name().to_owned(),
            busy_s: times.busy(stage).as_secs_f64(),
            wait_s: times.waited(stage).as_secs_f64(),
            full_s: times.stall(stage, Stall::Full).as_secs_f64(),
            empty_s: times.stall(stage, Stall::Empty).as_secs_f64(),
            hazard_s: times.stall(stage, Stall::Hazard).as_secs_f64(),
            network_s: times.stall(stage, Stall::Network).as_secs_f64(),
        };
        Stage::ALL.into_iter().map(stage).collect()
    }
}

fn epoch(epoch: &super::EpochRecord) -> summary::Epoch {
    summary::Epoch {
        loss: Some(epoch.loss),
        val_ap: Some(epoch.val_ap),
        seconds: epoch.seconds,
        train_events_per_s: epoch.train_events_per_s,
    }
}
