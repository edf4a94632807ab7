//! The sampler over a stream's training batches.
//!
//! A pass samples every batch once, in order, with one negative destination an event, drawn beforehand. Counted are distinct
//! (node, time) among sources, destinations and negatives of a batch, at the first hop; deeper hops are work, not count. Finding
//! where a root's past ends is in the time (an offset for the events' endpoints, a search for negatives), so is numbering
//! distinct roots and rows. The sample cache is not used.

use crate::error::Result;
use crate::graph::Tcsr;
use crate::pipeline::event::logical_roots;
use crate::sampler::{Sample, SampleScratch, Sampler, SamplerConfig, Strategy};
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_data::id::{EventId, NodeId};
use tidemill_data::negative::{CandidateRule, NegativeSampler, Scored};
use tidemill_data::philox::{Key, Purpose};
use tidemill_data::split::Split;
use tidemill_data::stream::EventStream;

/// Passes are repeated until this has gone by, at least [`PASSES`] times.
const TIME: Duration = Duration::from_secs(3);
/// Least number of passes, the first of which fills the buffers.
const PASSES: usize = 3;

/// What to sample.
#[derive(Clone, Debug)]
pub struct SamplerBench<'a> {
    /// The stream.
    pub stream: &'a EventStream,
    /// Its split; the training events are sampled.
    pub split: &'a Split,
    /// How.
    pub sampler: &'a SamplerConfig,
    /// Events of a batch.
    pub batch_size: usize,
    /// Where negatives are drawn from.
    pub negatives: &'a CandidateRule,
    /// Key of the draws.
    pub seed: u64,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct SamplerReport {
    /// Name of the stream.
    pub dataset: String,
    /// Events of the stream.
    pub events: usize,
    /// Nodes of the stream.
    pub nodes: u32,
    /// Which neighbors.
    pub strategy: Strategy,
    /// How many, hop by hop.
    pub neighbors: Vec<usize>,
    /// Events of a batch.
    pub batch_size: usize,
    /// Batches of a pass.
    pub batches: usize,
    /// Seconds to build the T-CSR of the whole stream, on all threads.
    pub build_seconds: f64,
    /// Heap bytes of the T-CSR.
    pub graph_bytes: usize,
    /// On one thread.
    pub one_core: SamplerRate,
    /// On all threads of the rank: a batch's roots are shared out, batches come one after another as in training.
    pub all_cores: SamplerRate,
}

/// Rates of the fastest pass.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct SamplerRate {
    /// Threads.
    pub threads: usize,
    /// Passes tried.
    pub passes: usize,
    /// Seconds of a pass.
    pub seconds: f64,
    /// Distinct (node, time) of the first hop, in a pass.
    pub roots: u64,
    /// Of those, a second.
    pub roots_per_s: f64,
    /// Events a second.
    pub events_per_s: f64,
    /// Neighbors found, over all hops, in a pass.
    pub edges: u64,
    /// 10^9 bytes a second of entries read and sample written; tables and caches' lines apart.
    pub gb_per_s: f64,
}

impl SamplerBench<'_> {
    /// Measures.
    ///
    /// # Errors
    /// If no negative can be drawn.
    pub fn run(&self, threads: usize) -> Result<SamplerReport> {
        let start = Instant::now();
        let all: Vec<EventId> = (0..self.stream.len() as u32).map(EventId).collect();
        let graph = Arc::new(Tcsr::build(self.stream, &all));
        let build_seconds = start.elapsed().as_secs_f64();
        let negatives = self.draw_negatives()?;
        Ok(SamplerReport {
            dataset: self.stream.meta().name.clone(),
            events: self.stream.len(),
            nodes: self.stream.nodes(),
            strategy: self.sampler.strategy,
            neighbors: self.sampler.neighbors.clone(),
            batch_size: self.batch_size,
            batches: self.split.train.len().div_ceil(self.batch_size),
            build_seconds,
            graph_bytes: graph.heap_bytes(),
            one_core: self.rate(&graph, &negatives, 1),
            all_cores: self.rate(&graph, &negatives, threads),
        })
    }

    fn draw_negatives(&self) -> Result<Vec<NodeId>> {
        let key = Key::new(self.seed, Purpose::TrainNegative);
        let sampler = NegativeSampler::new(self.stream, self.split, self.negatives, Scored::Train, true, key)?;
        let draw = |&event: &EventId| sampler.draw(1, event, self.stream.destination(event), 0);
        Ok(self.split.train.iter().map(draw).collect())
    }

    fn rate(&self, graph: &Arc<Tcsr>, negatives: &[NodeId], threads: usize) -> SamplerRate {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        let sampler = Sampler::new(self.sampler, graph.clone(), self.stream.tick());
        pool.install(|| {
            let (start, mut best, mut buffers) = (Instant::now(), SamplerRate::default(), Buffers::default());
            let mut passes = 0;
            while passes < PASSES || start.elapsed() < TIME {
                let pass = self.pass(&sampler, negatives, &mut buffers);
                if passes == 0 || pass.seconds < best.seconds {
                    best = pass;
                }
                passes += 1;
            }
            SamplerRate { threads, passes, ..best }
        })
    }

    fn pass(&self, sampler: &Sampler, negatives: &[NodeId], buffers: &mut Buffers) -> SamplerRate {
        let key = Key::new(self.seed, Purpose::Neighbor);
        let Buffers { roots, scratch, sample } = buffers;
        let (mut count, mut edges, mut bytes) = (0, 0, 0);
        let start = Instant::now();
        let batches = self.split.train.chunks(self.batch_size).zip(negatives.chunks(self.batch_size));
        for (batch, (events, negatives)) in (0..).zip(batches) {
            logical_roots(self.stream, sampler.graph(), events, negatives, roots);
            sampler.sample_into(roots, events[0], key.narrow([1, batch, 0, 0]), scratch, sample);
            count += sample.hops[0].roots.len() as u64;
            edges += sample.hops.iter().map(|hop| hop.edges() as u64).sum::<u64>();
            bytes += sample.bytes_touched();
        }
        let seconds = start.elapsed().as_secs_f64();
        SamplerRate {
            seconds,
            roots: count,
            roots_per_s: count as f64 / seconds,
            events_per_s: self.split.train.len() as f64 / seconds,
            edges,
            gb_per_s: bytes as f64 / seconds / 1e9,
            ..SamplerRate::default()
        }
    }
}

/// What is kept from batch to batch.
#[derive(Default)]
struct Buffers {
    roots: Vec<crate::sampler::Root>,
    scratch: SampleScratch,
    sample: Sample,
}
