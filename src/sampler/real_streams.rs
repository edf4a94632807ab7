//! Samples of real streams against lists of each node's events, grown one event at a time.
//!
//! The streams are files of the folder that `TIDEMILL_DATA` names, `data/cache` by default; one that is not there is skipped,
//! and a line says so.

use super::*;
use crate::graph::Endpoint;
use std::path::PathBuf;
use tidemill_data::dataset::DataConfig;
use tidemill_data::philox::Purpose;
use tidemill_data::stream::EventStream;

const BATCH: usize = 600;
/// Batches looked at, spread over the stream, its first and last among them.
const BATCHES: usize = 24;

fn open(file: &str, bipartite: bool) -> Option<EventStream> {
    let folder = std::env::var_os("TIDEMILL_DATA")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("data/cache"), PathBuf::from);
    let path = folder.join(file);
    if !path.exists() {
        eprintln!("skipped: there is no {}; name its folder in TIDEMILL_DATA", path.display());
        return None;
    }
    let config = DataConfig { bipartite: Some(bipartite), ..DataConfig::of(&path) };
    Some(tidemill_data::load(&config, &mut |_| {}).expect("a stream"))
}

/// Every node's events before the batch's end, in order: (neighbor, event, time).
type Lists = Vec<Vec<(NodeId, EventId, Timestamp)>>;

fn extend(lists: &mut Lists, stream: &EventStream, events: std::ops::Range<u32>) {
    for event in events.map(EventId) {
        let (source, destination, time) = (stream.source(event), stream.destination(event), stream.time(event));
        lists[source.index()].push((destination, event, time));
        lists[destination.index()].push((source, event, time));
    }
}

/// What a root must get: the visible part of its list, filtered entry by entry, and K of it.
fn naive(
    lists: &Lists,
    sampler: &Sampler,
    root: &Root,
    h: u32,
    first: EventId,
    key: Key,
) -> Vec<(NodeId, EventId, Timestamp)> {
    let config = sampler.config();
    let shown = |entry: &&(NodeId, EventId, Timestamp)| {
        entry.2 < root.time && (config.same_batch == SameBatch::Visible || entry.1 < first)
    };
    let visible: Vec<_> = lists[root.node.index()].iter().filter(shown).copied().collect();
    let k = config.neighbors[h as usize];
    match config.strategy {
        Strategy::Recent => visible[visible.len().saturating_sub(k)..].to_vec(),
        Strategy::Oldest => visible[..visible.len().min(k)].to_vec(),
        Strategy::Uniform if visible.is_empty() => Vec::new(),
        Strategy::Uniform => {
            let key = key.at(root.node.0, sampler.tick.nanoseconds(root.time), h);
            let mut places: Vec<u32> = (0..k as u64).map(|j| key.below(j, visible.len() as u32)).collect();
            places.sort_unstable();
            places.into_iter().map(|place| visible[place as usize]).collect()
        }
    }
}

fn roots(stream: &EventStream, graph: &Tcsr, batch: std::ops::Range<u32>) -> Vec<Root> {
    let negative = Key::new(5, Purpose::TrainNegative);
    let of = |event: EventId| {
        let time = stream.time(event);
        let end = |node, end| Root { node, time, before: Some(graph.offset(event, end)) };
        let other = NodeId(negative.below(u64::from(event.0), stream.nodes()));
        [
            end(stream.source(event), Endpoint::Source),
            end(stream.destination(event), Endpoint::Destination),
            Root { node: other, time, before: None },
        ]
    };
    batch.map(EventId).flat_map(of).collect()
}

fn check(stream: &EventStream, sampler: &Sampler) {
    let all = stream.len().div_ceil(BATCH);
    let (mut lists, mut scratch, mut sample) =
        (vec![Vec::new(); stream.nodes() as usize], SampleScratch::default(), Sample::default());
    let (mut edges, mut known) = (0, 0);
    for b in 0..BATCHES {
        let batch = b * (all - 1) / (BATCHES - 1);
        let range = (batch * BATCH) as u32..((batch + 1) * BATCH).min(stream.len()) as u32;
        extend(&mut lists, stream, known..range.end);
        known = range.end;
        let (first, key) = (EventId(range.start), Key::new(1, Purpose::Neighbor).narrow([1, batch as u32, 0, 0]));
        let logical = roots(stream, sampler.graph(), range);
        sampler.sample_into(&logical, first, key, &mut scratch, &mut sample);
        for (root, &at) in logical.iter().zip(&sample.root_of) {
            let distinct = &sample.hops[0].roots[at as usize];
            assert_eq!((root.node, root.time), (distinct.node, distinct.time));
        }
        for (h, hop) in sample.hops.iter().enumerate() {
            for (r, root) in hop.roots.iter().enumerate() {
                let slots = hop.slots(r);
                let got: Vec<_> = slots.clone().map(|at| (hop.neighbor[at], hop.event[at], hop.time[at])).collect();
                assert_eq!(got, naive(&lists, sampler, root, h as u32, first, key), "batch {batch}, hop {h}, {root:?}");
                if let Some(below) = sample.hops.get(h + 1) {
                    let to = |at: usize| &below.roots[hop.below_neighbor[at] as usize];
                    assert!(slots.clone().all(|at| (to(at).node, to(at).time) == (hop.neighbor[at], hop.time[at])));
                }
                edges += slots.len();
            }
        }
    }
    assert!(edges > 100_000, "{edges} edges");
}

fn check_all(file: &str, bipartite: bool) {
    let Some(stream) = open(file, bipartite) else { return };
    let events: Vec<EventId> = (0..stream.len() as u32).map(EventId).collect();
    let graph = Arc::new(Tcsr::build(&stream, &events));
    for same_batch in [SameBatch::Hidden, SameBatch::Visible] {
        for (strategy, neighbors) in [(Strategy::Recent, vec![10]), (Strategy::Uniform, vec![10, 3])] {
            let config = SamplerConfig { strategy, neighbors, same_batch, ..SamplerConfig::default() };
            check(&stream, &Sampler::new(&config, graph.clone(), stream.tick()));
        }
    }
}

#[test]
fn wikipedia() {
    check_all("wikipedia.csv.gz", true);
}

#[test]
fn collegemsg() {
    check_all("collegemsg.csv.gz", false);
}

#[test]
fn sx_mathoverflow() {
    check_all("sx-mathoverflow.csv.gz", false);
}
