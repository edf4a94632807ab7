//! The training step of a configuration: events a second, stage by stage, and what the work needs at least.
//!
//! The floating-point operations are those of the matrix products of a TGN step with linear maps moved from a root's K neighbors
//! to the root (see the attention module), a multiplication and an addition each counted, for the shapes that the batches had;
//! elementwise work is not counted. The bytes are those that must move however the step is written: rows, mail and features
//! gathered once and read once forward and once backward, what the commits write, and the optimizer's seven passes over the
//! parameters. Either, divided by the time, is shown as a share of what the machine does at nothing else.

use super::rates::MachineRates;
use crate::error::Result;
use crate::stats::{Stage, Timeline};
use crate::trainer::peak_rss::{self, Resident};
use crate::trainer::{TrainedBatch, Trainer};
use serde::Serialize;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tidemill_models::embedding::Embedding;
use tidemill_models::memory_updater::Updater;
use tidemill_models::tgn::TgnConfig;

/// How long batches are timed, roughly, unless the epoch ends before.
const TIME: Duration = Duration::from_secs(10);
/// Batches before the first that is timed; the second half of them tells how many fit into the time.
const WARM_UP: usize = 20;

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct StepReport {
    /// Name of the stream.
    pub dataset: String,
    /// The preset and what differs from it.
    pub preset: String,
    /// Threads.
    pub threads: usize,
    /// Events of a batch.
    pub batch_size: usize,
    /// Batches timed.
    pub batches: usize,
    /// Seconds they took.
    pub seconds: f64,
    /// Training events a second.
    pub events_per_s: f64,
    /// Milliseconds of a batch.
    pub ms_per_batch: f64,
    /// Milliseconds of a batch, by stage; the state commit is in `state`.
    pub stages: Vec<StageTime>,
    /// Means over the batches.
    pub shapes: Shapes,
    /// 10^9 operations of a batch.
    pub gflop_per_batch: f64,
    /// 10^9 operations a second.
    pub gflop_per_s: f64,
    /// Share of the machine's matrix products.
    pub gemm_share: f64,
    /// 10^9 bytes of a batch.
    pub gb_per_batch: f64,
    /// 10^9 bytes a second.
    pub gb_per_s: f64,
    /// Share of the machine's copies.
    pub copy_share: f64,
    /// What the machine does at nothing else.
    pub machine: MachineRates,
    /// Resident memory after the last batch.
    pub resident: Option<Resident>,
}

/// A stage's share of a batch.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct StageTime {
    /// The stage.
    pub name: &'static str,
    /// Milliseconds a batch.
    pub ms: f64,
}

/// Shapes of the batches, means.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Shapes {
    /// B: events.
    pub events: f64,
    /// N: rows read.
    pub rows: f64,
    /// M: rows with pending mail.
    pub mailed: f64,
    /// C: rows written.
    pub committed: f64,
    /// R: roots, top hop first.
    pub roots: Vec<f64>,
    /// K: slots of a root, top hop first.
    pub fanout: Vec<usize>,
}

/// Trains batches of `trainer`'s first epoch and tells what they took.
///
/// * `config`, `preset`: the model's and the name that `trainer` was made from.
///
/// # Errors
/// A loss or gradient that is not finite.
pub fn run(trainer: &mut Trainer, config: &TgnConfig, batch_size: usize, preset: String) -> Result<StepReport> {
    let machine = MachineRates::measure();
    let (all, warm) = (trainer.batches(), WARM_UP.min(trainer.batches() / 2));
    trainer.train_until(warm / 2)?;
    let start = Instant::now();
    trainer.train_until(warm)?;
    let fitting = TIME.as_secs_f64() / start.elapsed().as_secs_f64() * (warm - warm / 2) as f64;
    let (seen, before, start) = (watch(trainer), trainer.stage_times(), Instant::now());
    trainer.train_until((warm + (fitting as usize).max(WARM_UP)).min(all))?;
    let seconds = start.elapsed().as_secs_f64();
    let (count, shapes) = seen.lock().expect("no batch panicked").means();
    let features =
        Features { edge: trainer.stream().feature_dim() as f64, parameters: trainer.parameter_count() as f64 };
    let (flop, bytes) = (operations(config, &features, &shapes), bytes(config, &features, &shapes));
    let per_s = |per_batch: f64| per_batch * count / seconds / 1e9;
    Ok(StepReport {
        dataset: trainer.stream().meta().name.clone(),
        preset,
        threads: trainer.threads(),
        batch_size,
        batches: count as usize,
        seconds,
        events_per_s: shapes.events * count / seconds,
        ms_per_batch: seconds / count * 1e3,
        stages: stages(before, trainer.stage_times(), count),
        gflop_per_batch: flop / 1e9,
        gflop_per_s: per_s(flop),
        gemm_share: per_s(flop) / machine.gemm_gflop_per_s,
        gb_per_batch: bytes / 1e9,
        gb_per_s: per_s(bytes),
        copy_share: per_s(bytes) / machine.copy_gb_per_s,
        shapes,
        machine,
        resident: peak_rss::resident(),
    })
}

fn stages(before: Timeline, after: Timeline, batches: f64) -> Vec<StageTime> {
    let ms = |stage| (after.busy(stage) - before.busy(stage)).as_secs_f64() / batches * 1e3;
    Stage::ALL.into_iter().map(|stage| StageTime { name: stage.name(), ms: ms(stage) }).collect()
}

/// Sums over the batches seen.
#[derive(Default)]
struct Seen {
    batches: usize,
    sums: Shapes,
}

impl Seen {
    fn add(&mut self, batch: &TrainedBatch<'_>) {
        let (plan, sums) = (batch.plan, &mut self.sums);
        self.batches += 1;
        sums.events += plan.events.len() as f64;
        sums.rows += plan.sample.rows.len() as f64;
        sums.mailed += batch.input.mail.row.size()[0] as f64;
        sums.committed += plan.commit.nodes.len() as f64;
        sums.roots.resize(plan.sample.hops.len(), 0.0);
        sums.roots.iter_mut().zip(&plan.sample.hops).for_each(|(sum, hop)| *sum += hop.roots.len() as f64);
        sums.fanout = plan.sample.hops.iter().map(|hop| hop.fanout).collect();
    }

    fn means(&self) -> (f64, Shapes) {
        let n = self.batches.max(1) as f64;
        let s = &self.sums;
        let shapes = Shapes {
            events: s.events / n,
            rows: s.rows / n,
            mailed: s.mailed / n,
            committed: s.committed / n,
            roots: s.roots.iter().map(|sum| sum / n).collect(),
            fanout: s.fanout.clone(),
        };
        (n, shapes)
    }
}

fn watch(trainer: &mut Trainer) -> Arc<Mutex<Seen>> {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let own = seen.clone();
    trainer.hooks_mut().on_batch(Box::new(move |batch| own.lock().expect("no batch panicked").add(batch)));
    seen
}

/// What the shapes do not tell.
struct Features {
    /// D_e
    edge: f64,
    /// P
    parameters: f64,
}

/// Operations of the matrix products of a batch: forward, gradients of weights, and gradients of inputs that need one.
fn operations(config: &TgnConfig, features: &Features, shapes: &Shapes) -> f64 {
    let (memory, time, out) = (config.memory_dim as f64, config.time_dim as f64, config.embedding_dim as f64);
    let gates = if config.updater == Updater::Gru { 3.0 } else { 1.0 };
    // The own row is both hidden state and part of the message; raw messages are leaves: no gradient of inputs.
    let own = if config.updater == Updater::Gru { gates + 1.0 } else { gates };
    let mut products = 2.0 * shapes.mailed * memory * (own * memory + gates * (memory + features.edge + time));
    for (layer, (&roots, &fanout)) in shapes.roots.iter().zip(&shapes.fanout).rev().enumerate() {
        let row = if layer == 0 { memory } else { out };
        let neighbor = row + features.edge + time;
        let merged = match config.embedding {
            Embedding::Attention => {
                let (q, scores) = (row + time, config.heads as f64 * fanout as f64 * neighbor);
                let weights = row * q + 2.0 * q * neighbor + q * out + row * out + out * out;
                3.0 * roots * weights + 2.0 * roots * (2.0 * scores + scores * row / neighbor)
            }
            Embedding::Transformer => {
                let scores = config.heads as f64 * fanout as f64 * neighbor;
                3.0 * roots * (2.0 * row * out + 2.0 * neighbor * out) + 4.0 * roots * scores
            }
            Embedding::Sum => 3.0 * roots * (neighbor * out + (row + out) * out + out * out),
            Embedding::Identity | Embedding::Time => 0.0,
        };
        products += merged;
    }
    let top = shapes.roots.first().copied().unwrap_or(0.0);
    products += 3.0 * ((shapes.events + top) * out * out + 2.0 * shapes.events * out);
    2.0 * products
}

/// Bytes that a batch moves at least, for f32: see the module.
fn bytes(config: &TgnConfig, features: &Features, shapes: &Shapes) -> f64 {
    let (memory, out) = (config.memory_dim as f64, config.embedding_dim as f64);
    // gathered: read and written; then read forward and backward
    let mut numbers = 4.0 * shapes.rows * memory + 4.0 * shapes.mailed * (memory + features.edge);
    for (layer, (&roots, &fanout)) in shapes.roots.iter().zip(&shapes.fanout).rev().enumerate() {
        let row = if layer == 0 { memory } else { out };
        numbers += roots * fanout as f64 * (4.0 * features.edge + 2.0 * row);
    }
    // rows and mails written, and what they replace kept to undo it
    numbers += 2.0 * 2.0 * shapes.committed * 2.0 * memory;
    // Adam reads values, gradients and two moments, and writes all but the gradients
    numbers += 7.0 * features.parameters;
    let width = if config.dtype == tidemill_models::tgn::Dtype::F64 { 8.0 } else { 4.0 };
    numbers * width
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One root, one neighbor, one mail, everything one wide and one head: the products are countable by hand.
    #[test]
    fn operations_of_a_tiny_step() {
        let config = TgnConfig { memory_dim: 1, time_dim: 1, embedding_dim: 1, heads: 1, ..TgnConfig::default() };
        let features = Features { edge: 0.0, parameters: 0.0 };
        let shapes = Shapes { events: 1.0, rows: 2.0, mailed: 1.0, committed: 0.0, roots: vec![1.0], fanout: vec![1] };
        // updater: 4 own + 3 * 2, forward and weights; attention: (2 + 2 * 2 * 2 + 2 + 1 + 1) thrice, scores 2 * (2 * 2 + 1);
        // decoder: 1 + 1 + 2 thrice
        let products = 2.0 * 10.0 + 3.0 * 14.0 + 10.0 + 3.0 * 4.0;
        assert_eq!(operations(&config, &features, &shapes), 2.0 * products);
        let none = Shapes { mailed: 0.0, events: 0.0, roots: vec![], fanout: vec![], ..shapes };
        assert_eq!(operations(&config, &features, &none), 0.0);
        assert_eq!(bytes(&config, &Features { parameters: 10.0, ..features }, &none), 4.0 * (8.0 + 70.0));
    }
}
