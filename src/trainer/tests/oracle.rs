//! Our trainer against an independent reference in PyTorch, batch by batch: samples, rows, scores, losses, gradients, state.
//!
//! A folder under `tests/golden/` holds what the reference saved for a small stream, and the stream (`make.sh` there says
//! how). `TIDEMILL_ORACLE` may name a folder of further ones made from whole streams; `run.json` in each names its csv, which
//! is looked for in the folder itself and in `TIDEMILL_DATA`. How close two implementations can stay depends on the run:
//! with a trained time encoder and times in seconds rounding grows tenfold a batch, so long runs are compared at a tiny
//! learning rate or with the encoder fixed.

use super::npz::Npz;
use crate::config::Config;
use crate::pipeline::event::{BatchPlan, Negatives};
use crate::sampler::SameBatch;
use crate::trainer::TrainedBatch;
use crate::trainer::Trainer;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tch::Tensor;
use tidemill_data::dataset::TimeOrigin;
use tidemill_data::id::NodeId;
use tidemill_models::parameters::Parameters;
use tidemill_models::{Dtype, MessageTime, TimeEncoding};

/// Names of ours (blocks in column order) for each name of the reference.
const NAMES: [(&str, &[&str]); 22] = [
    ("time.w", &["time.w"]),
    ("time.b", &["time.b"]),
    ("gru.w_ih", &["gru.w_ih.own", "gru.w_ih.peer", "gru.w_ih.edge", "gru.w_ih.time"]),
    ("gru.w_hh", &["gru.w_hh.own"]),
    ("gru.b_ih", &["gru.b_ih"]),
    ("gru.b_hh", &["gru.b_hh"]),
    ("attn.wq", &["layer0.attn.wq.memory", "layer0.attn.wq.time"]),
    ("attn.wk", &["layer0.attn.wk.memory", "layer0.attn.wk.edge", "layer0.attn.wk.time"]),
    ("attn.wv", &["layer0.attn.wv.memory", "layer0.attn.wv.edge", "layer0.attn.wv.time"]),
    ("attn.bq", &["layer0.attn.bq"]),
    ("attn.bv", &["layer0.attn.bv"]),
    ("attn.wo", &["layer0.attn.wo"]),
    ("attn.bo", &["layer0.attn.bo"]),
    ("merge.w1", &["layer0.merge.w1.attn", "layer0.merge.w1.memory"]),
    ("merge.b1", &["layer0.merge.b1"]),
    ("merge.w2", &["layer0.merge.w2"]),
    ("merge.b2", &["layer0.merge.b2"]),
    ("dec.w1", &["dec.w1.source", "dec.w1.destination"]),
    ("dec.b1", &["dec.b1"]),
    ("dec.w2", &["dec.w2"]),
    ("dec.b2", &["dec.b2"]),
    ("node.w", &["node.w"]),
];

/// How far from the reference each kind of number may be, over the reference's largest.
pub(super) struct Tolerance {
    pub(super) batches: usize,
    pub(super) scores: f64,
    pub(super) state: f64,
    pub(super) gradients: f64,
}

impl Tolerance {
    /// By what the run was made for.
    pub(super) fn of(run: &Value) -> Tolerance {
        let lr = run["lr"].as_f64().expect("lr");
        let fixed = run["fixed_time_encoder"].as_bool().expect("fixed_time_encoder");
        match (run["dtype"].as_str().expect("dtype"), lr) {
            ("f64", lr) if lr <= 1e-6 || fixed => Tolerance { batches: 20, scores: 1e-9, state: 1e-9, gradients: 1e-9 },
            ("f64", _) => Tolerance { batches: 3, scores: 1e-9, state: 1e-9, gradients: 1e-9 },
            (_, 0.0) => Tolerance { batches: 20, scores: 1e-5, state: 1e-5, gradients: 1e-5 },
            _ => Tolerance { batches: 20, scores: 1e-4, state: 1e-4, gradients: 1e-4 },
        }
    }
}

#[test]
fn committed_references() {
    let folders = folders_of(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden"), Kind::Tgn);
    assert!(!folders.is_empty(), "tests/golden holds no reference");
    compare_all(&folders);
}

#[test]
fn references_of_whole_streams() {
    match std::env::var_os("TIDEMILL_ORACLE") {
        Some(folder) => compare_all(&folders_of(Path::new(&folder), Kind::Tgn)),
        None => eprintln!("skipped: TIDEMILL_ORACLE names no folder of references"),
    }
}

/// Which reference made a folder.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Tgn,
    /// TGAT, or another memory-based model.
    Family,
}

/// The folders below `folder` that a reference of this kind made.
pub(super) fn folders_of(folder: &Path, kind: Kind) -> Vec<PathBuf> {
    let made_by = |folder: &PathBuf| {
        let run = std::fs::read_to_string(folder.join("run.json")).ok()?;
        let run: Value = serde_json::from_str(&run).expect("json");
        let family = run["options"]["model"].is_string() || run["options"]["sampling"].is_string();
        Some(if family { Kind::Family } else { Kind::Tgn })
    };
    subfolders(folder).into_iter().filter(|folder| made_by(folder) == Some(kind)).collect()
}

fn subfolders(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut folders: Vec<PathBuf> =
        entries.map(|entry| entry.expect("readable").path()).filter(|p| p.is_dir()).collect();
    folders.sort();
    folders
}

fn compare_all(folders: &[PathBuf]) {
    let apart: Vec<&PathBuf> = folders.iter().filter(|folder| !compare(folder)).collect();
    assert!(apart.is_empty(), "further apart than the tolerance: {apart:?}");
}

/// Prints how far apart the two are; true if within the tolerance.
fn compare(folder: &Path) -> bool {
    let run: Value =
        serde_json::from_str(&std::fs::read_to_string(folder.join("run.json")).expect("run.json")).expect("json");
    let options = &run["options"];
    let mut trainer = trainer(folder, options);
    let reference = Arc::new(Reference::open(folder, options));
    load_weights(&mut trainer, &reference.weights);
    let worst = Arc::new(Mutex::new(Worst::default()));
    let (hook_reference, hook_worst) = (reference.clone(), worst.clone());
    trainer.hooks.on_batch(Box::new(move |batch| {
        if batch.plan.batch < hook_reference.batches() {
            hook_reference.check_batch(batch, &mut hook_worst.lock().expect("unpoisoned"));
        }
    }));
    trainer.train_epoch().expect("trains");
    let mut worst = worst.lock().expect("unpoisoned");
    reference.check_state(&trainer, &mut worst);
    eprintln!(
        "{:24} {} batches: loss {:.1e}, logits {:.1e}, rows {:.1e}, gradients {:.1e} ({}), state {:.1e}",
        folder.file_name().expect("a name").to_string_lossy(),
        worst.batches,
        worst.loss,
        worst.logits,
        worst.rows,
        worst.gradients,
        worst.gradient_name,
        worst.state
    );
    let limit = &reference.tolerance;
    assert!(worst.batches == reference.batches() && worst.logits > 0.0, "nothing was compared");
    worst.loss.max(worst.logits) <= limit.scores
        && worst.rows.max(worst.state) <= limit.state
        && worst.gradients <= limit.gradients
}

/// A trainer as the reference was configured, over the same stream, features and negatives.
fn trainer(folder: &Path, options: &Value) -> Trainer {
    let int = |name: &str| options[name].as_i64().unwrap_or_else(|| panic!("{name}"));
    let mut config = Config::default();
    config.data.path = csv(folder, options["csv"].as_str().expect("csv"));
    config.data.time_origin = if options["time_origin"] == "first" { TimeOrigin::First } else { TimeOrigin::Zero };
    let model = &mut config.model.tgn;
    (model.memory_dim, model.time_dim, model.embedding_dim) = (int("memory_dim"), int("time_dim"), int("embed_dim"));
    (model.heads, model.dropout) = (int("heads"), 0.0);
    model.dtype = if options["dtype"] == "f64" { Dtype::F64 } else { Dtype::F32 };
    model.time_encoder =
        if options["fixed_time_encoder"] == true { TimeEncoding::Fixed } else { TimeEncoding::Learned };
    model.message_time = if options["message_time"] == "stored" { MessageTime::Stored } else { MessageTime::Applied };
    config.sampler.neighbors = vec![int("neighbors") as usize];
    config.sampler.same_batch = SameBatch::Visible;
    (config.train.batch_size, config.train.lr) = (int("batch_size") as usize, options["lr"].as_f64().expect("lr"));
    config.train.max_batches = int("batches") as usize;
    let stream = tidemill_data::load(&config.data, &mut |_| {}).expect("the reference's csv");
    let inputs = Npz::open(&folder.join("inputs.npz"));
    let stream = match inputs.get("edge_features") {
        Some(features) => {
            let width = features.shape[1];
            let mut rows: Vec<f32> = features.values.iter().map(|&x| x as f32).collect();
            rows.resize(stream.len() * width, 0.0); // later events are not read
            stream.with_features(rows, width).expect("as many rows as events")
        }
        None => stream,
    };
    let stream = match inputs.get("node_features") {
        Some(features) => {
            let rows = features.values.iter().map(|&x| x as f32).collect();
            stream.with_node_features(rows, features.shape[1]).expect("as many rows as nodes")
        }
        None => stream,
    };
    let negatives: Vec<NodeId> = inputs.need("neg").integers().iter().map(|&n| NodeId(n as u32)).collect();
    let mut trainer = Trainer::over(config, stream).expect("a valid configuration");
    trainer.passes.train.negatives = Negatives::Given(negatives.into());
    trainer
}

pub(super) fn csv(folder: &Path, name: &str) -> PathBuf {
    let data = std::env::var_os("TIDEMILL_DATA").map(PathBuf::from);
    let here = folder.ancestors().take(3).map(Path::to_path_buf);
    here.chain(data)
        .map(|folder| folder.join(name))
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("{name} is nowhere"))
}

/// Writes the reference's weights, cut into our column blocks, over the drawn ones.
fn load_weights(trainer: &mut Trainer, weights: &Npz) {
    let flat = flat_of(trainer.model.parameters(), weights, "");
    trainer.model.parameters_mut().set_values(&flat).expect("as many parameters");
}

/// The reference's arrays, in the layout of our flat buffer; a name that the reference has not is zero.
fn flat_of(parameters: &Parameters, arrays: &Npz, prefix: &str) -> Tensor {
    let pieces: Vec<Tensor> = parameters.iter().map(|(name, value)| piece(arrays, prefix, name, value)).collect();
    Tensor::cat(&pieces, 0)
}

/// The columns of the reference's matrix that are our parameter `name`, flattened.
fn piece(arrays: &Npz, prefix: &str, name: &str, value: &Tensor) -> Tensor {
    let (theirs, ours) =
        NAMES.iter().find(|(_, ours)| ours.contains(&name)).unwrap_or_else(|| panic!("unmapped {name}"));
    let whole = arrays.need(&format!("{prefix}{theirs}")).tensor();
    if ours.len() == 1 {
        return whole.reshape([-1]);
    }
    let width = value.size()[1];
    let at = ours.iter().position(|our| *our == name).expect("found above");
    let total = whole.size()[1];
    // equal parts but for edge features: leading blocks are counted from the left, the last from the right
    let start = match (name.rsplit('.').next(), at) {
        (Some("time"), _) => total - width,
        (Some("edge"), _) if name.starts_with("gru") => 2 * memory_width(arrays),
        (Some("edge"), _) => memory_width(arrays),
        (Some("memory"), 1) => total - width,
        _ => at as i64 * width,
    };
    whole.narrow(1, start, width).reshape([-1])
}

fn memory_width(arrays: &Npz) -> i64 {
    let hidden = arrays.names().find(|name| name.ends_with("gru.w_hh")).expect("gru.w_hh").to_owned();
    arrays.need(&hidden).shape[1] as i64
}

#[derive(Default)]
struct Worst {
    batches: usize,
    loss: f64,
    logits: f64,
    rows: f64,
    gradients: f64,
    gradient_name: String,
    state: f64,
}

struct Reference {
    weights: Npz,
    batches: Npz,
    trace: Npz,
    state: Npz,
    offset: Vec<i64>,
    tolerance: Tolerance,
    ticks_origin: f64,
}

impl Reference {
    fn open(folder: &Path, options: &Value) -> Reference {
        let open = |name: &str| Npz::open(&folder.join(name));
        let offset = open("inputs.npz").need("offset").integers();
        let ticks_origin = if options["time_origin"] == "first" { f64::NAN } else { 0.0 };
        Reference {
            weights: open("weights.npz"),
            batches: open("batches.npz"),
            trace: open("trace.npz"),
            state: open("state.npz"),
            offset,
            tolerance: Tolerance::of(options),
            ticks_origin,
        }
    }

    fn batches(&self) -> usize {
        (self.offset.len() - 1).min(self.tolerance.batches)
    }

    fn check_batch(&self, batch: &TrainedBatch<'_>, worst: &mut Worst) {
        let k = batch.plan.batch;
        self.check_samples(batch.plan);
        let loss = self.batches.need("loss").values[k];
        worst.loss = worst.loss.max(((batch.scored.loss - loss) / loss).abs());
        for (name, ours) in [("pos_logit", &batch.scored.positive), ("neg_logit", &batch.scored.negative)] {
            let theirs = self.batches.need(name).slice(self.span(k));
            worst.logits = worst.logits.max(distance(&values(ours), &theirs));
        }
        if k < 3 {
            self.check_rows(batch, worst);
            self.check_gradients(batch, worst);
        }
        if std::env::var_os("TIDEMILL_ORACLE_TRACE").is_some() {
            eprintln!(
                "batch {k}: loss {:.1e}, logits {:.1e}, rows {:.1e}, gradients {:.1e} {}",
                worst.loss, worst.logits, worst.rows, worst.gradients, worst.gradient_name
            );
        }
        worst.batches += 1;
    }

    fn span(&self, k: usize) -> std::ops::Range<usize> {
        self.offset[k] as usize..self.offset[k + 1] as usize
    }

    /// Sampled neighbors and edges are identical, oldest first.
    fn check_samples(&self, plan: &BatchPlan) {
        let (b, hop) = (plan.events.len(), &plan.sample.hops[0]);
        let width = hop.fanout;
        for (r, role) in ["src", "dst", "neg"].iter().enumerate() {
            let want_node = self.batches.need(&format!("{role}_nbr_node")).rows(self.span(plan.batch));
            let want_event = self.batches.need(&format!("{role}_nbr_event")).rows(self.span(plan.batch));
            for i in 0..b {
                let root = plan.sample.root_of[r * b + i] as usize;
                for slot in 0..width {
                    let there = slot < usize::from(hop.count[root]);
                    let got = if there { i64::from(hop.neighbor[root * width + slot].0) } else { -1 };
                    let event = if there { i64::from(hop.event[root * width + slot].0) } else { -1 };
                    let want = (want_node[i * width + slot] as i64, want_event[i * width + slot] as i64);
                    assert_eq!((got, event), want, "batch {}, {role} {i}, slot {slot}", plan.batch);
                }
            }
        }
    }

    /// The temporary rows of all nodes read, in order of the nodes.
    fn check_rows(&self, batch: &TrainedBatch<'_>, worst: &mut Worst) {
        let k = batch.plan.batch;
        let nodes = &batch.plan.sample.rows;
        let mut order: Vec<usize> = (0..nodes.len()).collect();
        order.sort_by_key(|&i| nodes[i]);
        let ids: Vec<i64> = order.iter().map(|&i| i64::from(nodes[i].0)).collect();
        assert_eq!(ids, self.trace.need(&format!("b{k}/read_id")).integers(), "nodes read by batch {k}");
        let order: Vec<i64> = order.iter().map(|&i| i as i64).collect();
        let rows = batch.rows.index_select(0, &Tensor::from_slice(&order));
        worst.rows = worst.rows.max(distance(&values(&rows), &self.trace.need(&format!("b{k}/read_row")).values));
    }

    fn check_gradients(&self, batch: &TrainedBatch<'_>, worst: &mut Worst) {
        let k = batch.plan.batch;
        for (name, value) in batch.parameters.iter() {
            let theirs = values(&piece(&self.trace, &format!("b{k}/grad/"), name, value));
            let far = distance(&values(batch.parameters.grad(name).expect("every parameter has a gradient")), &theirs);
            if far > worst.gradients {
                (worst.gradients, worst.gradient_name) = (far, format!("{name} in batch {k}"));
            }
        }
    }

    /// Memory, last update and pending mail of every node after the last batch.
    fn check_state(&self, trainer: &Trainer, worst: &mut Worst) {
        if self.batches() + 1 < self.offset.len() {
            return; // the run went further than two implementations can stay together
        }
        let stream = &trainer.stream;
        let origin = if self.ticks_origin.is_nan() { stream.time(tidemill_data::id::EventId(0)).0 } else { 0 };
        let seconds = |ticks: i64| stream.tick().seconds(ticks);
        let state = trainer.pipeline.memory().read_all();
        worst.state = distance(&values(&state.rows), &self.state.need("memory").values);
        let last: Vec<f64> = state.last_update.iter().map(|t| seconds(t.0 - origin)).collect();
        assert_eq!(last, self.state.need("last_update").values, "times of last update");
        let payload = values(&state.payload);
        let width = state.payload.size()[1] as usize;
        let (peer, event) = (self.state.need("mail_peer").integers(), self.state.need("mail_event").integers());
        let (time, dt) = (&self.state.need("mail_time").values, &self.state.need("mail_dt").values);
        let memory = &self.state.need("mail_peer_memory").values;
        let mut at = 0;
        for (node, &count) in state.counts.iter().enumerate() {
            assert_eq!(count > 0, event[node] >= 0, "pending mail of node {node}");
            if count == 0 {
                continue;
            }
            let mail = state.mails[at];
            let got =
                (i64::from(mail.peer.0), i64::from(mail.event.0), seconds(mail.time.0 - origin), seconds(mail.elapsed));
            assert_eq!(got, (peer[node], event[node], time[node], dt[node]), "mail of node {node}");
            let (ours, theirs) = (&payload[at * width..(at + 1) * width], &memory[node * width..(node + 1) * width]);
            worst.state = worst.state.max(distance(ours, theirs));
            at += 1;
        }
    }
}

/// Largest difference over the reference's largest value; a reference of zeros must be met exactly to 1e-300.
pub(super) fn distance(ours: &[f64], theirs: &[f64]) -> f64 {
    assert_eq!(ours.len(), theirs.len(), "lengths");
    let largest = theirs.iter().fold(1e-300f64, |most, x| most.max(x.abs()));
    ours.iter()
        .zip(theirs)
        .map(|(a, b)| if (a - b).is_nan() { f64::INFINITY } else { (a - b).abs() / largest })
        .fold(0.0, f64::max)
}

pub(super) fn values(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.detach().to_kind(tch::Kind::Double).contiguous().view([-1])).expect("a flat f64 tensor")
}
