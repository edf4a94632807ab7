//! Times the parts of one TGN step on synthetic inputs of the size of a Wikipedia batch (B = 200, K = 10, 172 edge features).
//!
//! `cargo run --release -p tidemill-models --example step [-- learned]`
#![allow(clippy::print_stdout)]

use std::time::Instant;

use tch::{Device, Kind, Tensor};
use tidemill_models::{
    Draw, FeatureDims, LayerInput, LossReduction, MailInput, Mode, Model, ModelInput, Optimizer, OptimizerConfig, PairInput, Tgn,
    TgnConfig, TimeEncoding,
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
        let seed = name.bytes().fold(index.wrapping_add(1), |h, b| (h ^ u64::from(b)).wrapping_mul(0x9E37_79B9_7F4A_7C15));
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
        layers: vec![LayerInput {
            root: Tensor::randint(N, [R], i),
            neighbor: Tensor::randint(N, [R, K], i),
            valid: Tensor::rand([R, K], f).gt(0.1),
            dt: Tensor::rand([R, K], f) * 1e5,
            root_dt: Tensor::rand([R], f) * 1e5,
            edge_features: Some(Tensor::randn([R, K, EDGE], f)),
            keep: Some(Tensor::rand([R, config.heads, K], f).gt(0.1).to_kind(Kind::Float)),
        }],
    }
}

fn main() {
    let learned = std::env::args().any(|a| a == "learned");
    let config =
        TgnConfig { time_encoder: if learned { TimeEncoding::Learned } else { TimeEncoding::Fixed }, ..TgnConfig::default() };
    let mut model = Tgn::new(&config, FeatureDims { edge: EDGE, node: 0 }, &Hash, Device::Cpu).expect("valid");
    let mut optimizer = Optimizer::new(OptimizerConfig::default(), model.parameters());
    let input = input(&config);
    let index = || Tensor::randint(R, [B], (Kind::Int64, Device::Cpu));
    let pairs = PairInput {
        source: index(),
        destination: index(),
        negative: index(),
        events: B as f64,
        loss: LossReduction::Sum,
    };
    println!("{} parameters, {} threads", model.parameters().count(), tch::get_num_threads());
    let names = ["embed", "score", "backward", "optimizer", "evaluate"];
    let mut times = vec![Vec::new(); names.len()];
    for _ in 0..60 {
        let mut laps = vec![Instant::now()];
        let embedded = model.embed(&input, Mode::Train);
        laps.push(Instant::now());
        let scored = model.score(&embedded.z, &pairs);
        laps.push(Instant::now());
        model.backward(embedded, &scored.grad_z);
        laps.push(Instant::now());
        optimizer.step(model.parameters_mut(), 1e-4);
        model.parameters_mut().zero_grads();
        laps.push(Instant::now());
        let _ = model.embed(&input, Mode::Eval);
        laps.push(Instant::now());
        for (time, lap) in times.iter_mut().zip(laps.windows(2)) {
            time.push((lap[1] - lap[0]).as_secs_f64() * 1e3);
        }
    }
    let mut step = 0.0;
    for (name, time) in names.iter().zip(&mut times) {
        time.sort_by(f64::total_cmp);
        let median = time[time.len() / 2];
        step += if *name == "evaluate" { 0.0 } else { median };
        println!("{name:10} {median:7.2} ms   (fastest {:.2})", time[0]);
    }
    println!("{:10} {step:7.2} ms", "step");
}
