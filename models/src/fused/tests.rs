//! The path without autograd against the composition of tensor operations: values and all gradients.

use tch::{Device, Kind, Tensor};

use crate::message::{Aggregator, MessageTime};
use crate::product::Matmul;
use crate::time_encoder::TimeEncoding;
use crate::{
    Draw, Dtype, FeatureDims, LayerInput, LossReduction, MailInput, Mode, Model, ModelInput, PairInput, Tgn, TgnConfig,
};

/// Numbers from a hash of a name and a position.
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

/// What an input looks like, beside what the model asks for.
#[derive(Clone)]
struct Case {
    config: TgnConfig,
    /// D_e, D_v
    features: FeatureDims,
    mails: i64,
    /// Several mails to a row, as the aggregator `mean` gets them.
    segments: bool,
    /// Whether edge features are given, where the model has weights for them.
    edge_given: bool,
    fanout: i64,
    draws: i64,
    loss: LossReduction,
}

const ROWS: i64 = 90;
const EVENTS: i64 = 17;

impl Case {
    /// Learned, applied, two heads; widths that leave a rest in every vector width.
    fn base() -> Case {
        let config = TgnConfig {
            memory_dim: 21,
            time_dim: 15,
            embedding_dim: 19,
            heads: 2,
            dropout: 0.0,
            time_encoder: TimeEncoding::Learned,
            ..TgnConfig::default()
        };
        let features = FeatureDims { edge: 29, node: 0 };
        Case {
            config,
            features,
            mails: 70,
            segments: false,
            edge_given: true,
            fanout: 5,
            draws: 1,
            loss: LossReduction::Sum,
        }
    }

    fn with(change: impl FnOnce(&mut Case)) -> Case {
        let mut case = Case::base();
        change(&mut case);
        case
    }

    fn all() -> Vec<Case> {
        vec![
            Case::base(),
            Case::with(|c| c.config.time_encoder = TimeEncoding::Fixed),
            Case::with(|c| c.config.dropout = 0.3),
            Case::with(|c| (c.config.dropout, c.config.layers, c.draws) = (0.2, 2, 3)),
            Case::with(|c| c.config.message_time = MessageTime::Stored),
            Case::with(|c| (c.config.aggregator, c.segments) = (Aggregator::Mean, true)),
            Case::with(|c| c.mails = 0),
            Case::with(|c| (c.config.root_time, c.config.heads) = (false, 3)),
            Case::with(|c| c.edge_given = false),
            Case::with(|c| c.features = FeatureDims { edge: 0, node: 21 }),
            Case::with(|c| (c.features.node, c.loss) = (8, LossReduction::Mean)),
            Case::with(|c| (c.config.memory_dim, c.config.time_dim, c.fanout) = (100, 100, 10)),
        ]
    }

    fn model(&self) -> Tgn {
        Tgn::new(&self.config, self.features, &Hash, Device::Cpu).expect("valid")
    }

    fn floats(&self, name: &str, shape: &[i64]) -> Tensor {
        let count: i64 = shape.iter().product();
        let values: Vec<f64> = (0..count as u64).map(|i| Hash.uniform(name, i) * 2.0 - 1.0).collect();
        Tensor::from_slice(&values).to_kind(Kind::Float).to_kind(self.config.dtype.kind()).view(shape)
    }

    fn index(&self, name: &str, below: i64, shape: &[i64]) -> Tensor {
        let count: i64 = shape.iter().product();
        let values = (0..count as u64).map(|i| (Hash.uniform(name, i) * below as f64) as i64);
        Tensor::from_slice(&values.collect::<Vec<_>>()).view(shape)
    }

    fn edge_features(&self, name: &str, shape: &[i64]) -> Option<Tensor> {
        let shape: Vec<i64> = shape.iter().copied().chain([self.features.edge]).collect();
        (self.edge_given && self.features.edge > 0).then(|| self.floats(name, &shape))
    }

    /// Every fifth root has no neighbor; the others have holes.
    fn layer(&self, name: &str, below: i64, roots: i64) -> LayerInput {
        let (k, named) = (self.fanout, |part: &str| format!("{name}{part}"));
        let valid = self.floats(&named("valid"), &[roots, k]).gt(-0.4);
        let _ = valid.slice(0, None, None, 5).zero_();
        let keep = self.floats(&named("keep"), &[roots, self.config.heads, k]).gt(-0.5);
        LayerInput {
            root: self.index(&named("root"), below, &[roots]),
            neighbor: self.index(&named("neighbor"), below, &[roots, k]),
            dt: self.floats(&named("dt"), &[roots, k]).abs() * 3.0,
            root_dt: self.floats(&named("root_dt"), &[roots]).abs(),
            since_origin: None,
            edge_features: self.edge_features(&named("edge"), &[roots, k]),
            keep: (self.config.dropout > 0.0).then(|| keep.to_kind(self.config.dtype.kind())),
            valid,
        }
    }

    fn input(&self) -> ModelInput {
        let (memory, m) = (self.config.memory_dim, self.mails);
        let q = if self.segments { 2 * m } else { m };
        let whole = (Kind::Int64, Device::Cpu);
        let stored = self.config.message_time == MessageTime::Stored;
        let mail = MailInput {
            row: (Tensor::arange(m, whole) * 7).remainder(ROWS),
            segment: self.segments.then(|| Tensor::arange(q, whole).floor_divide_scalar(2)),
            payload: self.floats("payload", &[q, memory]),
            edge_features: self.edge_features("mail", &[q]),
            dt: self.floats("dt", &[q]).abs() * 3.0,
            code: stored.then(|| self.floats("code", &[q, self.config.time_dim])),
        };
        let sizes: Vec<i64> = [ROWS].into_iter().chain([60, 43].into_iter().skip(2 - self.config.layers)).collect();
        let layers = sizes.windows(2).enumerate().map(|(i, n)| self.layer(&i.to_string(), n[0], n[1]));
        let node = (self.features.node > 0).then(|| self.floats("node", &[ROWS, self.features.node]));
        ModelInput {
            memory: self.floats("memory", &[ROWS, memory]),
            node_features: node,
            mail,
            slots: None,
            layers: layers.collect(),
        }
    }

    fn pairs(&self) -> PairInput {
        PairInput {
            source: self.index("source", 43, &[EVENTS]),
            destination: self.index("destination", 43, &[EVENTS]),
            negative: self.index("negative", 43, &[EVENTS * self.draws]),
            events: 20.0,
            loss: self.loss,
            seen: None,
        }
    }
}

/// All that a step yields, by name.
fn step(model: &mut Tgn, input: &ModelInput, pairs: &PairInput) -> Vec<(String, Tensor)> {
    let evaluated = model.embed(input, Mode::Eval);
    let embedded = model.embed(input, Mode::Train);
    let (z, rows) = (embedded.z.detach(), embedded.rows.detach());
    assert_eq!((&evaluated.z, &evaluated.rows), (&z, &rows));
    let logits = model.logits(&z, pairs);
    let scored = model.score(&z, pairs);
    model.backward(embedded, &scored.grad_z);
    let loss = Tensor::from(scored.loss).to_kind(z.kind());
    let mut all: Vec<(String, Tensor)> = [
        ("rows", rows),
        ("z", z),
        ("loss", loss),
        ("grad_z", scored.grad_z),
        ("positive", scored.positive - logits.0),
        ("negative", scored.negative - logits.1),
    ]
    .map(|(name, value)| (name.into(), value))
    .into();
    let p = model.parameters();
    all.extend(p.names().map(|name| (name.to_owned(), p.grad(name).expect("its own name").copy())));
    all
}

#[test]
fn a_step_equals_the_composition() {
    for dtype in [Dtype::F64, Dtype::F32] {
        for (number, mut case) in Case::all().into_iter().enumerate() {
            case.config.dtype = dtype;
            let (input, pairs) = (case.input(), case.pairs());
            let (mut fused, mut composed) = (case.model(), case.model().composed());
            assert_eq!(fused.embed(&input, Mode::Train).trace.is_some(), !case.segments, "case {number}");
            let tolerance = if dtype == Dtype::F64 { 1e-12 } else { 1e-5 };
            let got = step(&mut fused, &input, &pairs);
            for ((name, got), (_, want)) in got.iter().zip(step(&mut composed, &input, &pairs)) {
                let scale = want.abs().max().double_value(&[]).max(1.0);
                let difference = (got - want).abs().max().double_value(&[]);
                assert!(
                    difference <= tolerance * scale,
                    "case {number}, {dtype:?}, {name}: {difference:e} of {scale:e}"
                );
            }
            let took_part = |model: &Tgn| model.parameters().spans().map(|span| span.took_part).collect::<Vec<_>>();
            assert_eq!(took_part(&fused), took_part(&composed), "case {number}");
        }
    }
}

/// Products in bfloat16 are near full ones, and are not the same: each array of a step within 5 % of its largest number.
#[test]
fn bfloat16_is_near() {
    let mut case = Case::with(|c| (c.config.memory_dim, c.config.time_dim, c.mails) = (400, 400, 85));
    let (input, pairs) = (case.input(), case.pairs());
    let want = step(&mut case.model(), &input, &pairs);
    case.config.matmul = Matmul::Bf16;
    for ((name, got), (_, want)) in step(&mut case.model(), &input, &pairs).iter().zip(&want) {
        assert_eq!(got.kind(), Kind::Float, "{name}");
        let difference = (got - want).abs().max().double_value(&[]);
        if !["positive", "negative", "loss"].contains(&name.as_str()) {
            let scale = want.abs().max().double_value(&[]);
            assert!((1e-5 * scale..0.05 * scale).contains(&difference), "{name}: {difference:e} of {scale:e}");
        }
    }
}

/// Kernels split their work by fixed runs of rows, and every number is made by one thread.
#[test]
fn any_number_of_threads_gives_the_same_bits() {
    for case in Case::all() {
        let with = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
            let case = case.clone();
            pool.install(move || step(&mut case.model(), &case.input(), &case.pairs()))
        };
        let one = with(1);
        assert_eq!(one, with(1));
        assert_eq!(one, with(2));
        assert_eq!(one, with(3));
    }
}

/// Gradients that are not finite are not swallowed.
#[test]
fn nan_reaches_the_loss() {
    let case = Case::base();
    let (mut input, pairs) = (case.input(), case.pairs());
    input.memory *= f64::NAN;
    let mut model = case.model();
    let embedded = model.embed(&input, Mode::Train);
    let scored = model.score(&embedded.z, &pairs);
    model.backward(embedded, &scored.grad_z);
    assert!(scored.loss.is_nan());
    assert!(model.parameters().grads().isnan().any().int64_value(&[]) == 1);
}
