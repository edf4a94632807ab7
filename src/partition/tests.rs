//! Laws of every strategy on drawn streams, and what each is for on streams made for it.

use super::{Strategy, *};
use proptest::prelude::*;
use std::collections::BTreeMap;
use tidemill_data::generate::{GenerateConfig, generate};
use tidemill_data::split::{Split, SplitConfig};

const STRATEGIES: [Strategy; 5] =
    [Strategy::Hash, Strategy::Range, Strategy::Degree, Strategy::Fennel, Strategy::Temporal];

fn config(strategy: Strategy, window_events: usize, rebalance_above: f64) -> PartitionConfig {
    PartitionConfig { strategy, window_events, rebalance_above }
}

fn ends(pairs: &[(u32, u32)]) -> Vec<Ends> {
    pairs.iter().map(|&(a, b)| [NodeId(a), NodeId(b)]).collect()
}

/// Words that look random, for streams.
fn words(seed: u32) -> impl Iterator<Item = u32> {
    let key = tidemill_data::philox::Key::new(u64::from(seed), tidemill_data::philox::Purpose::Generate);
    (0..).map(move |i| key.word(i))
}

/// The choice of primary ranks, by the rule as it is written down.
fn naive_primaries(events: &[Ends], batch_size: usize, table: &PartitionTable) -> Vec<Rank> {
    let mut all: Vec<Rank> = Vec::new();
    for batch in events.chunks(batch_size) {
        let start = all.len();
        for (i, [source, destination]) in batch.iter().enumerate() {
            let (a, b) = (table.owner(*source), table.owner(*destination));
            let in_batch = |rank: Rank| {
                let alone = batch.iter().filter(|[s, d]| table.owner(*s) == rank && table.owner(*d) == rank).count();
                let shared = (0..i).filter(|&j| {
                    let [s, d] = batch[j];
                    table.owner(s) != table.owner(d) && all[start + j] == rank
                });
                alone + shared.count()
            };
            let of = |rank: Rank| (in_batch(rank), all.iter().filter(|&&r| r == rank).count());
            all.push(if of(b) < of(a) { b } else { a });
        }
    }
    all
}

/// All laws that hold for any pass.
fn check(
    nodes: u32,
    events: &[Ends],
    batch_size: usize,
    ranks: usize,
    config: &PartitionConfig,
    before: Option<(&PartitionTable, NodeSet)>,
) {
    let p = Partition::of_ends(nodes, events, batch_size, ranks, config, before.clone());
    let batches = events.len().div_ceil(batch_size);
    assert_eq!((p.ranks(), p.first_batch(0), p.first_batch(p.windows())), (ranks, 0, batches));
    let whole = config.window_events.div_ceil(batch_size).max(1);
    let mut last = before.as_ref().map(|(table, _)| (*table).clone());
    for window in 0..p.windows() {
        let (first, end) = (p.first_batch(window), p.first_batch(window + 1));
        assert!(end - first == whole || (window + 1 == p.windows() && (1..=whole).contains(&(end - first))));
        assert!((first..end).all(|batch| p.window_of_batch(batch) == window));
        let table = p.table(window);
        assert_eq!((table.owners().len(), table.ranks()), (nodes as usize, ranks), "every node has an owner");
        assert!(table.owners().iter().all(|&owner| usize::from(owner) < ranks));
        let positions = first * batch_size..(end * batch_size).min(events.len());
        let primary: Vec<Rank> = positions.clone().map(|at| p.primary(at)).collect();
        assert_eq!(primary, naive_primaries(&events[positions.clone()], batch_size, table));
        check_moves(last.as_ref(), table, p.moved(window));
        check_statistics(&events[positions], table, &primary, p.moved(window).len(), &p.statistics().windows[window]);
        last = Some((**table).clone());
    }
    let start = || Partition::of_ends(nodes, &[], batch_size, ranks, config, before.clone());
    assert_eq!(**p.last_table(), last.unwrap_or_else(|| (**start().last_table()).clone()));
    let again = Partition::of_ends(nodes, events, batch_size, ranks, config, before.clone());
    assert!((0..p.windows()).all(|w| p.table(w) == again.table(w)) && p.primary == again.primary, "a pure function");
}

fn check_moves(last: Option<&PartitionTable>, table: &PartitionTable, moved: &[(NodeId, Rank, Rank)]) {
    let Some(last) = last else {
        return assert!(moved.is_empty(), "nothing moves where nothing has a place");
    };
    assert!(moved.is_sorted_by(|a, b| a.0 < b.0), "ascending, none twice");
    assert!(moved.iter().all(|&(node, from, to)| from == last.owner(node) && to == table.owner(node) && from != to));
    let differ = last.owners().iter().zip(table.owners()).filter(|(a, b)| a != b).count();
    assert_eq!(differ, moved.len(), "every change is listed");
}

fn check_statistics(
    events: &[Ends],
    table: &PartitionTable,
    primary: &[Rank],
    moved: usize,
    statistics: &WindowStatistics,
) {
    let mut load = vec![0u64; table.ranks()];
    for ([source, destination], rank) in events.iter().zip(primary) {
        assert!([table.owner(*source), table.owner(*destination)].contains(rank), "a primary rank owns an endpoint");
        load[rank.index()] += 1;
    }
    let cut = events.iter().filter(|[a, b]| table.owner(*a) != table.owner(*b)).count();
    let balance = *load.iter().max().unwrap() as f64 / (events.len() as f64 / table.ranks() as f64);
    assert_eq!((statistics.events, statistics.cut, statistics.moved), (events.len(), cut, moved));
    assert_eq!(statistics.load, load);
    assert!((statistics.balance - balance).abs() < 1e-12);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]
    #[test]
    fn laws_hold(
        pairs in prop::collection::vec((0u32..30, 0u32..30), 0..300),
        batch_size in 1usize..40,
        window_events in 1usize..120,
        ranks in 1usize..7,
        bound in prop::sample::select(vec![1.0, 1.1, 1.5, f64::INFINITY]),
        strategy in prop::sample::select(STRATEGIES.to_vec()),
        goes_on in any::<bool>(),
    ) {
        let before = PartitionTable::new((0..33).map(|n| (n % ranks as u16 * 7) % ranks as u16).collect(), ranks);
        let config = config(strategy, window_events, bound);
        let mut seen = NodeSet::new(33);
        (0..20).for_each(|node| { seen.insert(NodeId(node)); });
        check(33, &ends(&pairs), batch_size, ranks, &config, goes_on.then_some((&before, seen)));
    }

    #[test]
    fn event_graphs_equal_a_map(pairs in prop::collection::vec((0u32..12, 0u32..12), 0..80), later in prop::collection::vec((0u32..12, 0u32..12), 0..40)) {
        let (first, second) = (ends(&pairs), ends(&later));
        let graph = event_graph::EventGraph::decaying(12, &[&first, &second]);
        let (mut weight, mut load) = (BTreeMap::new(), BTreeMap::new());
        for (window, worth) in [(&pairs, 2u64), (&later, 1)] {
            for &(a, b) in window {
                for (near, far) in [(a, b), (b, a)] {
                    *load.entry(near).or_insert(0u64) += worth / 2;
                    if a != b { *weight.entry((near, far)).or_insert(0u64) += worth; }
                }
            }
        }
        let got: BTreeMap<(u32, u32), u64> = (0..graph.len())
            .flat_map(|i| graph.neighbors(i).map(|(j, w)| ((graph.nodes[i].0, graph.nodes[j].0), w)).collect::<Vec<_>>())
            .collect();
        prop_assert_eq!(got, weight);
        prop_assert_eq!(graph.nodes.iter().zip(&graph.load).map(|(n, &l)| (n.0, l)).collect::<BTreeMap<_, _>>(), load);
    }
}

/// Equal on every thread of any pool: nothing depends on where it is computed.
#[test]
fn ranks_agree() {
    let stream = generate(&GenerateConfig { events: Some(4_000), nodes: Some(600), drift: 0.9, ..Default::default() });
    let stream = stream.expect("a stream");
    let events: Vec<EventId> = (0..4_000).map(EventId).collect();
    for strategy in STRATEGIES {
        let config = config(strategy, 700, 1.1);
        let make = || Partition::new(&stream, &events, 50, 5, &config, None);
        let found: Vec<Partition> = std::thread::scope(|s| {
            let ranks: Vec<_> = (0..3).map(|_| s.spawn(make)).collect();
            ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
        });
        for other in &found[1..] {
            assert_eq!((&other.tables, &other.moved), (&found[0].tables, &found[0].moved));
            assert_eq!((&other.primary, &other.statistics), (&found[0].primary, &found[0].statistics));
        }
    }
}

#[test]
fn one_rank_owns_all() {
    let events = ends(&[(0, 1), (1, 2), (2, 2)]);
    for strategy in STRATEGIES {
        let p = Partition::of_ends(5, &events, 2, 1, &config(strategy, 2, 1.0), None);
        assert_eq!((p.windows(), p.table(1).owners(), p.statistics().cut_share()), (2, &[0; 5][..], 0.0));
    }
}

#[test]
fn a_pass_without_events_keeps_its_table() {
    let before = PartitionTable::new(vec![1, 0, 1], 2);
    let p = Partition::of_ends(3, &[], 10, 2, &PartitionConfig::default(), Some((&before, NodeSet::new(3))));
    assert_eq!((p.windows(), &**p.last_table()), (0, &before));
    assert_eq!((p.statistics().cut_share(), p.statistics().balance()), (0.0, 1.0));
}

#[test]
fn nodes_are_spread_by_hash_range_and_degree() {
    let hash = strategy::first_table(Strategy::Hash, 10_000, &[], 8).nodes_by_rank();
    assert!(hash.iter().all(|&n| (1_130..1_370).contains(&n)), "{hash:?}"); // 1,250 and four standard deviations
    let range = strategy::first_table(Strategy::Range, 10, &[], 4);
    assert_eq!(range.owners(), [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]);
    // one hub of 20, ten nodes of 2: the hub alone, the others beside each other
    let pairs: Vec<(u32, u32)> = (0..20).map(|i| (0, 1 + i % 10)).collect();
    let degree = strategy::first_table(Strategy::Degree, 11, &ends(&pairs), 2);
    let load = |rank: u16| {
        degree
            .owners()
            .iter()
            .zip([21].into_iter().chain([3; 10]))
            .filter(|(o, _)| **o == rank)
            .map(|(_, l)| l)
            .sum::<i32>()
    };
    assert!((load(0) - load(1)).abs() <= 3, "{degree:?}");
}

/// Four groups that keep to themselves, met in random order.
fn groups(events: usize, nodes: u32, across: u32) -> Vec<(u32, u32)> {
    let mut words = words(3);
    let mut below = |n: u32| ((u64::from(words.next().expect("no end")) * u64::from(n)) >> 32) as u32;
    let mut pair = || {
        let group = below(4);
        let other = if below(100) < across { below(4) } else { group };
        (4 * below(nodes / 4) + group, 4 * below(nodes / 4) + other)
    };
    (0..events).map(|_| pair()).collect()
}

#[test]
fn fennel_finds_groups() {
    let events = ends(&groups(20_000, 400, 4));
    let p = Partition::of_ends(400, &events, 200, 4, &config(Strategy::Fennel, 10_000, f64::INFINITY), None);
    let (cut, balance) = (p.statistics().cut_share(), p.statistics().balance());
    assert!(cut < 0.035 && balance < 1.05, "three in a hundred events cross groups: cut {cut}, balance {balance}");
    let hash = Partition::of_ends(400, &events, 200, 4, &config(Strategy::Hash, 10_000, f64::INFINITY), None);
    assert!(hash.statistics().cut_share() > 0.7);
}

/// What is cut grows with the number of ranks, never the nodes of one rank beyond the bound.
#[test]
fn fennel_keeps_both_loads_even() {
    let events = ends(&groups(20_000, 4_000, 30));
    for ranks in [2, 3, 8, 16] {
        let table = strategy::first_table(Strategy::Fennel, 4_000, &events, ranks);
        let mut load = vec![0u64; ranks];
        events.iter().flatten().for_each(|&node| load[table.owner(node).index()] += 1);
        let most = |x: u64, mean: f64| x as f64 / mean;
        let events_balance = most(*load.iter().max().unwrap(), 40_000.0 / ranks as f64);
        let nodes = table.nodes_by_rank().into_iter().max().unwrap();
        assert!(events_balance < 1.06 && most(nodes as u64, 4_000.0 / ranks as f64) < 1.16, "{ranks}: {load:?}");
    }
}

/// A hub with half of all events: no table evens that out, but the choice of primary ranks does.
#[test]
fn a_hub_is_shared_by_its_neighbors() {
    let pairs: Vec<(u32, u32)> = words(9)
        .take(8_000)
        .enumerate()
        .map(|(i, w)| match i % 2 {
            0 => (1 + w % 999, 0),
            _ => (1 + w % 999, 1 + (w >> 16) % 999),
        })
        .collect();
    for strategy in STRATEGIES {
        let p = Partition::of_ends(1_000, &ends(&pairs), 100, 4, &config(strategy, 2_000, 1.1), None);
        let statistics = p.statistics();
        assert!(statistics.balance() < 1.1, "{strategy:?}: {statistics:?}");
    }
}

/// Windows that each meet another group of nodes, all of which one rank owns by range.
#[test]
fn few_nodes_move_to_even_out_a_window() {
    let pairs: Vec<(u32, u32)> = (0..4u32)
        .flat_map(|w| groups(2_000, 100, 100).into_iter().map(move |(a, b)| (100 * w + a, 100 * w + b)))
        .collect();
    let run = |bound| Partition::of_ends(400, &ends(&pairs), 100, 4, &config(Strategy::Range, 2_000, bound), None);
    let (still, moving) = (run(f64::INFINITY), run(1.1));
    assert_eq!(still.statistics().balance(), 4.0, "one rank has all events of a window");
    assert_eq!(still.statistics().nodes_moved(), 0);
    let s = moving.statistics();
    assert!(s.balance() <= 1.1 && s.migrations() == 3, "{s:?}");
    // three quarters of a window's hundred nodes must leave their rank at each of three borders; nobody else moves
    assert!((3 * 60..=3 * 85).contains(&s.nodes_moved()), "{s:?}");
}

/// Where groups change their members, the affinity of late cuts fewer events than the table of the whole pass.
#[test]
fn temporal_follows_groups_that_change() {
    let shuffled = |(a, b): (u32, u32)| (a / 4 + 100 * (a % 4), b / 4 + 100 * (b % 4));
    let regrouped = groups(10_000, 400, 0).into_iter().map(shuffled);
    let pairs: Vec<(u32, u32)> = groups(10_000, 400, 0).into_iter().chain(regrouped).collect();
    let cut = |strategy| {
        let p = Partition::of_ends(400, &ends(&pairs), 100, 4, &config(strategy, 2_500, 1.2), None);
        (p.statistics().cut_share(), p.statistics().balance())
    };
    let ((fennel, _), (temporal, balance)) = (cut(Strategy::Fennel), cut(Strategy::Temporal));
    assert!(temporal < 0.75 * fennel && balance < 1.2, "{temporal} {fennel} {balance}");
}

/// Nodes 0 to 7 have a state, on the rank of their parity; 8 to 15 are new, each meets nodes of one parity.
#[test]
fn fennel_places_new_nodes_of_a_pass_that_goes_on() {
    let before =
        PartitionTable::new((0..16).map(|node| if node < 8 { node % 2 } else { u16::from(node < 12) }).collect(), 2);
    let mut seen = NodeSet::new(16);
    (0..8).for_each(|node| {
        seen.insert(NodeId(node));
    });
    let pairs: Vec<(u32, u32)> = (0..400).map(|i| (8 + i % 8, (i % 2) + 2 * (i % 4))).collect();
    let p = Partition::of_ends(16, &ends(&pairs), 10, 2, &config(Strategy::Fennel, 200, 1.5), Some((&before, seen)));
    assert_eq!(p.table(0).owners(), (0..16).map(|node| node % 2).collect::<Vec<u16>>());
    assert_eq!((p.statistics().cut_share(), p.moved(1).len()), (0.0, 0));
    assert!(Arc::ptr_eq(p.table(0), p.table(1)), "tables that are equal are shared");
}

/// Mean over windows of the busiest rank's events over the mean, and the share of cut events.
fn balance_of(stream: &EventStream, ranks: usize, strategy: Strategy, bound: f64) -> (f64, f64) {
    let split = Split::new(stream, &SplitConfig::default()).expect("a split");
    let p = Partition::new(stream, &split.train, 200, ranks, &config(strategy, 10_000, bound), None);
    (p.statistics().balance(), p.statistics().cut_share())
}

/// Hot nodes go round: ids lie on a ring, of which one arc is hot at a time.
#[test]
fn moving_hot_nodes_are_spread_again() {
    let stream = generate(&GenerateConfig { drift: 0.9, seed: 1, ..Default::default() }).expect("a stream");
    for ranks in [4, 8] {
        let (still, moving) = (
            balance_of(&stream, ranks, Strategy::Range, f64::INFINITY).0,
            balance_of(&stream, ranks, Strategy::Range, 1.1).0,
        );
        assert!(still > 1.5 && moving <= 1.15, "{ranks} ranks: {still} without adaptation, {moving} with it");
        for strategy in [Strategy::Fennel, Strategy::Temporal] {
            let moving = balance_of(&stream, ranks, strategy, 1.1).0;
            assert!(moving <= 1.15, "{ranks} ranks, {strategy:?}: {moving}");
        }
    }
}

#[test]
fn fennel_cuts_few_events_of_real_streams() {
    for (name, most_cut) in [("wikipedia.csv.gz", 0.12), ("collegemsg.csv.gz", 0.5), ("sx-mathoverflow.csv.gz", 0.4)] {
        let Some(stream) = real_stream(name) else { continue };
        let (balance, cut) = balance_of(&stream, 4, Strategy::Fennel, 1.2);
        assert!(cut <= most_cut && balance <= 1.15, "{name}: cut {cut}, balance {balance}");
        let (balance, hash) = balance_of(&stream, 4, Strategy::Hash, 1.2);
        assert!(hash > 1.5 * cut && balance <= 1.05, "{name}: cut {hash} by hash, balance {balance}");
    }
}

/// Validation goes on from training's last table; nodes that training never met are placed as they come.
#[test]
fn new_nodes_of_a_real_evaluation_are_placed() {
    let Some(stream) = real_stream("wikipedia.csv.gz") else { return };
    let split = Split::new(&stream, &SplitConfig::default()).expect("a split");
    let config = PartitionConfig::default();
    let train = Partition::new(&stream, &split.train, 200, 4, &config, None);
    let val: Vec<EventId> = split.val.clone().map(EventId).collect();
    let p = Partition::new(&stream, &val, 200, 4, &config, Some(train.last_table()));
    assert!(p.statistics().cut_share() < 0.2 && p.statistics().balance() < 1.2, "{:?}", p.statistics());
    assert!(!p.moved(0).is_empty());
    assert!(p.moved(0).iter().all(|&(node, ..)| split.new_nodes.contains(node)), "only nodes without a state move");
}

fn real_stream(name: &str) -> Option<EventStream> {
    let beside = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data");
    let folder = std::env::var_os("TIDEMILL_DATA").map_or(beside, Into::into);
    let path = folder.join(name);
    if !path.exists() {
        eprintln!("skipped: {name} is not in {}; TIDEMILL_DATA may name its folder", folder.display());
        return None;
    }
    let config = tidemill_data::dataset::DataConfig::of(&path);
    Some(tidemill_data::load(&config, &mut |_| {}).expect("a readable stream"))
}
