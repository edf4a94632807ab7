//! Samples against a search through the list of all events.

use super::*;
use crate::graph::{Columns, Endpoint};
use proptest::prelude::{Strategy as _, any, prop, proptest};
use std::collections::BTreeSet;
use tidemill_data::philox::Purpose;

const TICK: Tick = Tick { per_second: 1 };

/// A small stream, all of whose events are edges.
#[derive(Clone, Debug)]
struct Events {
    nodes: u32,
    source: Vec<NodeId>,
    destination: Vec<NodeId>,
    time: Vec<Timestamp>,
}

impl Events {
    /// From (source, destination, time) in any order of time.
    fn new(nodes: u32, mut events: Vec<(u32, u32, i64)>) -> Events {
        events.sort_by_key(|e| e.2);
        Events {
            nodes,
            source: events.iter().map(|e| NodeId(e.0)).collect(),
            destination: events.iter().map(|e| NodeId(e.1)).collect(),
            time: events.iter().map(|e| Timestamp(e.2)).collect(),
        }
    }

    /// `count` events among `nodes` nodes, some with the hub 0, several per instant.
    fn random(nodes: u32, count: u64) -> Events {
        let key = Key::new(11, Purpose::Generate);
        let node = |i: u64| {
            if key.word(3 * i).is_multiple_of(4) { 0 } else { key.below(3 * i + 1, nodes) }
        };
        Events::new(nodes, (0..count).map(|i| (node(2 * i), node(2 * i + 1), (i / 3) as i64)).collect())
    }

    fn graph(&self) -> Arc<Tcsr> {
        let all: Vec<EventId> = (0..self.time.len() as u32).map(EventId).collect();
        let columns =
            Columns { first: EventId(0), source: &self.source, destination: &self.destination, time: &self.time };
        Arc::new(Tcsr::from_columns(self.nodes, &[columns], &all))
    }

    /// (neighbor, event, time) of all entries that a root sees, oldest first.
    fn visible(
        &self,
        node: NodeId,
        time: Timestamp,
        same_batch: SameBatch,
        first: EventId,
    ) -> Vec<(NodeId, EventId, Timestamp)> {
        let mut entries = Vec::new();
        for (e, &t) in self.time.iter().enumerate() {
            let event = EventId(e as u32);
            let shown = t < time && (same_batch == SameBatch::Visible || event < first);
            for (near, far) in [(self.source[e], self.destination[e]), (self.destination[e], self.source[e])] {
                if shown && near == node {
                    entries.push((far, event, t));
                }
            }
        }
        entries
    }

    /// The roots of a batch: source, destination and a negative of each event, as the pipeline makes them.
    fn roots(&self, graph: &Tcsr, batch: std::ops::Range<u32>) -> Vec<Root> {
        let mut roots = Vec::new();
        for event in batch.map(EventId) {
            let (e, time) = (event.index(), self.time[event.index()]);
            let known = |node, end| Root { node, time, before: Some(graph.offset(event, end)) };
            roots.push(known(self.source[e], Endpoint::Source));
            roots.push(known(self.destination[e], Endpoint::Destination));
            roots.push(Root { node: NodeId(event.0.wrapping_mul(7) % self.nodes), time, before: None });
        }
        roots
    }

    fn hash(&self, sample: &Sample, batch: std::ops::Range<u32>) -> SampleHash {
        let mut hash = SampleHash::default();
        for (i, event) in batch.enumerate() {
            for (j, role) in [Role::Source, Role::Destination, Role::Negative(0)].into_iter().enumerate() {
                hash.add_root(sample, 3 * i + j, EventId(event), role);
            }
        }
        hash
    }
}

fn config(strategy: Strategy, neighbors: &[usize], same_batch: SameBatch, hop_time: HopTime) -> SamplerConfig {
    SamplerConfig { strategy, neighbors: neighbors.to_vec(), same_batch, hop_time, ..SamplerConfig::default() }
}

fn recent(neighbors: &[usize], same_batch: SameBatch) -> SamplerConfig {
    config(Strategy::Recent, neighbors, same_batch, HopTime::Edge)
}

fn key() -> Key {
    Key::new(1, Purpose::Neighbor).narrow([0, 3, 0, 0])
}

/// (neighbor, event, time) of a root's valid slots.
fn slots(hop: &Hop, r: usize) -> Vec<(NodeId, EventId, Timestamp)> {
    hop.slots(r).map(|at| (hop.neighbor[at], hop.event[at], hop.time[at])).collect()
}

/// What the naive sampler gives for one root of hop `h`.
fn expected(
    events: &Events,
    config: &SamplerConfig,
    h: usize,
    root: &Root,
    first: EventId,
) -> Vec<(NodeId, EventId, Timestamp)> {
    let mut visible = events.visible(root.node, root.time, config.same_batch, first);
    if config.latest == Latest::Dropped {
        visible.pop();
    }
    let k = config.neighbors[h];
    match config.strategy {
        Strategy::Recent => visible[visible.len().saturating_sub(k)..].to_vec(),
        Strategy::Oldest => visible[..visible.len().min(k)].to_vec(),
        Strategy::Uniform if visible.is_empty() => Vec::new(),
        Strategy::Uniform => {
            let key = key().at(root.node.0, root.time.0.wrapping_mul(1_000_000_000), h as u32);
            let mut drawn: Vec<_> =
                (0..k as u64).map(|slot| visible[key.below(slot, visible.len() as u32) as usize]).collect();
            drawn.sort_by_key(|entry| entry.1);
            drawn
        }
    }
}

/// Checks all that is promised of a sample.
fn check(events: &Events, config: &SamplerConfig, logical: &[Root], first: EventId, sample: &Sample) {
    assert_eq!(sample.hops.len(), config.hops());
    let of = |root: &Root| (root.node, root.time);
    assert_eq!(sample.root_of.len(), logical.len());
    for (root, &at) in logical.iter().zip(&sample.root_of) {
        assert_eq!(of(root), of(&sample.hops[0].roots[at as usize]));
    }
    let mut seen: Vec<(NodeId, Timestamp)> = first_seen(logical.iter().map(of));
    for (h, hop) in sample.hops.iter().enumerate() {
        let roots: Vec<_> = hop.roots.iter().map(of).collect();
        assert_eq!(roots, seen, "roots of hop {h}");
        let width = hop.roots.len() * hop.fanout;
        assert_eq!([hop.neighbor.len(), hop.event.len(), hop.time.len(), hop.below_neighbor.len()], [width; 4]);
        assert_eq!(
            [hop.count.len(), hop.below_root.len(), hop.fanout],
            [roots.len(), roots.len(), config.neighbors[h]]
        );
        let mut below = roots.clone();
        for (r, root) in hop.roots.iter().enumerate() {
            let got = slots(hop, r);
            assert_eq!(got, expected(events, config, h, root, first), "hop {h}, root {root:?}");
            assert!(got.iter().all(|entry| entry.2 < root.time), "an edge that is not strictly earlier than {root:?}");
            assert_eq!(root.before, Some(events.visible(root.node, root.time, SameBatch::Visible, first).len() as u32));
            let padding = hop.slots(r).end..(r + 1) * hop.fanout;
            let zero = |at: usize| {
                (hop.neighbor[at].0, hop.event[at].0, hop.time[at].0, hop.below_neighbor[at]) == (0, 0, 0, 0)
            };
            assert!(padding.into_iter().all(zero), "padding of {root:?}");
            let at = |t: Timestamp| if config.hop_time == HopTime::Edge { t } else { root.time };
            below.extend(got.iter().map(|&(node, _, t)| (node, at(t))));
        }
        seen = first_seen(below.iter().copied());
        let nodes = first_seen(below.iter().map(|pair| pair.0));
        let deepest = h + 1 == sample.hops.len();
        let points_to = |at: u32, pair: (NodeId, Timestamp)| match deepest {
            true => sample.rows[at as usize] == pair.0,
            false => of(&sample.hops[h + 1].roots[at as usize]) == pair,
        };
        let mut links = hop.below_root.clone();
        links.extend((0..roots.len()).flat_map(|r| hop.slots(r)).map(|at| hop.below_neighbor[at]));
        assert!(links.iter().zip(below).all(|(&at, pair)| points_to(at, pair)), "links of hop {h}");
        if deepest {
            assert_eq!(sample.rows, nodes);
        }
    }
}

fn first_seen<T: PartialEq + Copy>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for item in items {
        if !seen.contains(&item) {
            seen.push(item);
        }
    }
    seen
}

/// Samples a batch and checks the sample.
fn sample_and_check(
    events: &Events,
    config: &SamplerConfig,
    batch: std::ops::Range<u32>,
    scratch: &mut SampleScratch,
) -> Sample {
    let graph = events.graph();
    let (roots, first) = (events.roots(&graph, batch.clone()), EventId(batch.start));
    let sample = Sampler::new(config, graph, TICK).sample(&roots, first, key(), scratch);
    check(events, config, &roots, first, &sample);
    sample
}

/// Events of `sample`'s logical root `i` at the top hop.
fn events_of(sample: &Sample, i: usize) -> Vec<u32> {
    slots(&sample.hops[0], sample.root_of[i] as usize).iter().map(|entry| entry.1.0).collect()
}

/// ```text
/// a --t1-- b    a --t2-- b    a --t2-- c    a --t3-- a    a --t5-- b
///    0             1             2             3             4 (the batch)
/// ```
#[test]
fn first_edges_ties_and_self_loops() {
    let events = Events::new(3, vec![(0, 1, 1), (0, 1, 2), (0, 2, 2), (0, 0, 3), (0, 1, 5)]);
    let with = |k: usize, batch| {
        sample_and_check(&events, &recent(&[k], SameBatch::Hidden), batch, &mut SampleScratch::default())
    };
    let all = with(5, 4..5);
    assert_eq!(events_of(&all, 0), [0, 1, 2, 3, 3], "K is the degree: the first edge is there, the self-loop twice");
    assert_eq!(events_of(&all, 1), [0, 1], "fewer than K");
    assert_eq!(events_of(&with(3, 4..5), 0), [2, 3, 3], "more than K: the latest, oldest first");
    assert_eq!(events_of(&with(1, 4..5), 0), [3]);
    let tied = with(5, 2..3);
    assert_eq!(
        events_of(&tied, 0),
        [0],
        "event 1 is of the same instant: hidden from event 2, and it takes up no slot"
    );
    assert!(events_of(&with(5, 0..1), 0).is_empty());
}

/// A hub with K + 3 events in one batch, three in the batch before:
///
/// ```text
/// a-b a-c a-d | a-b a-c a-d a-b a-c a-d a-b      K = 4
///  0   1   2  |  3   4   5   6   7   8   9
/// ```
#[test]
fn more_than_k_events_of_a_node_in_one_batch() {
    let events = Events::new(4, (0..10).map(|i| (0, 1 + i % 3, i64::from(i) + 1)).collect());
    let with = |same| sample_and_check(&events, &recent(&[4], same), 3..10, &mut SampleScratch::default());
    let (hidden, visible) = (with(SameBatch::Hidden), with(SameBatch::Visible));
    for i in 0..7 {
        let last = i as u32 + 3;
        assert_eq!(events_of(&hidden, 3 * i), [0, 1, 2], "event {last} sees the batch before");
        assert_eq!(events_of(&visible, 3 * i), (last.saturating_sub(4)..last).collect::<Vec<_>>(), "event {last}");
    }
}

/// A tie across a batch border is hidden under either setting: event 1 shares its time with event 0 of the batch before.
#[test]
fn ties_across_a_batch_border() {
    let events = Events::new(2, vec![(0, 1, 7), (0, 1, 7)]);
    for same in [SameBatch::Hidden, SameBatch::Visible] {
        let sample = sample_and_check(&events, &recent(&[4], same), 1..2, &mut SampleScratch::default());
        assert_eq!(sample.hops[0].edges(), 0);
    }
}

/// ```text
/// c --t1-- b    b --t2-- d    a --t3-- b    b --t4-- d    a --t9-- e (the batch)
///    0             1             2             3             4
/// ```
/// a's neighbor is b, by event 2. Asked at t = 3, b has seen events 0 and 1; at t = 9 also 2 and 3.
#[test]
fn the_time_of_the_second_hop() {
    let events = Events::new(5, vec![(2, 1, 1), (1, 3, 2), (0, 1, 3), (1, 3, 4), (0, 4, 9)]);
    for (hop_time, want) in [(HopTime::Edge, vec![0, 1]), (HopTime::Root, vec![0, 1, 2, 3])] {
        let config = config(Strategy::Recent, &[1, 9], SameBatch::Hidden, hop_time);
        let sample = sample_and_check(&events, &config, 4..5, &mut SampleScratch::default());
        let b = sample.hops[0].below_neighbor[sample.root_of[0] as usize];
        let got: Vec<u32> = slots(&sample.hops[1], b as usize).iter().map(|entry| entry.1.0).collect();
        assert_eq!(got, want, "{hop_time:?}");
    }
}

fn any_config() -> impl proptest::prelude::Strategy<Value = SamplerConfig> {
    let pick = |a: u8, dropped: bool, hidden: bool, edge: bool, neighbors: Vec<usize>| {
        let strategy = [Strategy::Recent, Strategy::Uniform, Strategy::Oldest][usize::from(a)];
        let latest = if dropped { Latest::Dropped } else { Latest::Visible };
        let same_batch = if hidden { SameBatch::Hidden } else { SameBatch::Visible };
        let hop_time = if edge { HopTime::Edge } else { HopTime::Root };
        SamplerConfig { latest, ..config(strategy, &neighbors, same_batch, hop_time) }
    };
    (0..3u8, any::<bool>(), any::<bool>(), any::<bool>(), prop::collection::vec(1usize..6, 1..4))
        .prop_map(move |(a, b, c, d, e)| pick(a, b, c, d, e))
}

proptest! {
    /// Any stream, any batch, one to three hops, all settings; scratch and buffers used before, and tasks however few the roots.
    #[test]
    fn equals_the_naive_sampler(
        list in prop::collection::vec((0u32..7, 0u32..7, -5i64..15), 1..60),
        config in any_config(),
        border in 0.0..1.0f64,
        parallel in any::<bool>(),
    ) {
        let events = Events::new(7, list);
        let graph = events.graph();
        let mut sampler = Sampler::new(&config, graph.clone(), TICK);
        if parallel {
            sampler.serial_below = 0;
        }
        let (total, mut scratch, mut sample) = (events.time.len() as u32, SampleScratch::default(), Sample::default());
        let border = (f64::from(total) * border) as u32;
        for batch in [border..total, 0..border] {
            let (roots, first) = (events.roots(&graph, batch.clone()), EventId(batch.start));
            sampler.sample_into(&roots, first, key(), &mut scratch, &mut sample);
            check(&events, &config, &roots, first, &sample);
        }
    }
}

/// Same sample and hash from pools of 1, 2 and 8 threads, in batches large enough for many tasks.
#[test]
fn equal_on_any_number_of_threads() {
    let events = Events::random(300, 6000);
    let graph = events.graph();
    for config in [
        recent(&[10], SameBatch::Hidden),
        config(Strategy::Uniform, &[10, 5], SameBatch::Visible, HopTime::Edge),
        config(Strategy::Uniform, &[5, 5], SameBatch::Hidden, HopTime::Root),
    ] {
        let batch = 3000..4500;
        let roots = events.roots(&graph, batch.clone());
        let run = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let sampler = Sampler::new(&config, graph.clone(), TICK).with_pool(Arc::new(pool));
            assert!(roots.len() * config.neighbors[0] >= SERIAL_BELOW);
            sampler.sample(&roots, EventId(batch.start), key(), &mut SampleScratch::default())
        };
        let one = run(1);
        check(&events, &config, &roots, EventId(batch.start), &one);
        for threads in [2, 8] {
            let other = run(threads);
            assert!(one == other, "{threads} threads, {config:?}");
            assert_eq!(events.hash(&one, batch.clone()), events.hash(&other, batch.clone()));
        }
    }
}

/// A root's draws do not depend on the roots beside it; they do on the batch's key, and two hops share none.
#[test]
fn a_root_s_draws_are_its_own() {
    let events = Events::random(20, 2000);
    let graph = events.graph();
    let config = config(Strategy::Uniform, &[10, 10], SameBatch::Visible, HopTime::Edge);
    let sampler = Sampler::new(&config, graph.clone(), TICK);
    let roots = events.roots(&graph, 1500..1600);
    let draw = |roots: &[Root], key| sampler.sample(roots, EventId(1500), key, &mut SampleScratch::default());
    let together = draw(&roots, key());
    for i in [0, 7, 299] {
        assert_eq!(events_of(&draw(&roots[i..=i], key()), 0), events_of(&together, i));
    }
    assert_ne!(draw(&roots, key().narrow([1, 0, 0, 0])).hops[0].event, together.hops[0].event);
    assert_ne!(slots(&together.hops[0], 0), slots(&together.hops[1], 0), "the root itself, one hop below");
}

/// Draws of one root over many batches: flat over its 40 visible entries, each slot's neighbors too, and all of them reached.
#[test]
fn uniform_is_flat() {
    let events = Events::new(41, (1..=40).map(|i| (0, i, i64::from(i))).collect());
    let config = config(Strategy::Uniform, &[10], SameBatch::Visible, HopTime::Edge);
    let sampler = Sampler::new(&config, events.graph(), TICK);
    let root = Root { node: NodeId(0), time: Timestamp(1000), before: None };
    let (mut scratch, mut sample, mut seen) = (SampleScratch::default(), Sample::default(), [0u32; 40]);
    let batches = 20_000;
    for batch in 0..batches {
        let key = Key::new(9, Purpose::Neighbor).narrow([1, batch, 0, 0]);
        sampler.sample_into(&[root], EventId(40), key, &mut scratch, &mut sample);
        assert_eq!(sample.hops[0].count, [10]);
        assert!(sample.hops[0].event.is_sorted());
        sample.hops[0].event.iter().for_each(|e| seen[e.index()] += 1);
    }
    let mean = f64::from(batches) * 10.0 / 40.0;
    // chi-square with 39 degrees of freedom: 72.1 is passed once in a thousand draws
    let chi: f64 = seen.iter().map(|&n| (f64::from(n) - mean).powi(2) / mean).sum();
    assert!(chi < 72.1, "{chi}: {seen:?}");
}

/// Copies of a stream in other units draw the same neighbors: draws are keyed by nanoseconds.
#[test]
fn other_units_draw_the_same() {
    let seconds = Events::random(20, 500);
    let mut millis = seconds.clone();
    millis.time.iter_mut().for_each(|t| t.0 *= 1000);
    let config = config(Strategy::Uniform, &[5, 5], SameBatch::Visible, HopTime::Edge);
    let draw = |events: &Events, per_second| {
        let graph = events.graph();
        let roots = events.roots(&graph, 400..500);
        let sample = Sampler::new(&config, graph, Tick { per_second }).sample(
            &roots,
            EventId(400),
            key(),
            &mut SampleScratch::default(),
        );
        (events.hash(&sample, 400..500), sample)
    };
    let (s, ms) = (draw(&seconds, 1), draw(&millis, 1000));
    assert_eq!(s.0, ms.0);
    assert!(s.1.hops[1].event == ms.1.hops[1].event && s.1.rows == ms.1.rows);
}

/// The sum minds each part of what it covers, and neither order nor how roots were split.
#[test]
fn the_hash_sees_every_part_and_no_order() {
    let events = Events::random(30, 900);
    let graph = events.graph();
    let sampler =
        Sampler::new(&config(Strategy::Recent, &[4, 3], SameBatch::Visible, HopTime::Edge), graph.clone(), TICK);
    let batch = 600..700u32;
    let whole =
        sampler.sample(&events.roots(&graph, batch.clone()), EventId(600), key(), &mut SampleScratch::default());
    let want = events.hash(&whole, batch.clone());
    let part = |range: std::ops::Range<u32>| {
        let roots = events.roots(&graph, range.clone());
        let sample = sampler.sample(&roots, EventId(600), key(), &mut SampleScratch::default());
        events.hash(&sample, range)
    };
    assert_eq!(part(650..700) + part(600..650), want, "two ranks");
    assert_ne!(part(600..650), want);

    let mut distinct = BTreeSet::from([want.0]);
    let mut change = |what: &str, edit: &mut dyn FnMut(&mut Sample)| {
        let mut other = whole.clone();
        edit(&mut other);
        assert!(distinct.insert(events.hash(&other, batch.clone()).0), "{what}");
    };
    for h in 0..2 {
        let r = (0..whole.hops[h].roots.len()).rfind(|&r| whole.hops[h].count[r] >= 2).unwrap();
        let at = whole.hops[h].slots(r).start;
        change("node", &mut |s| s.hops[h].neighbor[at].0 ^= 1);
        change("event", &mut |s| s.hops[h].event[at].0 ^= 1 << 31);
        change("one slot fewer", &mut |s| s.hops[h].count[r] -= 1);
        let other = whole.hops[h].slots(r).find(|&b| whole.hops[h].event[b] != whole.hops[h].event[at]);
        if let Some(other) = other {
            change("slots swapped", &mut |s| {
                s.hops[h].event.swap(at, other);
                s.hops[h].neighbor.swap(at, other);
                s.hops[h].below_neighbor.swap(at, other);
            });
        }
    }
    let one = |event, role| {
        let mut hash = SampleHash::default();
        hash.add_root(&whole, 0, EventId(event), role);
        hash.0
    };
    let reasons = [
        (600, Role::Source),
        (600, Role::Destination),
        (600, Role::Negative(0)),
        (600, Role::Negative(1)),
        (601, Role::Source),
    ];
    assert_eq!(reasons.iter().map(|&(event, role)| one(event, role)).collect::<BTreeSet<_>>().len(), reasons.len());
}

/// A root without neighbors is in the sum as well, by its node.
#[test]
fn the_hash_counts_lonely_roots() {
    let events = Events::new(4, vec![(0, 1, 1), (2, 3, 1)]);
    let sample = sample_and_check(&events, &recent(&[3], SameBatch::Visible), 0..2, &mut SampleScratch::default());
    let one = |i: usize| {
        let mut hash = SampleHash::default();
        hash.add_root(&sample, i, EventId(0), Role::Source);
        hash
    };
    assert_ne!(one(0), SampleHash::default());
    assert_ne!(one(0), one(1));
}

#[test]
fn hashes_print_and_read_back() {
    let hash = SampleHash(0x00ab << 100);
    assert_eq!(hash.to_string(), format!("00000ab0{}", "0".repeat(24)));
    assert_eq!(hash.to_string().parse(), Ok(hash));
    for text in ["", "12", &"g".repeat(32), &"0".repeat(33), &format!("+{}", "0".repeat(31))] {
        assert!(text.parse::<SampleHash>().is_err(), "{text}");
    }
    assert_eq!(SampleHash(u128::MAX) + SampleHash(2), SampleHash(1), "a wrapping sum");
}

/// A batch's roots with all positives first, as the pipeline lays them out.
fn positives_first(events: &Events, graph: &Tcsr, batch: std::ops::Range<u32>) -> (Vec<Root>, usize) {
    let roots = events.roots(graph, batch);
    let of = |j: usize| roots.iter().skip(j).step_by(3).copied();
    (of(0).chain(of(1)).chain(of(2)).collect(), 2 * roots.len() / 3)
}

proptest! {
    /// Any stream and setting, from the heap and from the file: batches served from records equal sampled ones, whichever of the
    /// known roots are asked for and in whatever order, whatever comes behind them, and no known root is sampled.
    #[test]
    fn served_equals_sampled(
        list in prop::collection::vec((0u32..7, 0u32..7, -5i64..15), 8..60),
        config in any_config(),
        subset in prop::collection::vec(0usize..1000, 0..40),
        heap_bytes in 0u64..3000,
    ) {
        let config = SamplerConfig { strategy: Strategy::Recent, ..config };
        let (events, size) = (Events::new(7, list), 6);
        let graph = events.graph();
        let sampler = Sampler::new(&config, graph.clone(), TICK);
        let total = events.time.len() as u32;
        let batch = |k: usize| k as u32 * size..((k as u32 + 1) * size).min(total);
        let known = |k: usize, list: &mut Vec<Root>| {
            let (roots, positives) = positives_first(&events, &graph, batch(k));
            *list = roots[..positives].to_vec();
            EventId(batch(k).start)
        };
        let (batches, folder) = (total.div_ceil(size) as usize, std::env::temp_dir());
        let cache = SampleCache::build_within(&sampler, batches, known, (heap_bytes, 1 << 20), &folder).unwrap();
        assert_eq!(cache.batches(), batches);
        let (mut scratch, mut sample) = (SampleScratch::default(), Sample::default());
        for k in 0..batches {
            let (roots, positives) = positives_first(&events, &graph, batch(k));
            let all: Vec<u32> = (0..positives as u32).collect();
            let some: Vec<u32> = subset.iter().map(|i| (i % positives) as u32).collect();
            for (places, others) in [(&all, &roots[positives..]), (&some, &roots[positives..]), (&some, &[][..]), (&vec![], &roots[..])] {
                let asked: Vec<Root> = places.iter().map(|&i| roots[i as usize]).chain(others.iter().copied()).collect();
                let first = EventId(batch(k).start);
                let (sampled, _) = scratch.counts();
                let known = Some(Known { cache: &cache, batch: k, places });
                sampler.sample_known_into(known, &asked, first, key(), &mut scratch, &mut sample);
                assert_eq!(sample, sampler.sample(&asked, first, key(), &mut SampleScratch::default()));
                check(&events, &config, &asked, first, &sample);
                let fresh: std::collections::HashSet<_> = asked[places.len()..].iter().map(|r| (r.node, r.time)).collect();
                assert!(scratch.counts().0 - sampled <= fresh.len() as u64, "a known root was sampled");
            }
        }
    }
}

/// A batch that is not the record's is sampled: other events, another graph's times, a batch beyond the bound.
#[test]
fn a_foreign_record_is_not_served() {
    let events = Events::random(20, 100);
    let (graph, folder) = (events.graph(), std::env::temp_dir());
    let sampler = Sampler::new(&recent(&[3], SameBatch::Hidden), graph.clone(), TICK);
    let known = |k: usize, list: &mut Vec<Root>| {
        *list = events.roots(&graph, k as u32 * 10..k as u32 * 10 + 10);
        EventId(k as u32 * 10)
    };
    let whole = SampleCache::build(&sampler, 10, known, 1 << 20, &folder).unwrap();
    assert_eq!((whole.batches(), SampleCache::build(&sampler, 10, known, 0, &folder).unwrap().batches()), (10, 0));
    let bounded = SampleCache::build(&sampler, 10, known, whole.bytes() / 2, &folder).unwrap();
    assert!(bounded.bytes() <= whole.bytes() / 2 && (3..8).contains(&bounded.batches()), "{}", bounded.batches());
    let (mut scratch, mut sample, places) =
        (SampleScratch::default(), Sample::default(), (0..30).collect::<Vec<u32>>());
    for (cache, batch, served) in [(&whole, 5, true), (&whole, 6, false), (&whole, 99, false), (&bounded, 9, false)] {
        let (roots, before) = (events.roots(&graph, 50..60), scratch.counts());
        let known = Some(Known { cache, batch, places: &places });
        sampler.sample_known_into(known, &roots, EventId(50), key(), &mut scratch, &mut sample);
        assert_eq!(sample, sampler.sample(&roots, EventId(50), key(), &mut SampleScratch::default()));
        assert_eq!(scratch.counts().1 > before.1, served, "batch {batch}");
        assert_eq!(scratch.counts().0 == before.0, served, "batch {batch}");
    }
}

/// Without neighbors the distinct nodes are read, each root points to its own, and hashes tell roots apart.
#[test]
fn no_neighbors() {
    let events = Events::random(20, 200);
    let graph = events.graph();
    let roots = events.roots(&graph, 100..150);
    let sampler = Sampler::without_neighbors(graph, TICK);
    let sample = sampler.sample(&roots, EventId(100), key(), &mut SampleScratch::default());
    let hop = &sample.hops[0];
    assert_eq!((sample.hops.len(), hop.fanout, hop.edges(), hop.neighbor.len()), (1, 0, 0, 0));
    for (root, &at) in roots.iter().zip(&sample.root_of) {
        assert_eq!(hop.roots[at as usize].node, root.node);
        assert_eq!(sample.rows[hop.below_root[at as usize] as usize], root.node);
    }
    assert_eq!(sample.rows, first_seen(roots.iter().map(|root| root.node)));
    assert_ne!(events.hash(&sample, 100..150), SampleHash::default());
}

/// Every pair, at every event of a stream with ties, against a search through all events.
#[test]
fn edge_memory_equals_brute_force() {
    use super::edge_memory::{EdgeMemory, Window};
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/shared.csv");
    let stream = tidemill_data::load(&tidemill_data::DataConfig::of(&path), &mut |_| {}).expect("a stream");
    let all: Vec<EventId> = (0..stream.len() as u32).map(EventId).filter(|event| event.0 % 7 != 3).collect();
    let row = |event: &EventId| (stream.source(*event), stream.destination(*event), stream.time(*event));
    let quantile = |times: &[i64], q: f64| {
        let place = q * (times.len() - 1) as f64;
        let (a, b) = (times[place.floor() as usize] as f64, times[place.ceil() as usize] as f64);
        a + (b - a) * place.fract()
    };
    let train: Vec<i64> = all[..200].iter().map(|event| row(event).2.0).collect();
    let lasted = train[199] as f64 - quantile(&train, 0.7);
    let windows = [Window::All, Window::Latest(0.3), Window::lasting(&stream, &all[..200], 0.3)];
    let (mut yes, mut no) = (0, 0);
    for (window, same_batch) in
        windows.into_iter().flat_map(|w| [SameBatch::Hidden, SameBatch::Visible].map(|s| (w, s)))
    {
        let memory = EdgeMemory::new(&stream, &all, window, same_batch);
        for event in (0..stream.len() as u32).step_by(3).map(EventId) {
            let (first, time) = (EventId(event.0 / 40 * 40), stream.time(event));
            let past: Vec<_> = (all.iter())
                .filter(|&&e| row(&e).2 < time && (same_batch == SameBatch::Visible || e < first))
                .map(row)
                .collect();
            let times: Vec<i64> = past.iter().map(|p| p.2.0).collect();
            let from = match window {
                Window::Latest(share) if !times.is_empty() => quantile(&times, 1.0 - share),
                Window::Lasting(_) if !times.is_empty() => times[times.len() - 1] as f64 - lasted,
                _ => f64::NEG_INFINITY,
            };
            let remembered = memory.at(time, first);
            for pair in 0..stream.nodes() * stream.nodes() {
                let (s, d) = (NodeId(pair / stream.nodes()), NodeId(pair % stream.nodes()));
                let want = past.iter().any(|p| (p.0, p.1) == (s, d) && p.2.0 as f64 >= from);
                assert_eq!(remembered.contains(s, d), want, "{window:?}, {same_batch:?}, {event:?}, {s:?}-{d:?}");
                if want { yes += 1 } else { no += 1 }
            }
        }
    }
    assert!(yes > 1000 && no > 1000, "{yes} remembered, {no} not");
}
