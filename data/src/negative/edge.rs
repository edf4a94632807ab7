//! Negative edges: pairs that did happen, but not now (historical and inductive negatives; Poursafaei et al., NeurIPS 2022,
//! arXiv:2207.10128, section 4.3, with the sets as DyGLib, arXiv:2303.13047, defines them).
//!
//! For a batch whose times run from t0 to t1, with every set one of distinct (source, destination) pairs:
//! - *historical*: seen at or before t0, without those seen within `[t0, t1]`;
//! - *inductive*: of these, the ones that were not seen by the end of training.
//!
//! A batch of B events gets B such pairs, drawn without replacement. If there are fewer, all of them are taken, after as many
//! random pairs (any source, any destination, none of the batch's own) as are missing. A negative has its event's time, but a
//! source of its own: it is an edge, not another destination of the event's source.
//!
//! Invariants: what is drawn is a pure function of the sampler and the batch's events; nothing later than t1 is looked at.

use super::choice::{distinct, skip};
use crate::id::{EventId, NodeId, Timestamp};
use crate::philox::Key;
use crate::stream::EventStream;
use std::collections::HashMap;
use std::sync::Arc;

/// Which pairs are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EdgeRule {
    /// Seen before, absent now.
    Historical,
    /// Of these, unseen in training.
    Inductive,
}

/// A source and a destination.
pub type Pair = (NodeId, NodeId);

/// Draws negative edges. `Send + Sync`; holds no state.
#[derive(Clone, Debug)]
pub struct EdgeSampler {
    rule: EdgeRule,
    key: Key,
    trained_until: Timestamp,
    stream: EventStream,
    /// The events whose pairs are drawn, ascending.
    events: Arc<[EventId]>,
    /// Distinct pairs, by their first event.
    pairs: Vec<Pair>,
    /// When each was first seen.
    first_seen: Vec<Timestamp>,
    number: HashMap<Pair, u32>,
    /// Pairs seen by the end of training come first: how many.
    observed: usize,
    sources: Vec<NodeId>,
    destinations: Vec<NodeId>,
}

impl EdgeSampler {
    /// A sampler of the pairs of `events`.
    ///
    /// * `events`: ascending; the batches' own events are among them.
    /// * `trained_until`: time of the last training event.
    /// * `key`: of the run's seed and purpose.
    pub fn new(
        stream: &EventStream,
        events: Arc<[EventId]>,
        trained_until: Timestamp,
        rule: EdgeRule,
        key: Key,
    ) -> EdgeSampler {
        let (mut pairs, mut first_seen, mut number) = (Vec::new(), Vec::new(), HashMap::new());
        for &event in events.iter() {
            let pair = pair_of(stream, event);
            number.entry(pair).or_insert_with(|| {
                pairs.push(pair);
                first_seen.push(stream.time(event));
                pairs.len() as u32 - 1
            });
        }
        let ascending = |nodes: &mut Vec<NodeId>| {
            nodes.sort_unstable();
            nodes.dedup();
        };
        let (mut sources, mut destinations): (Vec<_>, Vec<_>) = pairs.iter().copied().unzip();
        ascending(&mut sources);
        ascending(&mut destinations);
        let observed = first_seen.partition_point(|&t| t <= trained_until);
        EdgeSampler {
            rule,
            trained_until,
            key,
            stream: stream.clone(),
            events,
            pairs,
            first_seen,
            number,
            observed,
            sources,
            destinations,
        }
    }

    /// The same sampler over other events.
    pub fn among(&self, events: Arc<[EventId]>) -> EdgeSampler {
        EdgeSampler::new(&self.stream, events, self.trained_until, self.rule, self.key)
    }

    /// One pair for each event of a batch.
    ///
    /// * `batch`: ascending, not empty.
    pub fn sample(&self, batch: &[EventId]) -> Vec<Pair> {
        let key = self.key.narrow([0, batch[0].0, 0, 1]);
        let (first, last) = self.pool(batch);
        let excluded = self.now(batch, first, last);
        let available = (last - first) as u64 - excluded.len() as u64;
        let drawn = distinct(key.narrow([0, 0, 0, 0]), batch.len(), available);
        let missing = batch.len() - drawn.len();
        let mut pairs = self.random(batch, missing, key.narrow([1, 0, 0, 0]));
        pairs.extend(drawn.into_iter().map(|rank| self.pairs[skip(rank, first as u64, &excluded) as usize]));
        pairs
    }

    /// Pairs that the rule draws for a batch, before those of the batch's own time are taken out: a range of numbers.
    fn pool(&self, batch: &[EventId]) -> (usize, usize) {
        let start = self.stream.time(batch[0]);
        let last = self.first_seen.partition_point(|&t| t <= start);
        match self.rule {
            EdgeRule::Historical => (0, last),
            EdgeRule::Inductive => (self.observed.min(last), last),
        }
    }

    /// Numbers within the pool of pairs seen within the batch's time, ascending.
    fn now(&self, batch: &[EventId], first: usize, last: usize) -> Vec<u64> {
        let (start, end) = (self.stream.time(batch[0]), self.stream.time(*batch.last().expect("a batch has events")));
        let from = self.events.partition_point(|&e| self.stream.time(e) < start);
        let within = self.events[from..].iter().take_while(|&&e| self.stream.time(e) <= end);
        let number = |&event: &EventId| self.number[&pair_of(&self.stream, event)] as usize;
        let mut numbers: Vec<u64> =
            within.map(number).filter(|n| (first..last).contains(n)).map(|n| n as u64).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    /// Distinct random pairs that are none of the batch's; repeated ones only where there are not enough.
    fn random(&self, batch: &[EventId], count: usize, key: Key) -> Vec<Pair> {
        let width = self.destinations.len() as u64;
        let rank = |event: &EventId| {
            let (source, destination) = pair_of(&self.stream, *event);
            let (s, d) =
                (self.sources.binary_search(&source).ok()?, self.destinations.binary_search(&destination).ok()?);
            Some(s as u64 * width + d as u64)
        };
        let mut excluded: Vec<u64> = batch.iter().filter_map(rank).collect();
        excluded.sort_unstable();
        excluded.dedup();
        let all = self.sources.len() as u64 * width;
        if excluded.len() as u64 == all {
            excluded.clear(); // nothing else is there
        }
        let available = all - excluded.len() as u64;
        let mut ranks = distinct(key, count, available);
        let repeats = (ranks.len()..count).map(|i| key.below_u64(i as u64, available));
        ranks.extend(repeats.collect::<Vec<_>>());
        let pair = |rank: u64| {
            let at = skip(rank, 0, &excluded);
            (self.sources[(at / width) as usize], self.destinations[(at % width) as usize])
        };
        ranks.into_iter().map(pair).collect()
    }
}

fn pair_of(stream: &EventStream, event: EventId) -> Pair {
    (stream.source(event), stream.destination(event))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::negative::tests::events_of;
    use crate::philox::Purpose;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// The sets of the module's text, from scratch.
    fn brute_force(
        stream: &EventStream,
        events: &[EventId],
        until: Timestamp,
        rule: EdgeRule,
        batch: &[EventId],
    ) -> BTreeSet<Pair> {
        let seen = |keep: &dyn Fn(Timestamp) -> bool| -> BTreeSet<Pair> {
            events.iter().filter(|&&e| keep(stream.time(e))).map(|&e| pair_of(stream, e)).collect()
        };
        let (start, end) = (stream.time(batch[0]), stream.time(*batch.last().unwrap()));
        let mut pool = &seen(&|t| t <= start) - &seen(&|t| (start..=end).contains(&t));
        if rule == EdgeRule::Inductive {
            pool = &pool - &seen(&|t| t <= until);
        }
        pool
    }

    fn key(seed: u64) -> Key {
        Key::new(seed, Purpose::EvalNegative)
    }

    proptest! {
        #[test]
        fn pools_equal_brute_force(
            rows in proptest::collection::vec((0u32..4, 0u32..4, 0i64..12), 8..40),
            trained in 0i64..8, size in 1usize..6, inductive in any::<bool>(), skipped in 0usize..4, seed in any::<u64>(),
        ) {
            let stream = events_of(&rows);
            let rule = if inductive { EdgeRule::Inductive } else { EdgeRule::Historical };
            let until = Timestamp(trained);
            let events: Vec<EventId> = (skipped as u32..stream.len() as u32).map(EventId).collect();
            let sampler = EdgeSampler::new(&stream, events.clone().into(), until, rule, key(seed));
            for batch in events.chunks(size) {
                let wanted = brute_force(&stream, &events, until, rule, batch);
                let drawn = sampler.sample(batch);
                prop_assert_eq!(drawn.len(), batch.len());
                prop_assert_eq!(&drawn, &sampler.sample(batch));
                let random = batch.len().saturating_sub(wanted.len());
                let known: BTreeSet<Pair> = drawn[random..].iter().copied().collect();
                prop_assert_eq!(known.len(), batch.len() - random, "distinct");
                prop_assert!(known.is_subset(&wanted), "{known:?} {wanted:?}");
                let own: BTreeSet<Pair> = batch.iter().map(|&e| pair_of(&stream, e)).collect();
                let possible = sampler.sources.len() * sampler.destinations.len();
                prop_assert!(own.len() == possible || drawn[..random].iter().all(|pair| !own.contains(pair)));
            }
        }
    }

    /// Ten pairs at times 0 to 9, then two events of other pairs: the pool is the ten, and every one is drawn alike.
    #[test]
    fn every_pair_of_the_pool_is_drawn_alike() {
        let mut rows: Vec<(u32, u32, i64)> = (0..10).map(|i| (i / 5, i % 5, i64::from(i))).collect();
        rows.extend([(2, 0, 20), (2, 1, 21)]);
        let stream = events_of(&rows);
        let events: Arc<[EventId]> = (0..12).map(EventId).collect();
        let mut seen = std::collections::BTreeMap::<Pair, u32>::new();
        for seed in 0..10_000 {
            let sampler = EdgeSampler::new(&stream, events.clone(), Timestamp(4), EdgeRule::Historical, key(seed));
            sampler.sample(&events[10..]).into_iter().for_each(|pair| *seen.entry(pair).or_default() += 1);
        }
        // chi-square with 9 degrees of freedom: 27.9 once in a thousand; draws without replacement vary a little less
        let chi: f64 = seen.values().map(|&n| (f64::from(n) - 2_000.0).powi(2) / 2_000.0).sum();
        assert!(seen.len() == 10 && chi < 27.9, "{seen:?}: {chi}");
        let inductive = EdgeSampler::new(&stream, events.clone(), Timestamp(4), EdgeRule::Inductive, key(0));
        let (first, last) = inductive.pool(&events[10..]);
        assert_eq!((first, last), (5, 11), "five of the ten were seen in training; the last is of the batch itself");
        assert_eq!(inductive.now(&events[10..], first, last), [10]);
    }
}
