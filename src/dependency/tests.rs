//! Plans of all ranks against each other, and their rows against a count by sets.

use super::*;
use crate::graph::{Endpoint, Tcsr};
use crate::partition::{Partition, PartitionConfig, Rank, Strategy};
use crate::sampler::{Root, SampleScratch, Sampler, SamplerConfig};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use tidemill_data::id::{EventId, NodeId};
use tidemill_data::philox::{Key, Purpose};
use tidemill_data::stream::EventStream;

const RANKS: usize = 3;
const BATCH: usize = 20;

fn stream() -> EventStream {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/bipartite.csv");
    tidemill_data::load(&tidemill_data::DataConfig::of(&path), &mut |_| {}).expect("a stream")
}

/// A pass over the stream, one negative an event.
struct Fixture {
    stream: EventStream,
    events: Vec<EventId>,
    sampler: Sampler,
    partition: Arc<Partition>,
}

impl Fixture {
    fn new(strategy: Strategy) -> Fixture {
        let stream = stream();
        let events: Vec<EventId> = (0..stream.len() as u32).map(EventId).collect();
        let graph = Arc::new(Tcsr::build(&stream, &events));
        let sampler =
            Sampler::new(&SamplerConfig { neighbors: vec![4], ..SamplerConfig::default() }, graph, stream.tick());
        let config = PartitionConfig { strategy, window_events: 60, rebalance_above: 1.01 };
        let partition = Partition::new(&stream, &events, BATCH, RANKS, &config, None);
        Fixture { stream, events, sampler, partition: Arc::new(partition) }
    }

    fn roots(&self, events: &[EventId]) -> Vec<Root> {
        let end = |event: EventId, endpoint| {
            let node = match endpoint {
                Endpoint::Source => self.stream.source(event),
                Endpoint::Destination => self.stream.destination(event),
            };
            Root { node, time: self.stream.time(event), before: None }
        };
        let negative = |&event: &EventId| {
            let node = NodeId(event.0 * 7 % self.stream.nodes());
            Root { node, time: self.stream.time(event), before: None }
        };
        let [sources, destinations] = [Endpoint::Source, Endpoint::Destination]
            .map(|endpoint| events.iter().map(|&event| end(event, endpoint)).collect::<Vec<_>>());
        [sources, destinations, events.iter().map(negative).collect()].concat()
    }

    /// Every rank's share of every batch.
    fn shares(&self, delegate: Auto<bool>, cache: u64) -> Vec<Vec<Share>> {
        let weights = Weights { row: 100, embedding: 40, feature: 0, cache };
        let pass = PassFacts { training: true, blank: true, writes: true, embeddings_mailed: false };
        let planner = |rank| Planner::new(Rank(rank), &self.stream, self.partition.clone(), delegate, weights, pass);
        let mut planners: Vec<Planner> = (0..RANKS as u16).map(planner).collect();
        let mut scratch = SampleScratch::default();
        let batches = self.events.chunks(BATCH).enumerate();
        let of_batch = |(number, events): (usize, &[EventId])| {
            let roots = self.roots(events);
            let batch = GlobalBatch {
                number,
                first: number * BATCH,
                events,
                roots: &roots,
                key: Key::new(1, Purpose::Neighbor),
                sampler: &self.sampler,
                cache: None,
                known: 0,
            };
            planners.iter_mut().map(|planner| planner.share(&batch, &mut scratch)).collect()
        };
        batches.map(of_batch).collect()
    }

    /// Rows that owners must push if each rank embeds its own events' roots: those needed, not owned, written before, and
    /// not pushed since.
    fn rows_by_sets(&self) -> u64 {
        let (mut written, mut pushed, mut rows) = (HashMap::new(), HashMap::new(), 0);
        for (number, events) in self.events.chunks(BATCH).enumerate() {
            let table = self.partition.table(self.partition.window_of_batch(number));
            if number == self.partition.first_batch(self.partition.window_of_batch(number)) {
                for (node, _, to) in self.partition.moved(self.partition.window_of_batch(number)) {
                    pushed.remove(&(*to, *node)); // its own row now
                }
            }
            let mut needs: HashSet<(Rank, NodeId)> = HashSet::new();
            for (logical, root) in self.roots(events).into_iter().enumerate() {
                let rank = self.partition.primary(number * BATCH + logical % events.len());
                let key = Key::new(1, Purpose::Neighbor);
                let sample = self.sampler.sample(&[root], events[0], key, &mut SampleScratch::default());
                needs.extend(sample.rows.iter().map(|&node| (rank, node)));
            }
            for (rank, node) in needs.into_iter().filter(|&(rank, node)| table.owner(node) != rank) {
                let version: Option<&usize> = written.get(&node);
                let Some(&version) = version else { continue };
                rows += u64::from(pushed.insert((rank, node), version) != Some(version));
            }
            for &event in events {
                written.insert(self.stream.source(event), number);
                written.insert(self.stream.destination(event), number);
            }
        }
        rows
    }
}

#[test]
fn rows_fetched_equal_a_count_by_sets() {
    for strategy in [Strategy::Hash, Strategy::Fennel, Strategy::Range] {
        let fixture = Fixture::new(strategy);
        let shares = fixture.shares(Auto::Value(false), 1 << 30);
        let fetched: u64 = shares.iter().flatten().map(|share| share.counts.fetched).sum();
        assert_eq!(fetched, fixture.rows_by_sets(), "{strategy:?}");
        assert!(fetched > 100, "{strategy:?}: {fetched}");
    }
}

/// What a rank sends is what the other expects; events and roots are each on exactly one rank; delegation saves rows.
#[test]
fn all_ranks_plan_alike() {
    let fixture = Fixture::new(Strategy::Hash);
    let mut rows = Vec::new();
    for (delegate, cache) in
        [(Auto::Value(false), 1 << 30), (Auto::Auto, 1 << 30), (Auto::Auto, 500), (Auto::Value(true), 0)]
    {
        let shares = fixture.shares(delegate, cache);
        rows.push(shares.iter().flatten().map(|share| share.counts.fetched).sum::<u64>());
        for of_rank in &shares {
            let mut mine: Vec<u32> = of_rank.iter().flat_map(|share| share.mine.clone()).collect();
            let mut embeds: Vec<u32> = of_rank.iter().flat_map(|share| share.embeds.clone()).collect();
            mine.sort_unstable();
            embeds.sort_unstable();
            assert!(mine.iter().copied().eq(0..mine.len() as u32) && embeds.iter().copied().eq(0..embeds.len() as u32));
            for (a, from) in of_rank.iter().enumerate() {
                for (peer, sent) in &from.exchange.push.out {
                    let into = &of_rank[peer.index()].exchange.push.into;
                    let expected = into.iter().find(|(rank, _)| rank.index() == a).map(|(_, nodes)| nodes);
                    assert_eq!(Some(sent), expected);
                }
                for (peer, sent) in &from.exchange.embeddings.out {
                    let into = &of_rank[peer.index()].exchange.embeddings.into;
                    let expected = into.iter().find(|(rank, _)| rank.index() == a).map(|(_, rows)| rows.len());
                    assert_eq!(Some(sent.len()), expected);
                }
            }
        }
    }
    assert!(rows[1] < rows[0], "by cost fewer rows than without delegation: {rows:?}");
}

/// The algorithm page's worked example: of 10,000 events on 4 ranks each runs 2,500; on rank 1, 750 of them need one remote row,
/// of which 375 are cached and 375 fetched.
///
/// A batch is 40 events, 10 for each rank; 3 of rank 1's are with nodes of rank 0: in even batches with nodes that only these
/// events touch, in odd ones with nodes that rank 0's own events touch in every batch. A push and an update cost 1 ms each, so
/// over the 250 batches rho = 125 / (124 + 125) = 0.502 and 250 / (125 + 250) = 0.667.
#[test]
fn the_worked_example_of_cached_and_fetched_rows() {
    use crate::dependency::window::WindowNeeds;
    use std::fmt::Write;
    let mut csv = "src,dst,t\n".to_owned();
    for batch in 0..250u32 {
        let mut event = |src: u32, dst: u32| writeln!(csv, "{src},{dst},{batch}").expect("a string");
        for i in 0..10u32 {
            event(i % 3, 6 + i % 4); // rank 0: nodes 0, 1, 2 in every batch, 3, 4, 5 in none
            event(20 + i, 20 + (i + 1) % 10);
            event(30 + i, 30 + (i + 1) % 10);
        }
        (0..7).for_each(|i| event(10 + i, 13 + i));
        (0..3).for_each(|i| event(10 + i, if batch % 2 == 0 { 3 + i } else { i }));
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("example.csv");
    std::fs::write(&path, csv).expect("a writable folder");
    let data = tidemill_data::DataConfig { bipartite: Some(false), ..tidemill_data::DataConfig::of(&path) };
    let stream = tidemill_data::load(&data, &mut |_| {}).expect("a stream");
    let events: Vec<EventId> = (0..10_000).map(EventId).collect();
    let sampler = Sampler::without_neighbors(Arc::new(Tcsr::build(&stream, &events)), stream.tick());
    let config = PartitionConfig { strategy: Strategy::Range, window_events: 10_000, rebalance_above: f64::INFINITY };
    let partition = Arc::new(Partition::new(&stream, &events, 40, 4, &config, None));
    let rates = Calibration { latency_s: 1e-12, bytes_per_s: 1e6, update_s: 1e-3 };
    let costs = Costs { rates, alpha: 1.0, beta: 1.0, row: 1000, memory: 0, embedding: 400 };
    let policy = Policy { tau: Auto::Value(0.6), costs, gated: false, corrections: None, looks_ahead: false };
    let weights = Weights { row: 1000, embedding: 400, feature: 0, cache: 1 << 30 };
    let pass = PassFacts { training: true, blank: true, writes: true, embeddings_mailed: false };
    let planner = |rank| Planner::new(Rank(rank), &stream, partition.clone(), Auto::Value(false), weights, pass);
    let mut scratch = SampleScratch::default();
    for rank in 0..4 {
        let mut planner = planner(rank).with_policy(policy);
        let mut counts = Counts::default();
        let mut primary = 0;
        let roots = |events: &[EventId]| -> Vec<Root> {
            let at = |node, event| Root { node, time: stream.time(event), before: None };
            let sources = events.iter().map(|&event| at(stream.source(event), event));
            sources.chain(events.iter().map(|&event| at(stream.destination(event), event))).collect()
        };
        let all: Vec<Vec<Root>> = events.chunks(40).map(roots).collect();
        let batch = |number: usize| GlobalBatch {
            number,
            first: number * 40,
            events: &events[number * 40..(number + 1) * 40],
            roots: &all[number],
            key: Key::new(1, Purpose::Neighbor),
            sampler: &sampler,
            cache: None,
            known: 0,
        };
        let window = planner.window_to_inspect(0).expect("a threshold between 0 and 1 depends on the needs");
        let (mut inspector, mut needs) = (planner.inspector(), WindowNeeds::default());
        window.for_each(|number| inspector.inspect(&batch(number), &mut scratch, &mut needs));
        planner.open_window(&needs);
        for number in 0..250 {
            let share = planner.share(&batch(number), &mut scratch);
            counts.add(&share.counts);
            primary += share.mine.len();
        }
        assert_eq!(primary, 2500, "rank {rank}");
        if rank == 1 {
            assert_eq!((counts.remote, counts.cached, counts.fetched), (750, 375, 375));
        }
    }
}
