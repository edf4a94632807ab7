//! One epoch's training events under every strategy: tables, loads, and the rows that cross ranks.
//!
//! Negatives and samples are those of the first epoch, so that what is counted is what a run would need. Each batch is sampled
//! once; every strategy's counter looks at the same sample.

use super::curve::Curve;
use crate::config::Config;
use crate::dependency::count::{RowCounter, RowCounts};
use crate::error::Result;
use crate::graph::Tcsr;
use crate::partition::{Partition, PartitionConfig, Rank, Strategy};
use crate::pipeline::event::logical_roots;
use crate::sampler::{Root, Sample, SampleScratch, Sampler};
use crate::trainer::costs;
use serde::Serialize;
use std::sync::Arc;
use tidemill_data::id::{EventId, NodeId};
use tidemill_data::negative::{NegativeSampler, Scored};
use tidemill_data::philox::{Key, Purpose};
use tidemill_data::split::Split;
use tidemill_data::stream::EventStream;

const STRATEGIES: [Strategy; 5] =
    [Strategy::Hash, Strategy::Range, Strategy::Degree, Strategy::Fennel, Strategy::Temporal];

/// What was found.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Name of the stream.
    pub(super) dataset: String,
    /// Training events.
    pub(super) events: usize,
    pub(super) nodes: u32,
    pub(super) ranks: usize,
    pub(super) batches: usize,
    pub(super) batch_size: usize,
    /// Neighbors of a root, hop by hop.
    pub(super) neighbors: Vec<usize>,
    /// The configuration's strategy.
    pub(super) strategy: Strategy,
    /// Events of a window, whole batches.
    pub(super) window_events: usize,
    pub(super) rebalance_above: f64,
    /// The configuration's strategy at all thresholds of `dependency.tau_cache`.
    pub(super) curve: Curve,
    /// All strategies, the configuration's among them.
    pub(super) strategies: Vec<StrategyReport>,
}

impl Report {
    /// The configuration's strategy.
    pub(super) fn chosen(&self) -> &StrategyReport {
        self.strategies.iter().find(|s| s.strategy == self.strategy).expect("every strategy is reported")
    }
}

/// One strategy.
#[derive(Debug, Serialize)]
pub(super) struct StrategyReport {
    pub(super) strategy: Strategy,
    /// Share of the events whose endpoints have two owners.
    pub(super) cut_share: f64,
    /// Mean over windows of the busiest rank's events over the mean.
    pub(super) balance: f64,
    /// Mean over batches of the same.
    pub(super) batch_balance: f64,
    /// Borders at which nodes change hands.
    pub(super) migrations: usize,
    /// Nodes that change hands, over all borders.
    pub(super) nodes_moved: usize,
    /// Nodes of each rank in the last window.
    pub(super) nodes_by_rank: Vec<usize>,
    /// Means a batch.
    pub(super) rows: Rows,
    pub(super) windows: Vec<WindowReport>,
}

impl StrategyReport {
    pub(super) fn name(&self) -> &'static str {
        match self.strategy {
            Strategy::Hash => "hash",
            Strategy::Range => "range",
            Strategy::Degree => "degree",
            Strategy::Fennel => "fennel",
            Strategy::Temporal => "temporal",
        }
    }
}

/// One window.
#[derive(Debug, Serialize)]
pub(super) struct WindowReport {
    pub(super) first_batch: usize,
    pub(super) batches: usize,
    pub(super) events: usize,
    /// Events whose endpoints have two owners.
    pub(super) cut: usize,
    /// Events that each rank runs.
    pub(super) load: Vec<u64>,
    /// The busiest rank's events over the mean.
    pub(super) balance: f64,
    /// Nodes that change hands at the border before.
    pub(super) moved: usize,
    /// Means a batch.
    pub(super) rows: Rows,
}

/// Rows that cross ranks by each policy, and embeddings each way; means a batch, summed over ranks.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Rows {
    pub(super) fetch_all: f64,
    pub(super) versioned: f64,
    pub(super) owner_computes: f64,
    pub(super) both: f64,
    pub(super) embeddings: f64,
}

/// Measures.
pub(super) fn run(config: &Config, ranks: usize) -> Result<Report> {
    let stream = tidemill_data::load(&config.data, &mut |notice| tracing::info!("{notice}"))?;
    let split = Split::new(&stream, &config.split)?;
    let batch_size = config.train.batch_size;
    let mut counted: Vec<Counted> = STRATEGIES
        .iter()
        .map(|&strategy| {
            let config = PartitionConfig { strategy, ..config.partition.clone() };
            Counted::new(&stream, Partition::new(&stream, &split.train, batch_size, ranks, &config, None))
        })
        .collect();
    let mut batches = Batches::new(config, &stream, &split)?;
    for batch in 0..split.train.len().div_ceil(batch_size) {
        batches.sample(batch);
        counted.iter_mut().for_each(|counted| counted.add(batch, batches.positions(batch), &batches.sample));
    }
    let chosen = counted.iter().zip(STRATEGIES).find(|(_, strategy)| *strategy == config.partition.strategy);
    let chosen = &chosen.expect("every strategy is counted").0.partition;
    let curve = Curve::of(config, costs::expected(config, &stream, &split)?, &batches, chosen);
    let windows = config.partition.window_events.div_ceil(batch_size).max(1);
    Ok(Report {
        dataset: stream.meta().name.clone(),
        events: split.train.len(),
        nodes: stream.nodes(),
        ranks,
        batches: split.train.len().div_ceil(batch_size),
        batch_size,
        neighbors: config.sampler.neighbors.clone(),
        strategy: config.partition.strategy,
        window_events: windows * batch_size,
        rebalance_above: config.partition.rebalance_above,
        curve,
        strategies: STRATEGIES.iter().zip(&counted).map(|(&strategy, counted)| counted.report(strategy)).collect(),
    })
}

/// The training batches, sampled one after another.
pub(super) struct Batches<'a> {
    pub(super) stream: &'a EventStream,
    pub(super) events: &'a [EventId],
    batch_size: usize,
    pub(super) sampler: Sampler,
    negatives: NegativeSampler,
    key: Key,
    scratch: SampleScratch,
    sample: Sample,
}

impl<'a> Batches<'a> {
    fn new(config: &Config, stream: &'a EventStream, split: &'a Split) -> Result<Batches<'a>> {
        let (rule, avoid) = (&config.train.negatives, config.train.avoid_positive);
        let key = Key::new(config.seed, Purpose::TrainNegative);
        Ok(Batches {
            stream,
            events: &split.train,
            batch_size: config.train.batch_size,
            sampler: Sampler::new(&config.sampler, Arc::new(Tcsr::build(stream, &split.train)), stream.tick()),
            negatives: NegativeSampler::new(stream, split, rule, Scored::Train, avoid, key)?,
            key: Key::new(config.seed, Purpose::Neighbor),
            scratch: SampleScratch::default(),
            sample: Sample::default(),
        })
    }

    /// Batches of the epoch.
    pub(super) fn count(&self) -> usize {
        self.events.len().div_ceil(self.batch_size)
    }

    /// The key of a batch's samples.
    pub(super) fn key(&self, batch: usize) -> Key {
        self.key.narrow([1, batch as u32, 0, 0])
    }

    /// Logical roots: sources, destinations, negatives.
    pub(super) fn roots(&self, batch: usize) -> Vec<Root> {
        let events = &self.events[self.positions(batch)];
        let draw = |&event: &EventId| self.negatives.draw(1, event, self.stream.destination(event), 0);
        let negatives: Vec<NodeId> = events.iter().map(draw).collect();
        let mut roots = Vec::new();
        logical_roots(self.stream, self.sampler.graph(), events, &negatives, &mut roots);
        roots
    }

    pub(super) fn positions(&self, batch: usize) -> std::ops::Range<usize> {
        let start = batch * self.batch_size;
        start..(start + self.batch_size).min(self.events.len())
    }

    fn sample(&mut self, batch: usize) {
        let (roots, first) = (self.roots(batch), self.events[self.positions(batch).start]);
        let key = self.key(batch);
        self.sampler.sample_into(&roots, first, key, &mut self.scratch, &mut self.sample);
    }
}

/// A partition and what is counted under it.
struct Counted {
    partition: Partition,
    counter: RowCounter,
    /// By window.
    rows: Vec<RowCounts>,
    /// Sum over batches of the busiest rank's events over the mean.
    batch_balance: f64,
}

impl Counted {
    fn new(stream: &EventStream, partition: Partition) -> Counted {
        let counter = RowCounter::new(stream.nodes() as usize, partition.ranks());
        Counted { counter, rows: vec![RowCounts::default(); partition.windows()], batch_balance: 0.0, partition }
    }

    fn add(&mut self, batch: usize, positions: std::ops::Range<usize>, sample: &Sample) {
        let window = self.partition.window_of_batch(batch);
        let primary: Vec<Rank> = positions.map(|position| self.partition.primary(position)).collect();
        let mut load = vec![0usize; self.partition.ranks()];
        primary.iter().for_each(|rank| load[rank.index()] += 1);
        let most = load.iter().max().copied().unwrap_or(0);
        self.batch_balance += (most * load.len()) as f64 / primary.len() as f64;
        self.rows[window] += self.counter.count(self.partition.table(window), &primary, sample);
    }

    fn report(&self, strategy: Strategy) -> StrategyReport {
        let (p, statistics) = (&self.partition, self.partition.statistics());
        let mut total = RowCounts::default();
        self.rows.iter().for_each(|&rows| total += rows);
        let batches = p.first_batch(p.windows());
        StrategyReport {
            strategy,
            cut_share: statistics.cut_share(),
            balance: statistics.balance(),
            batch_balance: self.batch_balance / batches.max(1) as f64,
            migrations: statistics.migrations(),
            nodes_moved: statistics.nodes_moved(),
            nodes_by_rank: p.last_table().nodes_by_rank(),
            rows: Rows::a_batch(total, batches),
            windows: (0..p.windows()).map(|window| self.window(window)).collect(),
        }
    }

    fn window(&self, window: usize) -> WindowReport {
        let (p, s) = (&self.partition, &self.partition.statistics().windows[window]);
        let first_batch = p.first_batch(window);
        let batches = p.first_batch(window + 1) - first_batch;
        WindowReport {
            first_batch,
            batches,
            events: s.events,
            cut: s.cut,
            load: s.load.clone(),
            balance: s.balance,
            moved: s.moved,
            rows: Rows::a_batch(self.rows[window], batches),
        }
    }
}
