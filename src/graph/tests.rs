//! The graph against a list of neighbors made the naive way.

use super::*;
use proptest::prelude::*;

/// A small stream as columns, and which events are edges.
#[derive(Clone, Debug)]
struct Case {
    nodes: u32,
    source: Vec<NodeId>,
    destination: Vec<NodeId>,
    time: Vec<Timestamp>,
    edges: Vec<EventId>,
}

impl Case {
    /// From (source, destination, time, is an edge), in any order of time.
    fn new(nodes: u32, mut events: Vec<(u32, u32, i64, bool)>) -> Case {
        events.sort_by_key(|e| e.2);
        Case {
            nodes,
            source: events.iter().map(|e| NodeId(e.0)).collect(),
            destination: events.iter().map(|e| NodeId(e.1)).collect(),
            time: events.iter().map(|e| Timestamp(e.2)).collect(),
            edges: (0..).zip(&events).filter(|(_, e)| e.3).map(|(id, _)| EventId(id)).collect(),
        }
    }

    /// Built from pieces of `piece` events.
    fn build(&self, piece: usize) -> Tcsr {
        let columns: Vec<Columns<'_>> = (0..self.time.len())
            .step_by(piece)
            .map(|at| {
                let range = at..(at + piece).min(self.time.len());
                Columns {
                    first: EventId(at as u32),
                    source: &self.source[range.clone()],
                    destination: &self.destination[range.clone()],
                    time: &self.time[range],
                }
            })
            .collect();
        Tcsr::from_columns(self.nodes, &columns, &self.edges)
    }

    /// All of a node's entries.
    fn entries(&self, node: NodeId) -> Vec<Entry> {
        let mut entries = Vec::new();
        for &event in &self.edges {
            let e = event.index();
            if self.source[e] == node {
                entries.push(Entry { neighbor: self.destination[e], event, time: self.time[e] });
            }
            if self.destination[e] == node {
                entries.push(Entry { neighbor: self.source[e], event, time: self.time[e] });
            }
        }
        entries
    }

    fn before(&self, node: NodeId, time: Timestamp) -> u32 {
        self.entries(node).iter().filter(|entry| entry.time < time).count() as u32
    }

    fn check(&self, graph: &Tcsr) {
        assert_eq!((graph.nodes(), graph.events()), (self.nodes as usize, self.time.len()));
        assert_eq!(graph.entries(), 2 * self.edges.len());
        for node in (0..self.nodes).map(NodeId) {
            assert_eq!(graph.row(node), self.entries(node), "row of {node}");
            assert_eq!(graph.degree(node), graph.row(node).len());
            for time in -1..12 {
                assert_eq!(
                    graph.search(node, Timestamp(time)),
                    self.before(node, Timestamp(time)),
                    "{node} before {time}"
                );
            }
        }
        for (e, &time) in self.time.iter().enumerate() {
            let (event, source, destination) = (EventId(e as u32), self.source[e], self.destination[e]);
            assert_eq!(graph.offset(event, Endpoint::Source), self.before(source, time), "source of {event}");
            assert_eq!(
                graph.offset(event, Endpoint::Destination),
                self.before(destination, time),
                "destination of {event}"
            );
            assert_eq!(
                graph.far_offset(event, source, destination),
                self.before(destination, time),
                "far end of {event}"
            );
            assert_eq!(graph.far_offset(event, destination, source), self.before(source, time), "near end of {event}");
        }
    }
}

/// The picture of the module's documentation, and what a mask does to it.
///
/// ```text
/// a --t1-- b --t2-- b          0: a-b   1: a-c   2: b-b
///  \--t2-- c
/// ```
#[test]
fn ties_self_loops_and_the_first_edge() {
    let mut case = Case::new(4, vec![(0, 1, 1, true), (0, 2, 2, true), (1, 1, 2, true)]);
    let graph = case.build(2);
    case.check(&graph);
    assert_eq!(
        graph.row(NodeId(1)).iter().map(|e| (e.neighbor.0, e.event.0)).collect::<Vec<_>>(),
        [(0, 0), (1, 2), (1, 2)]
    );
    assert_eq!((graph.degree(NodeId(3)), graph.search(NodeId(3), Timestamp(9))), (0, 0));
    assert_eq!([Endpoint::Source, Endpoint::Destination].map(|end| graph.offset(EventId(2), end)), [1, 1]);

    case.edges = vec![EventId(1)];
    let masked = case.build(3);
    case.check(&masked);
    assert_eq!(masked.offset(EventId(2), Endpoint::Source), 0, "a masked edge is in no row, yet it has offsets");
}

#[test]
fn empty_streams() {
    for nodes in [0, 1, 5] {
        let graph = Tcsr::from_columns(nodes, &[], &[]);
        assert_eq!((graph.nodes(), graph.entries(), graph.events()), (nodes as usize, 0, 0));
    }
}

#[test]
#[should_panic(expected = "ascend in event id")]
fn edges_must_ascend() {
    let mut case = Case::new(2, vec![(0, 1, 1, true), (0, 1, 2, true)]);
    case.edges.reverse();
    case.build(2);
}

#[test]
#[should_panic(expected = "times descend")]
fn times_must_ascend_across_pieces() {
    let mut case = Case::new(2, vec![(0, 1, 1, true), (0, 1, 2, true)]);
    case.time.reverse();
    case.build(1);
}

proptest! {
    #[test]
    fn equals_the_naive_list(
        events in prop::collection::vec((0u32..9, 0u32..9, 0i64..12, prop::bool::weighted(0.8)), 0..120),
        piece in 1usize..50,
    ) {
        let case = Case::new(9, events);
        let graph = case.build(piece);
        case.check(&graph);
        prop_assert_eq!(graph, case.build(1000));
    }
}

/// Large enough for many buckets of several nodes, many pieces, and a hub; sparse masks; any number of threads.
#[test]
fn equal_on_any_number_of_threads() {
    let word = |i: u64| tidemill_data::philox::Key::new(5, tidemill_data::philox::Purpose::Generate).word(i);
    let events = (0..200_000u64).map(|i| {
        let hub = word(4 * i).is_multiple_of(3);
        let source = if hub { 17 } else { word(4 * i + 1) % 5000 };
        (source, word(4 * i + 2) % 5000, (i / 7) as i64, !word(4 * i + 3).is_multiple_of(10))
    });
    let case = Case::new(5000, events.collect());
    let build =
        |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(|| case.build(30_000));
    let one = build(1);
    assert!(one == build(2) && one == build(8));
    for node in [0, 17, 4999].map(NodeId) {
        assert!(one.row(node) == case.entries(node));
    }
    assert!(one.degree(NodeId(17)) > 50_000);
    let bytes = 40.125 * case.time.len() as f64 + 8.0 * 5001.0 - 32.0 * (case.time.len() - case.edges.len()) as f64;
    assert!((one.heap_bytes() as f64 - bytes).abs() < 64.0, "{} is not {bytes}", one.heap_bytes());
}
