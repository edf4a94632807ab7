//! Sampling into kept buffers allocates nothing once they have grown. A binary of its own, for the allocator that counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use tidemill::graph::{Columns, Endpoint, Tcsr};
use tidemill::sampler::{Root, Sample, SampleScratch, Sampler, SamplerConfig, Strategy};
use tidemill_data::id::{EventId, NodeId, Timestamp};
use tidemill_data::philox::{Key, Purpose};
use tidemill_data::stream::Tick;

/// The system's allocator; counts what is asked of it, on any thread, while told to.
struct Counting;

static COUNTS: AtomicBool = AtomicBool::new(false);
static ASKED: AtomicUsize = AtomicUsize::new(0);

fn count() {
    if COUNTS.load(SeqCst) {
        ASKED.fetch_add(1, SeqCst);
    }
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(place, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often `work` allocates.
fn allocations(work: impl FnOnce()) -> usize {
    ASKED.store(0, SeqCst);
    COUNTS.store(true, SeqCst);
    work();
    COUNTS.store(false, SeqCst);
    ASKED.load(SeqCst)
}

const EVENTS: u32 = 20_000;
const NODES: u32 = 500;
const BATCH: u32 = 600;

struct Stream {
    source: Vec<NodeId>,
    destination: Vec<NodeId>,
    time: Vec<Timestamp>,
}

impl Stream {
    fn new() -> Stream {
        let key = Key::new(3, Purpose::Generate);
        let node = |i: u32| NodeId(key.below(u64::from(i), NODES));
        Stream {
            source: (0..EVENTS).map(|e| node(2 * e)).collect(),
            destination: (0..EVENTS).map(|e| node(2 * e + 1)).collect(),
            time: (0..EVENTS).map(|e| Timestamp(i64::from(e / 2))).collect(),
        }
    }

    fn graph(&self) -> Arc<Tcsr> {
        let all: Vec<EventId> = (0..EVENTS).map(EventId).collect();
        let columns =
            Columns { first: EventId(0), source: &self.source, destination: &self.destination, time: &self.time };
        Arc::new(Tcsr::from_columns(NODES, &[columns], &all))
    }

    /// Each event's source and destination, and a third node whose past must be searched.
    fn roots(&self, graph: &Tcsr, first: u32) -> Vec<Root> {
        let of = |e: u32| {
            let (event, time) = (EventId(e), self.time[e as usize]);
            let end = |node, endpoint| Root { node, time, before: Some(graph.offset(event, endpoint)) };
            let other = Root { node: NodeId(e * 7 % NODES), time, before: None };
            [
                end(self.source[e as usize], Endpoint::Source),
                end(self.destination[e as usize], Endpoint::Destination),
                other,
            ]
        };
        (first..first + BATCH).flat_map(of).collect()
    }
}

/// Batches from the stream's second half, so that all roots have full neighborhoods; the first round grows the buffers. The
/// rounds run on a worker of the pool: a thread outside it would use rayon's own queue, which allocates now and then.
#[test]
fn a_warm_sampler_allocates_nothing() {
    let stream = Stream::new();
    let graph = stream.graph();
    let batches: Vec<u32> = (EVENTS / 2..EVENTS - BATCH).step_by(BATCH as usize).collect();
    let roots: Vec<Vec<Root>> = batches.iter().map(|&first| stream.roots(&graph, first)).collect();
    assert!(allocations(|| drop(std::hint::black_box(vec![0u8; 10]))) > 0, "the allocator counts");
    for (strategy, neighbors) in [
        (Strategy::Recent, vec![10]),
        (Strategy::Recent, vec![10, 5]),
        (Strategy::Uniform, vec![10]),
        (Strategy::Uniform, vec![10, 10]),
    ] {
        let config = SamplerConfig { strategy, neighbors, ..SamplerConfig::default() };
        let sampler = Sampler::new(&config, graph.clone(), Tick::SECOND);
        let (mut scratch, mut sample) = (SampleScratch::default(), Sample::default());
        let mut round = || {
            for (&first, roots) in batches.iter().zip(&roots) {
                let key = Key::new(1, Purpose::Neighbor).narrow([1, first, 0, 0]);
                sampler.sample_into(roots, EventId(first), key, &mut scratch, &mut sample);
            }
        };
        for threads in [1, 2] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
            // A worker that gets its first work late sets up rayon's own tables then: the sampler's share is what every round has.
            let count = pool.install(|| {
                round();
                (0..10).map(|_| allocations(&mut round)).min().expect("ten rounds")
            });
            assert_eq!(count, 0, "{config:?} on {threads} threads, {} batches", batches.len());
        }
    }
}
