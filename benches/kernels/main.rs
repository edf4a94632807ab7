//! The kernels of a training step, one by one, on a small generated stream; then ratios against `benches/baseline.json`.
//!
//! `make bench-quick`, or `cargo bench --bench kernels -- FILTER`. One binary, so that libtorch is linked once.

mod baseline;

use criterion::{BatchSize, Criterion};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tch::{Device, Kind, Tensor};
use tidemill::config::Config;
use tidemill::graph::Tcsr;
use tidemill::memory::{NodeMemory, StateCommit, StateShape, unsent};
use tidemill::pipeline::commit::MailRule;
use tidemill::pipeline::event::{EventStage, Negatives, Pass, logical_roots};
use tidemill::sampler::{Root, Sample, SampleScratch, Sampler, SamplerConfig, Strategy};
use tidemill::trainer::Trainer;
use tidemill_data::generate::{GenerateConfig, generate};
use tidemill_data::id::{EventId, NodeId, Timestamp};
use tidemill_data::philox::{Key, Purpose};
use tidemill_data::stream::EventStream;
use tidemill_models::model::Model;
use tidemill_models::model::{MailTargets, StateSpec};
use tidemill_models::optimizer::{Optimizer, OptimizerConfig};
use tidemill_models::parameters::Draw;
use tidemill_models::tgn::{FeatureDims, Tgn, TgnConfig};

/// Events of the stream, of a batch, and the first event of the batch that is sampled.
const EVENTS: usize = 50_000;
const BATCH: usize = 600;
const FIRST: u32 = 30_000;
/// Width of rows and of features.
const WIDTH: i64 = 100;

fn main() {
    tidemill::device::passive_wait();
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(3))
        .configure_from_args();
    let stream = generate(&GenerateConfig { events: Some(EVENTS), features: 16, seed: 1, ..GenerateConfig::default() });
    let stream = stream.expect("a generated stream");
    let all: Vec<EventId> = (0..stream.len() as u32).map(EventId).collect();
    let graph = Arc::new(Tcsr::build(&stream, &all));
    criterion.bench_function("tcsr_build", |b| b.iter(|| Tcsr::build(&stream, black_box(&all))));
    samplers(&mut criterion, &stream, &graph);
    event_plan(&mut criterion, &stream, &graph, &all);
    state(&mut criterion, &stream);
    adam(&mut criterion);
    whole_step(&mut criterion, &stream);
    criterion.final_summary();
    if !std::env::args().any(|argument| argument == "--test" || argument == "--list") {
        baseline::compare();
    }
}

fn batch_events() -> Vec<EventId> {
    (FIRST..FIRST + BATCH as u32).map(EventId).collect()
}

/// Nodes that were destinations some events earlier: negatives of a sort.
fn negatives(stream: &EventStream, events: &[EventId]) -> Vec<NodeId> {
    events.iter().map(|e| stream.destination(EventId(e.0 / 2))).collect()
}

fn samplers(criterion: &mut Criterion, stream: &EventStream, graph: &Arc<Tcsr>) {
    let (events, mut roots) = (batch_events(), Vec::new());
    logical_roots(stream, graph, &events, &negatives(stream, &events), &mut roots);
    let cases = [
        ("sampler_recent_1_hop", Strategy::Recent, vec![10]),
        ("sampler_recent_2_hops", Strategy::Recent, vec![10, 10]),
        ("sampler_uniform_1_hop", Strategy::Uniform, vec![10]),
        ("sampler_uniform_2_hops", Strategy::Uniform, vec![10, 10]),
    ];
    for (name, strategy, neighbors) in cases {
        sample(
            criterion,
            name,
            stream,
            graph,
            &SamplerConfig { strategy, neighbors, ..SamplerConfig::default() },
            &roots,
        );
    }
    // the same few roots again and again, one slot each: what is left is finding the repeats
    let repeated: Vec<Root> = (0..20).flat_map(|_| roots.iter().copied().take(BATCH)).collect();
    let config = SamplerConfig { neighbors: vec![1], ..SamplerConfig::default() };
    sample(criterion, "dedup", stream, graph, &config, &repeated);
}

fn sample(
    criterion: &mut Criterion,
    name: &str,
    stream: &EventStream,
    graph: &Arc<Tcsr>,
    config: &SamplerConfig,
    roots: &[Root],
) {
    let sampler = Sampler::new(config, graph.clone(), stream.tick());
    let (mut scratch, mut sample) = (SampleScratch::default(), Sample::default());
    let key = Key::new(1, Purpose::Neighbor).narrow([1, 50, 0, 0]);
    criterion.bench_function(name, |b| {
        b.iter(|| sampler.sample_into(black_box(roots), EventId(FIRST), key, &mut scratch, &mut sample));
    });
}

fn event_plan(criterion: &mut Criterion, stream: &EventStream, graph: &Arc<Tcsr>, all: &[EventId]) {
    let sampler = Sampler::new(&SamplerConfig::default(), graph.clone(), stream.tick());
    let pass = Pass {
        events: all.into(),
        batch_size: BATCH,
        sampler: Arc::new(sampler),
        cache: None,
        negatives: Negatives::Given(negatives(stream, all).into()),
        negatives_per_event: 1,
        seed: 1,
        epoch: 1,
        dropout: None,
        mail: MailRule::of(&StateSpec { mail_targets: MailTargets::Endpoints, ..StateSpec::default() }),
        edges: None,
        partition: None,
    };
    let mut stage = EventStage::new(stream.clone(), None);
    criterion.bench_function("event_plan", |b| b.iter(|| stage.plan(&pass, FIRST as usize / BATCH)));
}

/// Reads and commits of node memory and mail for the endpoints of a batch, every one with mail pending.
fn state(criterion: &mut Criterion, stream: &EventStream) {
    let shape = StateShape {
        nodes: stream.nodes() as usize,
        memory_dim: WIDTH,
        payload_dim: WIDTH,
        code_dim: None,
        kind: Kind::Float,
        device: Device::Cpu,
    };
    let mut memory = NodeMemory::new(shape, Timestamp(0));
    let events = batch_events();
    let mut nodes: Vec<NodeId> = events.iter().flat_map(|&e| [stream.source(e), stream.destination(e)]).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let mails: Vec<_> = nodes.iter().map(|&n| (n, unsent(n, events[0], stream.time(events[0])))).collect();
    let rows = Tensor::ones([nodes.len() as i64, WIDTH], (Kind::Float, Device::Cpu));
    let mut commit = || {
        memory.commit(&StateCommit { nodes: &nodes, rows: &rows, mails: &mails, payload: &rows }, |_| None);
        memory.settle();
    };
    commit();
    criterion.bench_function("memory_commit", |b| b.iter(&mut commit));
    criterion.bench_function("mail_gather", |b| b.iter(|| memory.read(black_box(&nodes))));
}

/// Initial parameters of no meaning.
struct Same;

impl Draw for Same {
    fn uniform(&self, _: &str, _: u64) -> f64 {
        0.5
    }

    fn normal(&self, _: &str, _: u64) -> f64 {
        0.1
    }
}

fn adam(criterion: &mut Criterion) {
    let features = FeatureDims { edge: 172, node: 0 };
    let mut model = Tgn::new(&TgnConfig::default(), features, &Same, Device::Cpu).expect("a model");
    let gradient = Tensor::full([model.parameters().count()], 1e-3, (Kind::Float, Device::Cpu));
    model.parameters_mut().set_grads(&gradient).expect("of one length");
    let mut optimizer = Optimizer::new(OptimizerConfig::default(), model.parameters());
    criterion.bench_function("adam", |b| b.iter(|| optimizer.step(model.parameters_mut(), 1e-4)));
}

/// Batches of 200 of an epoch, one after another, from a trainer that is made anew when the epoch is over.
fn whole_step(criterion: &mut Criterion, stream: &EventStream) {
    const WARM: usize = 20;
    let fresh = || {
        let mut trainer = Trainer::over(Config::default(), stream.clone()).expect("a trainer");
        trainer.train_until(WARM).expect("finite losses");
        (trainer, WARM)
    };
    let mut running = fresh();
    criterion.bench_function("step_batch_200", |b| {
        b.iter_custom(|batches| {
            let (mut left, mut took) = (batches as usize, Duration::ZERO);
            while left > 0 {
                if running.1 == running.0.batches() {
                    running = fresh();
                }
                let (trainer, done) = &mut running;
                let now = left.min(trainer.batches() - *done);
                let start = Instant::now();
                trainer.train_until(*done + now).expect("finite losses");
                took += start.elapsed();
                (*done, left) = (*done + now, left - now);
            }
            took
        });
    });
    criterion.bench_function("step_setup", |b| {
        b.iter_batched(|| stream.clone(), |stream| Trainer::over(Config::default(), stream), BatchSize::PerIteration);
    });
}
