//! Every layer and whole training steps against arrays saved from PyTorch (`golden/make.py`): values and all gradients, in
//! both kinds of float.

use std::collections::BTreeMap;
use std::path::Path;

use tch::{Device, Kind, Tensor};
use tidemill_models::attention::{Attention, AttentionDims};
use tidemill_models::decoder::Decoder;
use tidemill_models::embedding::{Codes, EmbeddingDims, EmbeddingLayer};
use tidemill_models::loss::link_loss;
use tidemill_models::memory_updater::{MemoryUpdater, MessageDims};
use tidemill_models::message::{Message, aggregate};
use tidemill_models::neighborhood::Neighborhood;
use tidemill_models::parameters::{Declarations, Init, ParameterId};
use tidemill_models::time_encoder::{Tape, TimeEncoder};
use tidemill_models::transformer::{Transformer, TransformerDims};
use tidemill_models::{
    Aggregator, DecoderInit, Draw, Dtype, Embedding, FeatureDims, LayerInput, LossReduction, LrSchedule, MailInput,
    MessageTime, Mode, Model, ModelInput, Optimizer, OptimizerConfig, OptimizerKind, PairInput, Parameters, Tgn,
    TgnConfig, TimeEncoding, Updater, clip_norm, grad_norm,
};

const KINDS: [Dtype; 2] = [Dtype::F64, Dtype::F32];

/// Largest difference that counts as equal, relative to the largest number of the array (at least 1).
fn tolerance(kind: Kind) -> f64 {
    if kind == Kind::Double { 1e-9 } else { 1e-5 }
}

/// The arrays of one file; floats in the kind asked for.
struct Golden {
    file: &'static str,
    kind: Kind,
    arrays: BTreeMap<String, Tensor>,
}

impl Golden {
    fn open(file: &'static str, dtype: Dtype) -> Golden {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{file}.npz"));
        let mut npz = npyz::npz::NpzArchive::open(path).expect("golden file");
        let names: Vec<String> = npz.array_names().map(String::from).collect();
        let kind = dtype.kind();
        let arrays = names.into_iter().map(|name| {
            let array = npz.by_name(&name).expect("readable").expect("listed");
            let value = read(array, kind);
            (name, value)
        });
        Golden { file, kind, arrays: arrays.collect() }
    }

    fn get(&self, key: &str) -> Tensor {
        self.find(key).unwrap_or_else(|| panic!("{} has no {key}", self.file))
    }

    fn find(&self, key: &str) -> Option<Tensor> {
        self.arrays.get(key).map(Tensor::shallow_clone)
    }

    fn input(&self, name: &str) -> Tensor {
        self.get(&format!("in/{name}"))
    }

    /// An input that carries gradient.
    fn leaf(&self, name: &str) -> Tensor {
        self.input(name).copy().set_requires_grad(true)
    }

    fn with_prefix<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a Tensor)> {
        self.arrays.iter().filter_map(move |(key, value)| Some((key.strip_prefix(prefix)?, value)))
    }

    /// Loads the initial parameters; the file must name each of the model's, and no other.
    fn load(&self, parameters: &mut Parameters) {
        let mut ours: Vec<&str> = parameters.names().collect();
        ours.sort_unstable();
        assert_eq!(ours, self.with_prefix("param/").map(|(name, _)| name).collect::<Vec<_>>(), "{}", self.file);
        for (name, value) in self.with_prefix("param/") {
            parameters.set(name, value).expect("same shape");
        }
    }

    fn check(&self, key: &str, got: &Tensor) {
        let want = self.get(key);
        assert_eq!(got.size(), want.size(), "{} {key}", self.file);
        assert_eq!(got.kind(), self.kind, "{} {key}", self.file);
        if want.numel() == 0 {
            return;
        }
        let scale = want.abs().max().double_value(&[]).max(1.0);
        let difference = (got - want).abs().max().double_value(&[]) / scale;
        assert!(difference <= tolerance(self.kind), "{} {key}: differs by {difference:e}", self.file);
    }

    fn check_grads(&self, parameters: &Parameters) {
        for (name, _) in self.with_prefix("grad/") {
            self.check(&format!("grad/{name}"), parameters.grad(name).expect("same names"));
        }
    }

    /// Compares a layer's output, and the gradients of `sum(out * weight)` at parameters and `leaves`.
    fn check_layer(&self, parameters: &mut Parameters, count: usize, out: &Tensor, leaves: &[(&str, &Tensor)]) {
        self.check("out/out", out);
        let loss = (out * self.input("weight")).sum(self.kind);
        let inputs: Vec<&Tensor> = leaves.iter().map(|(_, leaf)| *leaf).collect();
        let gradients = parameters.differentiate(&loss, &ids(count), &inputs);
        self.check_grads(parameters);
        for ((name, _), gradient) in leaves.iter().zip(&gradients) {
            self.check(&format!("din/{name}"), gradient);
        }
    }
}

/// Handles of the first `count` parameters.
fn ids(count: usize) -> Vec<ParameterId> {
    let mut declarations = Declarations::default();
    (0..count).map(|i| declarations.add(i.to_string(), &[1], Init::Constant(0.0))).collect()
}

fn read<R: std::io::Read>(array: npyz::NpyFile<R>, kind: Kind) -> Tensor {
    let shape: Vec<i64> = array.shape().iter().map(|&n| n as i64).collect();
    let npyz::DType::Plain(dtype) = array.dtype() else { panic!("plain arrays only") };
    let flat = match dtype.type_char() {
        npyz::TypeChar::Float => Tensor::from_slice(&array.into_vec::<f64>().expect("f64")).to_kind(kind),
        npyz::TypeChar::Int => Tensor::from_slice(&array.into_vec::<i64>().expect("i64")),
        npyz::TypeChar::Bool => Tensor::from_slice(&array.into_vec::<bool>().expect("bool")),
        other => panic!("{other:?}"),
    };
    flat.view(shape.as_slice())
}

/// Initial values for tests that load or compare their own.
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

/// Declares one layer and loads its golden parameters; also how many there are.
fn layer<T>(golden: &Golden, declare: impl FnOnce(&mut Declarations) -> T) -> (T, Parameters, usize) {
    let mut declarations = Declarations::default();
    let layer = declare(&mut declarations);
    let count = declarations.mark();
    let mut parameters = declarations.build(golden.kind, Device::Cpu, &Hash);
    golden.load(&mut parameters);
    (layer, parameters, count)
}

/// In f32 the codes are a kernel of our own, and the gradient bypasses autograd. Phases reach 1000 rad here, which f32 rounds by
/// 3e-5 before the cosine is taken: that is compared with the same two roundings done by tensor operations.
#[test]
fn time_encoder() {
    for dtype in KINDS {
        let golden = Golden::open("time_encoder", dtype);
        let (encoder, mut p, count) =
            layer(&golden, |d| TimeEncoder::declare(d, TimeEncoding::Learned, 5, golden.kind, Device::Cpu));
        let (dt, mut tape) = (golden.input("dt"), Tape::recording());
        let out = encoder.encode(&p, &dt, &mut tape);
        if dtype == Dtype::F64 {
            assert_eq!(tape.leaves().count(), 0);
            golden.check_layer(&mut p, count, &out, &[]);
        } else {
            let (w, b) = (golden.get("param/time.w"), golden.get("param/time.b"));
            let [w, b] = [w, b].map(|x| x.set_requires_grad(true));
            let want = (dt.unsqueeze(-1) * &w + &b).cos();
            assert!((&out - &want).abs().max().double_value(&[]) < 2e-7);
            let weight = golden.input("weight");
            encoder.differentiate(&mut p, &tape, &[weight.shallow_clone()]);
            let gradients = Tensor::run_backward(&[(want * weight).sum(Kind::Float)], &[&w, &b], false, false);
            for (name, gradient) in ["time.w", "time.b"].into_iter().zip(gradients) {
                let scale = gradient.abs().max().double_value(&[]);
                let difference = (p.grad(name).expect("learned") - gradient).abs().max().double_value(&[]);
                assert!(difference < 1e-6 * scale, "{name}: {difference:e} of {scale:e}");
            }
        }
    }
}

#[test]
fn memory_updaters() {
    for dtype in KINDS {
        for (file, cell) in [("gru", Updater::Gru), ("rnn", Updater::Rnn)] {
            let golden = Golden::open(file, dtype);
            let dims = MessageDims { memory: 6, payload: 6, edge: 5, time: 4, own: true };
            let (updater, mut p, count) = layer(&golden, |d| MemoryUpdater::declare(d, cell, dims));
            let code = golden.leaf("code");
            let message = Message {
                payload: golden.input("payload"),
                edge_features: Some(golden.input("edge_features")),
                code: code.shallow_clone(),
            };
            let out = updater.forward(&p, &golden.input("own"), &message);
            golden.check_layer(&mut p, count, &out, &[("code", &code)]);
        }
    }
}

#[test]
fn mean_of_messages() {
    for dtype in KINDS {
        let golden = Golden::open("mean_message", dtype);
        let code = golden.leaf("code");
        let mail = MailInput {
            row: Tensor::from_slice(&[4i64, 0, 7, 2]),
            segment: Some(golden.input("segment")),
            payload: golden.input("payload"),
            edge_features: Some(golden.input("edge_features")),
            dt: Tensor::zeros([7], (golden.kind, Device::Cpu)),
            code: None,
        };
        let m = aggregate(&mail, code.shallow_clone());
        let out = Tensor::cat(&[m.payload, m.edge_features.expect("given"), m.code], -1);
        golden.check_layer(
            &mut Declarations::default().build(golden.kind, Device::Cpu, &Hash),
            0,
            &out,
            &[("code", &code)],
        );
    }
}

#[test]
fn attention() {
    for dtype in KINDS {
        for (file, edge, dropout) in [("attention", 4, 0.0), ("attention_dropout", 4, 0.3), ("attention_plain", 0, 0.0)]
        {
            let golden = Golden::open(file, dtype);
            let root_time = edge > 0;
            let dims = AttentionDims { row: 5, edge, time: 3, heads: 2, dropout, root_time };
            let (attention, mut p, count) = layer(&golden, |d| Attention::declare(d, "attn", dims));
            let mut leaves = vec![("root", golden.leaf("root")), ("memory", golden.leaf("memory"))];
            leaves.extend((edge > 0).then(|| ("edge", golden.leaf("edge"))));
            leaves.push(("time", golden.leaf("time")));
            let blocks = leaves[1..].iter().map(|(_, x)| x.shallow_clone()).collect();
            let neighbors = Neighborhood { blocks, valid: golden.input("valid") };
            let zero = if root_time { golden.leaf("zero_code") } else { golden.input("zero_code") };
            let present: Vec<usize> = (0..neighbors.blocks.len()).collect();
            let keep = golden.find("in/keep");
            let identity = Tensor::eye(8, (golden.kind, Device::Cpu));
            let out = attention.forward(&p, &leaves[0].1, &zero, &neighbors, &present, keep.as_ref(), &identity);
            leaves.extend(root_time.then_some(("zero_code", zero)));
            let leaves: Vec<(&str, &Tensor)> = leaves.iter().map(|(name, leaf)| (*name, leaf)).collect();
            golden.check_layer(&mut p, count, &out, &leaves);
        }
    }
}

#[test]
fn transformer() {
    for dtype in KINDS {
        for (file, dropout) in [("transformer", 0.0), ("transformer_dropout", 0.3)] {
            let golden = Golden::open(file, dtype);
            let dims = TransformerDims { row: 5, edge: 2, time: 3, out: 6, heads: 2, dropout };
            let (transformer, mut p, count) = layer(&golden, |d| Transformer::declare(d, "t", dims));
            let names = ["root", "memory", "edge", "time"];
            let leaves = names.map(|name| (name, golden.leaf(name)));
            let blocks = leaves[1..].iter().map(|(_, x)| x.shallow_clone()).collect();
            let neighbors = Neighborhood { blocks, valid: golden.input("valid") };
            let keep = golden.find("in/keep");
            let out = transformer.forward(&p, &leaves[0].1, &neighbors, &[0, 1, 2], keep.as_ref());
            let leaves: Vec<(&str, &Tensor)> = leaves.iter().map(|(name, leaf)| (*name, leaf)).collect();
            golden.check_layer(&mut p, count, &out, &leaves);
        }
    }
}

#[test]
fn embeddings() {
    let files = [
        ("embedding_attention", Embedding::Attention, 5),
        ("embedding_sum", Embedding::Sum, 4),
        ("embedding_time", Embedding::Time, 5),
        ("embedding_identity", Embedding::Identity, 5),
    ];
    for dtype in KINDS {
        for (file, kind, out) in files {
            let golden = Golden::open(file, dtype);
            let attention = AttentionDims { row: 5, edge: 2, time: 3, heads: 1, dropout: 0.0, root_time: true };
            let dims = EmbeddingDims { attention, out };
            let ((time, embedding), mut p, count) = layer(&golden, |d| {
                let time = TimeEncoder::declare(d, TimeEncoding::Learned, 3, golden.kind, Device::Cpu);
                (time, EmbeddingLayer::declare(d, "layer", kind, dims))
            });
            let below = golden.leaf("below");
            let (roots, mut tape) = (layer_input(&golden, ""), Tape::recording());
            let codes = Codes { zero: time.zero(&p), neighbor: time.encode(&p, &roots.dt, &mut tape) };
            let out = embedding.forward(&p, &below, &roots, Some(codes));
            golden.check("out/out", &out);
            let loss = (out * golden.input("weight")).sum(golden.kind);
            let leaves: Vec<&Tensor> = std::iter::once(&below).chain(tape.leaves()).collect();
            let gradients = p.differentiate(&loss, &ids(count), &leaves);
            time.differentiate(&mut p, &tape, &gradients[1..]);
            golden.check_grads(&p);
            golden.check("din/below", &gradients[0]);
        }
    }
}

fn layer_input(golden: &Golden, prefix: &str) -> LayerInput {
    let get = |name: &str| golden.input(&format!("{prefix}{name}"));
    LayerInput {
        root: get("root"),
        neighbor: get("neighbor"),
        valid: get("valid"),
        dt: get("dt"),
        root_dt: get("root_dt"),
        since_origin: None,
        edge_features: Some(get("edge_features")),
        keep: golden.find(&format!("in/{prefix}keep")),
    }
}

fn pair_input(golden: &Golden, events: f64, loss: LossReduction) -> PairInput {
    let (source, destination, negative) =
        (golden.input("source"), golden.input("destination"), golden.input("negative"));
    PairInput { source, destination, negative, events, loss, seen: None }
}

#[test]
fn decoder_and_loss() {
    for dtype in KINDS {
        for (file, reduction) in [("decoder_sum", LossReduction::Sum), ("decoder_mean", LossReduction::Mean)] {
            let golden = Golden::open(file, dtype);
            let (decoder, mut p, count) = layer(&golden, |d| Decoder::declare(d, 4, DecoderInit::Xavier));
            let z = golden.leaf("z");
            let (positive, negative) = decoder.forward(&p, &z, &pair_input(&golden, 8.0, reduction));
            let loss = link_loss(&positive, &negative, 8.0, reduction);
            golden.check("out/positive", &positive);
            golden.check("out/negative", &negative);
            golden.check("out/loss", &loss);
            let grad_z = p.differentiate(&loss, &ids(count), &[&z]);
            golden.check_grads(&p);
            golden.check("din/z", &grad_z[0]);
        }
    }
}

/// The configurations of `make.py`'s steps, with the width of the node features.
fn steps() -> Vec<(&'static str, TgnConfig, i64)> {
    let base = TgnConfig {
        memory_dim: 6,
        time_dim: 4,
        embedding_dim: 8,
        dropout: 0.0,
        time_encoder: TimeEncoding::Learned,
        ..TgnConfig::default()
    };
    let stored = TgnConfig {
        message_time: MessageTime::Stored,
        aggregator: Aggregator::Mean,
        updater: Updater::Rnn,
        root_time: false,
        ..base.clone()
    };
    vec![
        ("step_default", TgnConfig { time_encoder: TimeEncoding::Fixed, dropout: 0.1, ..base.clone() }, 0),
        ("step_learned", base.clone(), 0),
        ("step_two_layers", TgnConfig { layers: 2, dropout: 0.2, ..base.clone() }, 0),
        ("step_stored_mean_rnn", stored, 0),
        ("step_mean_node_features", TgnConfig { aggregator: Aggregator::Mean, ..base.clone() }, 6),
        ("step_sum_projected", TgnConfig { embedding: Embedding::Sum, layers: 2, ..base }, 4),
    ]
}

fn model_input(golden: &Golden, layers: usize) -> ModelInput {
    ModelInput {
        memory: golden.input("memory"),
        node_features: golden.find("in/node_features"),
        mail: MailInput {
            row: golden.input("mail/row"),
            segment: golden.find("in/mail/segment"),
            payload: golden.input("mail/payload"),
            edge_features: Some(golden.input("mail/edge_features")),
            dt: golden.input("mail/dt"),
            code: golden.find("in/mail/code"),
        },
        slots: None,
        layers: (0..layers).map(|l| layer_input(golden, &format!("layer{l}/"))).collect(),
    }
}

/// A model with a file's parameters, and the file's inputs.
fn step_of(golden: &Golden, config: &TgnConfig, node: i64) -> (Tgn, ModelInput, PairInput) {
    let mut model = Tgn::new(config, FeatureDims { edge: 3, node }, &Hash, Device::Cpu).expect("valid");
    golden.load(model.parameters_mut());
    (model, model_input(golden, config.layers), pair_input(golden, 4.0, LossReduction::Sum))
}

/// With and without autograd.
#[test]
fn whole_steps() {
    for dtype in KINDS {
        for (file, config, node) in steps() {
            let golden = Golden::open(file, dtype);
            let config = TgnConfig { dtype, ..config };
            let (model, input, pairs) = step_of(&golden, &config, node);
            check_step(&golden, model, &input, &pairs);
            check_step(&golden, step_of(&golden, &config, node).0.composed(), &input, &pairs);
        }
    }
}

fn check_step(golden: &Golden, mut model: Tgn, input: &ModelInput, pairs: &PairInput) {
    let embedded = model.embed(input, Mode::Train);
    golden.check("out/rows", &embedded.rows.detach());
    golden.check("out/z", &embedded.z.detach());
    let scored = model.score(&embedded.z, pairs);
    golden.check("out/positive", &scored.positive);
    golden.check("out/negative", &scored.negative);
    golden.check("out/loss", &Tensor::from(scored.loss).to_kind(golden.kind));
    model.backward(embedded, &scored.grad_z);
    golden.check_grads(model.parameters());

    let evaluated = model.embed(input, Mode::Eval);
    assert!(!evaluated.z.requires_grad() && !evaluated.rows.requires_grad());
    let (positive, negative) = model.logits(&evaluated.z, pairs);
    golden.check("out/positive", &positive);
    golden.check("out/negative", &negative);
}

/// Two passes give the same bits, and gradients add up.
#[test]
fn steps_repeat_bitwise_and_accumulate() {
    for (file, config, node) in steps() {
        let golden = Golden::open(file, Dtype::F32);
        let run = |times: usize| {
            let (mut model, input, pairs) = step_of(&golden, &config, node);
            for _ in 0..times {
                let embedded = model.embed(&input, Mode::Train);
                let scored = model.score(&embedded.z, &pairs);
                model.backward(embedded, &scored.grad_z);
            }
            model.parameters().grads().copy()
        };
        let once = run(1);
        assert_eq!(once, run(1), "{file}");
        assert!((once * 2.0 - run(2)).abs().max().double_value(&[]) < 1e-5, "{file}");
    }
}

/// A rank may have no event of a batch, and a stream starts without mail: nothing to do is no error, and its gradient is zero.
#[test]
fn empty_batches() {
    let golden = Golden::open("step_learned", Dtype::F32);
    let (_, config, _) = steps().swap_remove(1);
    let (mut model, mut input, mut pairs) = step_of(&golden, &config, 0);
    let none = || Tensor::zeros([0], (Kind::Int64, Device::Cpu));
    let first = |x: &Tensor| x.narrow(0, 0, 0);
    let mail = &mut input.mail;
    (mail.row, mail.dt, mail.payload) = (none(), first(&mail.dt), first(&mail.payload));
    mail.edge_features = mail.edge_features.as_ref().map(first);
    assert_eq!(model.embed(&input, Mode::Train).rows, input.memory);

    let roots = &mut input.layers[0];
    (roots.root, roots.root_dt) = (none(), first(&roots.root_dt));
    (roots.neighbor, roots.valid, roots.dt) = (first(&roots.neighbor), first(&roots.valid), first(&roots.dt));
    roots.edge_features = roots.edge_features.as_ref().map(first);
    (pairs.source, pairs.destination, pairs.negative) = (none(), none(), none());
    let embedded = model.embed(&input, Mode::Train);
    assert_eq!(embedded.z.size(), [0, config.embedding_dim]);
    let scored = model.score(&embedded.z, &pairs);
    model.backward(embedded, &scored.grad_z);
    assert_eq!((scored.loss, scored.positive.numel(), scored.negative.numel()), (0.0, 0, 0));
    assert_eq!(model.parameters().grads().abs().max().double_value(&[]), 0.0);
}

/// Edge features that are zeros may be left out.
#[test]
fn absent_edge_features_count_as_zeros() {
    for (file, config, node) in steps() {
        let golden = Golden::open(file, Dtype::F64);
        let (model, mut input, _) = step_of(&golden, &TgnConfig { dtype: Dtype::F64, ..config }, node);
        let zeros = |x: &Option<Tensor>| x.as_ref().map(Tensor::zeros_like);
        input.mail.edge_features = zeros(&input.mail.edge_features);
        input.layers.iter_mut().for_each(|l| l.edge_features = zeros(&l.edge_features));
        let with = model.embed(&input, Mode::Eval).z;
        input.mail.edge_features = None;
        input.layers.iter_mut().for_each(|l| l.edge_features = None);
        let without = model.embed(&input, Mode::Eval).z;
        assert!((with - without).abs().max().double_value(&[]) < 1e-12, "{file}");
    }
}

/// A mask that keeps everything at p = 0 changes nothing; at p > 0 it scales the neighbors' share by 1 / (1 - p).
#[test]
fn a_mask_of_ones_at_zero_dropout_is_no_mask() {
    let golden = Golden::open("step_learned", Dtype::F64);
    let (_, config, _) = steps().swap_remove(1);
    let config = TgnConfig { dtype: Dtype::F64, ..config };
    let (model, mut input, _) = step_of(&golden, &config, 0);
    let without = model.embed(&input, Mode::Eval).z;
    let valid = &input.layers[0].valid;
    let ones = Tensor::ones([valid.size()[0], config.heads, valid.size()[1]], (Kind::Double, Device::Cpu));
    input.layers[0].keep = Some(ones);
    let kept = model.embed(&input, Mode::Eval).z;
    assert!((&without - kept).abs().max().double_value(&[]) < 1e-12);
    let (dropping, _, _) = step_of(&golden, &TgnConfig { dropout: 0.5, ..config }, 0);
    assert!((without - dropping.embed(&input, Mode::Eval).z).abs().max().double_value(&[]) > 1e-3);
}

#[test]
fn optimizers_follow_torch() {
    let files = [
        ("adam", OptimizerKind::Adam, 0.0),
        ("adam_decay", OptimizerKind::Adam, 0.1),
        ("adamw", OptimizerKind::AdamW, 0.1),
    ];
    for dtype in KINDS {
        for (file, kind, weight_decay) in files {
            let golden = Golden::open(file, dtype);
            let ((), mut p, _) = layer(&golden, |d| _ = d.add("x", &[40], Init::Constant(0.0)));
            let mut optimizer =
                Optimizer::new(OptimizerConfig { kind, weight_decay, ..OptimizerConfig::default() }, &p);
            let (grads, values) = (golden.input("grads"), golden.get("out/values"));
            for step in 0..6 {
                p.set_grads(&grads.get(step)).expect("same length");
                optimizer.step(&mut p, LrSchedule::Constant.rate(1e-2, step as u64, 6));
                let difference = (p.values() - values.get(step)).abs().max().double_value(&[]);
                assert!(
                    difference <= if dtype == Dtype::F64 { 1e-15 } else { 1e-6 },
                    "{file} step {step}: {difference:e}"
                );
            }
            golden.check("out/m", optimizer.moments().0);
            golden.check("out/v", optimizer.moments().1);
        }
    }
}

#[test]
fn clipping_follows_torch() {
    for dtype in KINDS {
        let golden = Golden::open("clip_norm", dtype);
        let mut d = Declarations::default();
        d.add("x", &[30], Init::Constant(0.0));
        let mut p = d.build(golden.kind, Device::Cpu, &Hash);
        p.set_grads(&golden.input("grads")).expect("same length");
        let norm = grad_norm(p.grads());
        clip_norm(&mut p, norm, 2.0);
        golden.check("out/norm", &Tensor::from(norm).to_kind(golden.kind));
        golden.check("out/grads", p.grads());
    }
}
