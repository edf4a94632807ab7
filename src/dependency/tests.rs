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
        let pass = PassFacts { training: true, blank: true, writes: true };
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
