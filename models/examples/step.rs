//! Times the parts of one TGN step on synthetic inputs of the size of a Wikipedia batch (B = 200, K = 10, 172 edge features).
//!
//! `cargo run --release -p tidemill-models --example step [-- learned] [-- composed]`
//!
//! Wall time needs an idle machine. The last column is the time of all threads on CPUs, which other programs disturb less; set
//! `OMP_WAIT_POLICY=PASSIVE`, as the program does, or it counts threads that wait. `-- composed` takes the path under autograd.
#![allow(clippy::print_stdout)]

use std::time::Instant;

use tch::{Device, Kind, Tensor};
use tidemill_models::{
    Draw, FeatureDims, LayerInput, LossReduction, MailInput, Mode, Model, ModelInput, Optimizer, OptimizerConfig,
    PairInput, Tgn, TgnConfig, TimeEncoding,
};

const B: i64 = 200;
const R: i64 = 590;
const K: i64 = 10;
const N: i64 = 1800;
const M: i64 = 1500;
const EDGE: i64 = 172;

/// A cheap hash as the source of initial values; a run uses Philox.
struct Hash;

impl Draw for Hash {
    fn uniform(&self, name: &str, index: u64) -> f64 {
        let seed =
            name.bytes().fold(index.wrapping_add(1), |h, b| (h ^ u64::from(b)).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        ((seed ^ (seed >> 31)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn normal(&self, name: &str, index: u64) -> f64 {
        (0..12).map(|i| self.uniform(name, index * 12 + i)).sum::<f64>() - 6.0
    }
}

fn input(config: &TgnConfig) -> ModelInput {
    let f = (Kind::Float, Device::Cpu);
    let i = (Kind::Int64, Device::Cpu);
    ModelInput {
        memory: Tensor::randn([N, config.memory_dim], f),
        node_features: None,
        mail: MailInput {
            row: Tensor::arange(M, i),
            segment: None,
            payload: Tensor::randn([M, config.memory_dim], f),
            edge_features: Some(Tensor::randn([M, EDGE], f)),
            dt: Tensor::rand([M], f) * 1e5,
            code: None,
        },
        slots: None,
        layers: vec![LayerInput {
            root: Tensor::randint(N, [R], i),
            neighbor: Tensor::randint(N, [R, K], i),
            valid: Tensor::rand([R, K], f).gt(0.1),
            dt: Tensor::rand([R, K], f) * 1e5,
            root_dt: Tensor::rand([R], f) * 1e5,
            since_origin: None,
            edge_features: Some(Tensor::randn([R, K, EDGE], f)),
            keep: Some(Tensor::rand([R, config.heads, K], f).gt(0.1).to_kind(Kind::Float)),
        }],
    }
}

fn main() {
    let learned = std::env::args().any(|a| a == "learned");
    let config = TgnConfig {
        time_encoder: if learned { TimeEncoding::Learned } else { TimeEncoding::Fixed },
        ..TgnConfig::default()
    };
    let mut model = Tgn::new(&config, FeatureDims { edge: EDGE, node: 0 }, &Hash, Device::Cpu).expect("valid");
    if std::env::args().any(|a| a == "composed") {
        model = model.composed();
    }
    let mut optimizer = Optimizer::new(OptimizerConfig::default(), model.parameters());
    let input = input(&config);
    let index = || Tensor::randint(R, [B], (Kind::Int64, Device::Cpu));
    let pairs = PairInput {
        source: index(),
        destination: index(),
        negative: index(),
        events: B as f64,
        loss: LossReduction::Sum,
        seen: None,
    };
    println!("{} parameters, {} threads", model.parameters().count(), tch::get_num_threads());
    let names = ["embed", "score", "backward", "optimizer", "evaluate"];
    let mut times = vec![Vec::new(); names.len()];
    let mut busy = times.clone();
    for _ in 0..100 {
        let mut laps = vec![now()];
        let embedded = model.embed(&input, Mode::Train);
        laps.push(now());
        let scored = model.score(&embedded.z, &pairs);
        laps.push(now());
        model.backward(embedded, &scored.grad_z);
        laps.push(now());
        optimizer.step(model.parameters_mut(), 1e-4);
        model.parameters_mut().zero_grads();
        laps.push(now());
        let _ = model.embed(&input, Mode::Eval);
        laps.push(now());
        for (i, lap) in laps.windows(2).enumerate() {
            times[i].push((lap[1].0 - lap[0].0).as_secs_f64() * 1e3);
            busy[i].push((lap[1].1 - lap[0].1) as f64 / 1e6);
        }
    }
    let mut step = [0.0; 2];
    for (i, name) in names.iter().enumerate() {
        times[i].sort_by(f64::total_cmp);
        let (fastest, median) = (times[i][0], times[i][times[i].len() / 2]);
        let cpu = busy[i].iter().sum::<f64>() / busy[i].len() as f64;
        if *name != "evaluate" {
            step = [step[0] + median, step[1] + cpu];
        }
        println!("{name:10} {median:7.2} ms wall (fastest {fastest:6.2}), {cpu:7.2} ms on a CPU");
    }
    println!("{:10} {:7.2} ms wall, {:24.2} ms on a CPU", "step", step[0], step[1]);
}

/// Wall clock, and nanoseconds that all threads have spent on CPUs (0 where the kernel does not tell).
fn now() -> (Instant, u64) {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let spent = |statistics: String| statistics.split(' ').next().and_then(|ns| ns.parse::<u64>().ok());
    let busy = tasks.filter_map(|task| spent(std::fs::read_to_string(task.path().join("schedstat")).ok()?)).sum();
    (Instant::now(), busy)
}
