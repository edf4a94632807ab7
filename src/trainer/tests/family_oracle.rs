//! The family against independent references in PyTorch, batch by batch: JODIE, DyRep and APAN through the whole trainer; TGAT
//! from the reference's uniform samples, and through the whole trainer where it samples the most recent.
//!
//! Folders as for TGN's test beside this one: small committed ones in `tests/golden/family/`, whole streams' where
//! `TIDEMILL_ORACLE` says.

use super::npz::Npz;
use super::oracle::{Kind, Tolerance, csv, distance, folders_of, values};
use crate::config::{Config, ModelName, Preset};
use crate::memory::NodeMemory;
use crate::pipeline::event::{BatchPlan, EventStage, Negatives};
use crate::pipeline::gather::Gather;
use crate::pipeline::state::StateReader;
use crate::sampler::{Hop, HopTime, Latest, Root, SameBatch, Sample, Strategy};
use crate::trainer::{TrainedBatch, Trainer};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tch::Tensor;
use tidemill_data::dataset::TimeOrigin;
use tidemill_data::id::{EventId, NodeId};
use tidemill_models::model::{MailKeeping, MailOrder, Mode};
use tidemill_models::parameters::Parameters;
use tidemill_models::{Aggregator, Dtype, LossReduction, MessageTime, Optimizer, OptimizerConfig, TimeEncoding};

#[test]
fn committed_references() {
    let folders = folders_of(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/family"), Kind::Family);
    assert!(folders.len() >= 4, "tests/golden/family holds {folders:?}");
    compare_all(&folders);
}

#[test]
fn references_of_whole_streams() {
    match std::env::var_os("TIDEMILL_ORACLE") {
        Some(folder) => compare_all(&folders_of(Path::new(&folder), Kind::Family)),
        None => eprintln!("skipped: TIDEMILL_ORACLE names no folder of references"),
    }
}

fn compare_all(folders: &[PathBuf]) {
    let apart: Vec<&PathBuf> = folders.iter().filter(|folder| !compare(folder)).collect();
    assert!(apart.is_empty(), "further apart than the tolerance: {apart:?}");
}

/// Largest distances, over the reference's largest value.
#[derive(Default)]
struct Worst {
    batches: usize,
    scores: f64,
    embeddings: f64,
    rows: f64,
    gradients: f64,
    gradient_name: String,
    state: f64,
}

/// Prints how far apart the two are; true if within the tolerance.
fn compare(folder: &Path) -> bool {
    let reference = Arc::new(Reference::open(folder));
    let mut trainer = trainer(&reference);
    let flat = reference.flat(trainer.model.parameters(), &reference.weights, "");
    trainer.model.parameters_mut().set_values(&flat).expect("as many parameters");
    let mut worst = if reference.option("sampling") == "uniform" {
        from_given_samples(&mut trainer, &reference)
    } else {
        through_the_trainer(&mut trainer, &reference)
    };
    if reference.batches() + 1 == reference.offset.len() {
        reference.check_state(&trainer, &mut worst);
    }
    let name = folder.file_name().expect("a name").to_string_lossy();
    eprintln!(
        "{name:28} {} batches: loss and logits {:.1e}, z {:.1e}, rows {:.1e}, gradients {:.1e} ({}), state {:.1e}",
        worst.batches, worst.scores, worst.embeddings, worst.rows, worst.gradients, worst.gradient_name, worst.state
    );
    assert!(worst.batches == reference.batches() && worst.scores > 0.0, "nothing was compared");
    let limit = &reference.tolerance;
    worst.scores.max(worst.embeddings) <= limit.scores
        && worst.rows.max(worst.state) <= limit.state
        && worst.gradients <= limit.gradients
}

fn through_the_trainer(trainer: &mut Trainer, reference: &Arc<Reference>) -> Worst {
    let worst = Arc::new(Mutex::new(Worst::default()));
    let (hook_reference, hook_worst) = (reference.clone(), worst.clone());
    let slots = trainer.model.spec().mail_keeping;
    trainer.hooks.on_batch(Box::new(move |batch| {
        let k = batch.plan.batch;
        if k < hook_reference.batches() {
            let mut worst = hook_worst.lock().expect("unpoisoned");
            hook_reference.check_samples(batch.plan);
            hook_reference.check_scores(k, batch.scored, &mut worst);
            if k < 3 {
                hook_reference.check_rows(batch, &mut worst);
                hook_reference.check_commit(batch, slots, &mut worst);
                hook_reference.check_gradients(k, batch.parameters, &mut worst);
            }
            worst.batches += 1;
        }
    }));
    trainer.train_epoch().expect("trains");
    std::mem::take(&mut *worst.lock().expect("unpoisoned"))
}

/// Steps of a model without state, its samples given.
fn from_given_samples(trainer: &mut Trainer, reference: &Reference) -> Worst {
    let mut worst = Worst::default();
    let (pass, mut memory) =
        (trainer.passes.train(1), NodeMemory::new(trainer.pipeline.memory().shape(), trainer.origin()));
    let mut events = EventStage::new(trainer.stream.clone(), None);
    let gather = Gather { stream: trainer.stream.clone(), shape: memory.shape() };
    let mut reader = StateReader::new(gather, &*trainer.model, trainer.config.train.loss);
    let mut optimizer = Optimizer::new(OptimizerConfig::default(), trainer.model.parameters());
    for k in 0..reference.batches() {
        let mut plan = events.plan(&pass, k);
        plan.sample = reference.sample(trainer, k);
        (plan.rows, plan.embeddings) = (plan.sample.rows.clone(), plan.sample.root_of.clone());
        let prepared = reader.prepare(plan).expect("alone");
        let batch = reader.read(prepared, &mut memory);
        let embedded = trainer.model.embed(&batch.input, Mode::Train);
        let z = values(&embedded.z);
        let width = embedded.z.size()[1] as usize;
        for (role, z) in ["src", "dst", "neg"].iter().zip(z.chunks_exact(z.len() / 3)) {
            let theirs = reference.batches.need(&format!("{role}_z")).rows(reference.span(k));
            assert_eq!(theirs.len() % width, 0);
            worst.embeddings = worst.embeddings.max(distance(z, theirs));
        }
        let scored = trainer.model.score(&embedded.z, &batch.pairs);
        trainer.model.backward(embedded, &scored.grad_z);
        reference.check_scores(k, &scored, &mut worst);
        if k < 3 {
            reference.check_gradients(k, trainer.model.parameters(), &mut worst);
        }
        optimizer.step(trainer.model.parameters_mut(), trainer.config.train.lr);
        trainer.model.parameters_mut().zero_grads();
        worst.batches += 1;
    }
    worst
}

impl Trainer {
    fn origin(&self) -> tidemill_data::id::Timestamp {
        self.config.data.time_origin.of(&self.stream)
    }
}

struct Reference {
    folder: PathBuf,
    options: Value,
    weights: Npz,
    inputs: Npz,
    batches: Npz,
    trace: Npz,
    state: Option<Npz>,
    offset: Vec<i64>,
    tolerance: Tolerance,
}

/// A word of ours from a word of the reference's.
fn word<T: DeserializeOwned>(theirs: &str) -> T {
    serde_json::from_value(Value::String(theirs.replace('-', "_"))).unwrap_or_else(|error| panic!("{theirs}: {error}"))
}

/// A trainer as the reference was configured, over the same stream, features and negatives.
fn trainer(reference: &Reference) -> Trainer {
    let o = reference;
    let name: ModelName = if o.options["model"].is_string() { word(o.option("model")) } else { ModelName::Tgat };
    let mut config = Preset::Tidemill.config_for(name);
    config.data.path = csv(&o.folder, o.option("csv"));
    config.data.time_origin = if o.option("time_origin") == "first" { TimeOrigin::First } else { TimeOrigin::Zero };
    let tgn = &mut config.model.tgn;
    tgn.dtype = if o.option("dtype") == "f64" { Dtype::F64 } else { Dtype::F32 };
    tgn.time_encoder = if o.is("fixed_time_encoder") { TimeEncoding::Fixed } else { TimeEncoding::Learned };
    (tgn.time_dim, tgn.heads, tgn.dropout) = (o.int("time_dim"), o.int("heads"), 0.0);
    config.sampler.same_batch = word(o.option("same_batch"));
    match name {
        ModelName::Tgat => configure_tgat(o, &mut config),
        _ => configure_memory(o, &mut config),
    }
    let train = &mut config.train;
    (train.batch_size, train.max_batches) = (o.int("batch_size") as usize, o.int("batches") as usize);
    train.lr = o.options["lr"].as_f64().expect("lr");
    let stream = tidemill_data::load(&config.data, &mut |_| {}).expect("the reference's csv");
    let floats = |name: &str| {
        let array = o.inputs.get(name)?;
        Some((array.values.iter().map(|&x| x as f32).collect::<Vec<f32>>(), array.shape[1]))
    };
    let stream = match floats("edge_features") {
        Some((mut rows, width)) => {
            rows.resize(stream.len() * width, 0.0); // later events are not read
            stream.with_features(rows, width).expect("as many rows as events")
        }
        None => stream,
    };
    let stream = match floats("node_features") {
        Some((rows, width)) => stream.with_node_features(rows, width).expect("as many rows as nodes"),
        None => stream,
    };
    let negatives: Vec<NodeId> = o.inputs.need("neg").integers().iter().map(|&n| NodeId(n as u32)).collect();
    let mut trainer = Trainer::over(config, stream).expect("a valid configuration");
    trainer.passes.train.negatives = Negatives::Given(negatives.into());
    trainer
}

fn configure_tgat(o: &Reference, config: &mut Config) {
    let (tgn, tgat, sampler) = (&mut config.model.tgn, &mut config.model.tgat, &mut config.sampler);
    (tgn.embedding_dim, tgn.layers) = (o.int("embed_dim"), o.int("layers") as usize);
    if let Some(width) = o.option("node_features").strip_prefix("zeros:") {
        tgn.memory_dim = width.parse().expect("a width");
    }
    tgat.no_neighbors = word(o.option("empty"));
    (tgat.query, tgat.merge) = (word(o.option("query")), word(o.option("merge")));
    (tgat.layer_norm, tgat.projection_bias) = (o.option("norm") == "on", o.is("projection_bias"));
    sampler.neighbors = vec![o.int("neighbors") as usize; tgn.layers];
    sampler.strategy = word::<Strategy>(o.option("sampling"));
    sampler.latest = word::<Latest>(o.option("latest"));
    sampler.hop_time = word::<HopTime>(o.option("hop_time"));
    config.train.loss = word::<LossReduction>(o.option("loss"));
}

fn configure_memory(o: &Reference, config: &mut Config) {
    let model = &mut config.model;
    (model.tgn.memory_dim, model.tgn.embedding_dim) = (o.int("memory_dim"), o.int("memory_dim"));
    config.sampler.neighbors = vec![o.int("neighbors") as usize];
    model.tgn.mail_order = word::<MailOrder>(o.option("last_mail"));
    if model.name == ModelName::Apan {
        let apan = &mut model.apan;
        model.tgn.aggregator = word::<Aggregator>(o.option("mail_combine"));
        (apan.mail, apan.mail_slots) = (word(o.option("mail")), o.int("slots") as usize);
        (apan.deliver, apan.empty_slots) = (word(o.option("deliver")), word(o.option("empty_slots")));
        (apan.slot_attention, apan.position) = (word(o.option("attention")), o.is("position"));
        return;
    }
    model.tgn.message_time = word::<MessageTime>(o.option("message_time"));
    model.tgn.updater = word(o.option("updater"));
    (model.recurrent.message, model.recurrent.no_mail) = (word(o.option("message")), word(o.option("no_mail")));
    if model.name == ModelName::Jodie {
        let gap = if o.option("gap") == "all" { "stream" } else { o.option("gap") };
        (model.jodie.gap, model.jodie.row_norm) = (word(gap), word(o.option("row_norm")));
    } else {
        model.dyrep.score = word(o.option("score"));
    }
}

/// Blocks that wide matrices of ours are cut into.
const BLOCKS: [&str; 10] = ["own", "peer", "memory", "mail", "edge", "time", "attn", "row", "source", "destination"];

impl Reference {
    fn open(folder: &Path) -> Reference {
        let run: Value =
            serde_json::from_str(&std::fs::read_to_string(folder.join("run.json")).expect("run.json")).expect("json");
        let open = |name: &str| Npz::open(&folder.join(name));
        let state = folder.join("state.npz").exists().then(|| open("state.npz"));
        let inputs = open("inputs.npz");
        Reference {
            folder: folder.to_owned(),
            weights: open("weights.npz"),
            batches: open("batches.npz"),
            trace: open("trace.npz"),
            state,
            offset: inputs.need("offset").integers(),
            inputs,
            tolerance: Tolerance::of(&run["options"]),
            options: run["options"].clone(),
        }
    }

    fn option(&self, name: &str) -> &str {
        self.options[name].as_str().unwrap_or("")
    }

    fn int(&self, name: &str) -> i64 {
        self.options[name].as_i64().unwrap_or_else(|| panic!("{name}"))
    }

    fn is(&self, name: &str) -> bool {
        self.options[name] == true
    }

    fn batches(&self) -> usize {
        (self.offset.len() - 1).min(self.tolerance.batches)
    }

    fn span(&self, k: usize) -> Range<usize> {
        self.offset[k] as usize..self.offset[k + 1] as usize
    }

    /// The reference's name of a matrix of ours, without its block.
    fn their_name(&self, stem: &str) -> String {
        let Some(rest) = stem.strip_prefix("layer") else { return stem.to_owned() };
        let (layer, rest) = rest.split_once('.').expect("a layer's parameter");
        match self.option("model") {
            "" => {
                let (part, rest) = rest.split_once('.').expect("a part of a layer");
                format!("{part}{}.{rest}", layer.parse::<usize>().expect("a number") + 1)
            }
            _ => rest.to_owned(),
        }
    }

    /// The reference's arrays in the layout of our flat buffer.
    fn flat(&self, parameters: &Parameters, arrays: &Npz, prefix: &str) -> Tensor {
        let all: Vec<(&str, &Tensor)> = parameters.iter().collect();
        let pieces: Vec<Tensor> =
            all.iter().map(|(name, value)| self.piece(&all, arrays, prefix, name, value)).collect();
        Tensor::cat(&pieces, 0)
    }

    /// The columns of the reference's matrix that are our parameter `name`, flattened: blocks stand in our order, but for time
    /// codes, which come last.
    fn piece(&self, all: &[(&str, &Tensor)], arrays: &Npz, prefix: &str, name: &str, value: &Tensor) -> Tensor {
        let (stem, block) = match name.rsplit_once('.') {
            Some((stem, block)) if BLOCKS.contains(&block) => (stem, block),
            _ => (name, ""),
        };
        let whole = arrays.need(&format!("{prefix}{}", self.their_name(stem))).tensor();
        if block.is_empty() {
            return whole.reshape([-1]);
        }
        let (width, total) = (value.size()[1], whole.size()[1]);
        let same = |other: &str| other.rsplit_once('.').is_some_and(|(s, b)| s == stem && BLOCKS.contains(&b));
        let before = all.iter().take_while(|(other, _)| *other != name).filter(|(other, _)| same(other));
        let start = if block == "time" { total - width } else { before.map(|(_, x)| x.size()[1]).sum() };
        whole.narrow(1, start, width).reshape([-1])
    }

    fn check_scores(&self, k: usize, scored: &tidemill_models::Scored, worst: &mut Worst) {
        let loss = self.batches.need("loss").values[k];
        worst.scores = worst.scores.max(((scored.loss - loss) / loss).abs());
        for (name, ours) in [("pos_logit", &scored.positive), ("neg_logit", &scored.negative)] {
            let theirs = self.batches.need(name).slice(self.span(k));
            worst.scores = worst.scores.max(distance(&values(ours), &theirs));
        }
        if std::env::var_os("TIDEMILL_ORACLE_TRACE").is_some() {
            eprintln!("batch {k}: scores {:.1e}, gradients {:.1e}", worst.scores, worst.gradients);
        }
    }

    /// In f64 each array by itself. In f32 the whole vector by its norm: in an array where true and negative pairs cancel, such as
    /// `dec.b1`, the reference's own f32 is 1.1e-5 of the largest away from its f64.
    fn check_gradients(&self, k: usize, parameters: &Parameters, worst: &mut Worst) {
        if parameters.grads().kind() == tch::Kind::Float {
            let (ours, theirs) =
                (values(parameters.grads()), self.flat(parameters, &self.trace, &format!("b{k}/grad/")));
            let theirs = values(&theirs);
            let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
            let apart = norm(&mut ours.iter().zip(&theirs).map(|(a, b)| a - b)) / norm(&mut theirs.iter().copied());
            if apart.is_nan() || apart > worst.gradients {
                (worst.gradients, worst.gradient_name) = (apart, format!("all in batch {k}"));
            }
            return;
        }
        let all: Vec<(&str, &Tensor)> = parameters.iter().collect();
        let whole = largest(&values(&self.flat(parameters, &self.trace, &format!("b{k}/grad/"))));
        for (name, value) in parameters.iter() {
            let theirs = values(&self.piece(&all, &self.trace, &format!("b{k}/grad/"), name, value));
            let ours = values(parameters.grad(name).expect("every parameter has a gradient"));
            // where the exact gradient is zero both hold rounding: against each other it would say nothing
            let far = if largest(&theirs) > 1e-13 * whole { distance(&ours, &theirs) } else { largest(&ours) / whole };
            if far > worst.gradients {
                (worst.gradients, worst.gradient_name) = (far, format!("{name} in batch {k}"));
            }
        }
    }

    /// Sampled neighbors and edges of the roles that the reference samples for are identical, oldest first.
    fn check_samples(&self, plan: &BatchPlan) {
        let (b, hop) = (plan.events.len(), &plan.sample.hops[0]);
        for (r, role) in ["src", "dst", "neg"].iter().enumerate() {
            let Some(nodes) = self.batches.get(&format!("{role}_nbr_node")) else { continue };
            let events = self.batches.need(&format!("{role}_nbr_event")).rows(self.span(plan.batch));
            for (slot, (&node, &event)) in nodes.rows(self.span(plan.batch)).iter().zip(events).enumerate() {
                let (i, slot) = (slot / hop.fanout, slot % hop.fanout);
                let slots = hop.slots(plan.sample.root_of[r * b + i] as usize);
                let at = (slot < slots.len()).then(|| slots.start + slot);
                let got = at.map_or((-1, -1), |at| (i64::from(hop.neighbor[at].0), i64::from(hop.event[at].0)));
                assert_eq!(got, (node as i64, event as i64), "batch {}, {role} {i}, slot {slot}", plan.batch);
            }
        }
    }

    /// The temporary rows of the nodes that the reference reads; ours may be more.
    fn check_rows(&self, batch: &TrainedBatch<'_>, worst: &mut Worst) {
        let Some(ids) = self.trace.get(&format!("b{}/read_id", batch.plan.batch)) else { return };
        let at: HashMap<i64, i64> = batch.plan.sample.rows.iter().map(|node| i64::from(node.0)).zip(0..).collect();
        let at: Vec<i64> = ids.integers().iter().map(|node| at[node]).collect();
        let rows = batch.rows.index_select(0, &Tensor::from_slice(&at));
        let theirs = &self.trace.need(&format!("b{}/read_row", batch.plan.batch)).values;
        worst.rows = worst.rows.max(distance(&values(&rows), theirs));
    }

    /// What the batch wrote: rows and times of its endpoints, and, where mails are kept in slots, who got which mail.
    fn check_commit(&self, batch: &TrainedBatch<'_>, keeping: MailKeeping, worst: &mut Worst) {
        let k = batch.plan.batch;
        let Some(ids) = self.trace.get(&format!("b{k}/commit_id")) else { return };
        let ends: Vec<NodeId> = ids.integers().iter().map(|&node| NodeId(node as u32)).collect();
        let mut written = batch.plan.commit.nodes.clone();
        written.sort_unstable();
        assert_eq!(written, ends, "endpoints of batch {k}");
        let state = batch.memory.read(&ends);
        let theirs = &self.trace.need(&format!("b{k}/commit_memory")).values;
        worst.state = worst.state.max(distance(&values(&state.rows), theirs));
        if let MailKeeping::Latest(_) = keeping {
            self.check_mails(batch, worst);
        }
    }

    fn check_mails(&self, batch: &TrainedBatch<'_>, worst: &mut Worst) {
        let k = batch.plan.batch;
        let theirs = |name: &str| self.trace.need(&format!("b{k}/mail_{name}"));
        let receivers: Vec<NodeId> = theirs("id").integers().iter().map(|&node| NodeId(node as u32)).collect();
        let mut got: Vec<NodeId> = batch.plan.commit.mails.iter().map(|(node, _)| *node).collect();
        got.sort_unstable();
        assert_eq!(got, receivers, "receivers of batch {k}");
        let mailbox = batch.memory.mailbox();
        let newest: Vec<u32> =
            receivers.iter().map(|&node| *batch.memory.pending(node).last().expect("mail")).collect();
        let index: Vec<i64> = newest.iter().map(|&row| i64::from(row)).collect();
        let payload = mailbox.payload(&Tensor::from_slice(&index));
        worst.state = worst.state.max(distance(&values(&payload), &theirs("row").values));
        let origin = batch.memory.origin();
        let times: Vec<f64> = newest.iter().map(|&row| -mailbox.mail(row).ticks_until(origin)).collect();
        worst.state = worst.state.max(distance(&times, &theirs("time").values));
    }

    /// Memory, last update and mail of every node after the last batch.
    fn check_state(&self, trainer: &Trainer, worst: &mut Worst) {
        let Some(theirs) = &self.state else { return };
        let memory = trainer.pipeline.memory();
        let (origin, stream) = (trainer.origin(), &trainer.stream);
        let seconds = |ticks: i64| stream.tick().seconds(ticks);
        let state = memory.read_all();
        worst.state = worst.state.max(distance(&values(&state.rows), &theirs.need("memory").values));
        let last: Vec<f64> = state.last_update.iter().map(|t| seconds(t.0 - origin.0)).collect();
        assert_eq!(last, theirs.need("last_update").values, "times of last update");
        let payload = values(&state.payload);
        let width = state.payload.size()[1] as usize;
        if theirs.get("slot_next").is_some() {
            let (node, next) = (theirs.need("slot_node").integers(), theirs.need("slot_next").integers());
            let (index, s) = (theirs.need("slot_index").integers(), self.int("slots"));
            // theirs by age, oldest first, as ours are
            let mut order: Vec<usize> = (0..node.len()).collect();
            order.sort_by_key(|&i| (node[i], (index[i] - next[node[i] as usize]).rem_euclid(s)));
            let counts: Vec<u32> = (0..state.counts.len() as i64)
                .map(|v| node.partition_point(|&n| n <= v) as u32 - node.partition_point(|&n| n < v) as u32)
                .collect();
            assert_eq!(state.counts, counts, "filled slots");
            let mails: Vec<f64> =
                order.iter().flat_map(|&i| theirs.need("slot_mail").rows(i..i + 1).to_vec()).collect();
            let times: Vec<f64> = order.iter().map(|&i| theirs.need("slot_time").values[i]).collect();
            let ours: Vec<f64> = state.mails.iter().map(|mail| -mail.ticks_until(origin) * seconds(1)).collect();
            worst.state = worst.state.max(distance(&payload, &mails)).max(distance(&ours, &times));
            return;
        }
        let (peer, event) = (theirs.need("mail_peer").integers(), theirs.need("mail_event").integers());
        let (time, dt) = (&theirs.need("mail_time").values, &theirs.need("mail_dt").values);
        let (mut at, mut carried) = (0, Vec::new());
        for (node, &count) in state.counts.iter().enumerate() {
            assert_eq!(count > 0, event[node] >= 0, "pending mail of node {node}");
            if count > 0 {
                let mail = state.mails[at];
                let times = (seconds(mail.time.0 - origin.0), seconds(mail.elapsed));
                let got = (i64::from(mail.peer.0), i64::from(mail.event.0), times.0, times.1);
                assert_eq!(got, (peer[node], event[node], time[node], dt[node]), "mail of node {node}");
                carried.extend_from_slice(theirs.need("mail_peer_memory").rows(node..node + 1));
                at += 1;
            }
        }
        assert_eq!(payload.len(), at * width);
        worst.state = worst.state.max(distance(&payload, &carried));
    }

    /// The samples of batch `k` as the reference drew them; nothing is merged, since each position has draws of its own.
    fn sample(&self, trainer: &Trainer, k: usize) -> Sample {
        let stream = &trainer.stream;
        let span = self.span(k);
        let rows = |name: &str| {
            let of = |role: &&str| {
                let array = self.batches.need(&format!("{role}_{name}"));
                let width = array.values.len() / array.shape[0];
                array.values[span.start * width..span.end * width].iter().map(|&x| x as i64).collect::<Vec<i64>>()
            };
            ["src", "dst", "neg"].iter().flat_map(of).collect::<Vec<i64>>()
        };
        let table =
            |prefix: &str| rows(&format!("{prefix}_node")).into_iter().zip(rows(&format!("{prefix}_event"))).collect();
        let fanout = self.int("neighbors") as usize;
        let src_dst: Vec<EventId> = trainer.passes.train.events[span.clone()].to_vec();
        let negatives = self.inputs.need("neg").integers();
        let root = |node: NodeId, event: EventId| Root { node, time: stream.time(event), before: None };
        let mut roots: Vec<Root> = src_dst.iter().map(|&e| root(stream.source(e), e)).collect();
        roots.extend(src_dst.iter().map(|&e| root(stream.destination(e), e)));
        roots.extend(src_dst.iter().zip(span.clone()).map(|(&e, i)| root(NodeId(negatives[i] as u32), e)));
        let mut hops = vec![hop(stream, roots.clone(), fanout, table("nbr"))];
        if self.int("layers") == 2 {
            let (mut below, own): (Vec<Root>, Vec<(i64, i64)>) = (roots, table("own"));
            let at_edge = self.option("hop_time") == "edge";
            let (top, deeper): (&mut Hop, Vec<(i64, i64)>) = (&mut hops[0], table("nbr2"));
            let mut drawn = own;
            for r in 0..top.roots.len() {
                top.below_root[r] = r as u32;
                for at in top.slots(r) {
                    top.below_neighbor[at] = below.len() as u32;
                    let time = if at_edge { top.time[at] } else { top.roots[r].time };
                    below.push(Root { node: top.neighbor[at], time, before: None });
                    drawn.extend_from_slice(&deeper[at * fanout..(at + 1) * fanout]);
                }
            }
            hops.push(hop(stream, below, fanout, drawn));
        }
        let mut nodes = Vec::new();
        let mut number = HashMap::new();
        let mut row = |node: NodeId| {
            *number.entry(node).or_insert_with(|| {
                nodes.push(node);
                nodes.len() as u32 - 1
            })
        };
        let deepest = hops.last_mut().expect("a hop");
        for r in 0..deepest.roots.len() {
            deepest.below_root[r] = row(deepest.roots[r].node);
        }
        for at in (0..deepest.roots.len()).flat_map(|r| deepest.slots(r)).collect::<Vec<_>>() {
            deepest.below_neighbor[at] = row(deepest.neighbor[at]);
        }
        Sample { root_of: (0..hops[0].roots.len() as u32).collect(), hops, rows: nodes }
    }
}

/// A hop of these roots with `fanout` (node, event) each, absent ones -1 and last; not yet linked downwards.
fn hop(stream: &tidemill_data::stream::EventStream, roots: Vec<Root>, fanout: usize, drawn: Vec<(i64, i64)>) -> Hop {
    assert_eq!(drawn.len(), roots.len() * fanout);
    let there = |slot: &&(i64, i64)| slot.0 >= 0;
    let event = |&(node, event): &(i64, i64)| EventId(if node < 0 { 0 } else { event as u32 });
    Hop {
        fanout,
        count: drawn.chunks_exact(fanout).map(|slots| slots.iter().filter(there).count() as u16).collect(),
        neighbor: drawn.iter().map(|&(node, _)| NodeId(node.max(0) as u32)).collect(),
        event: drawn.iter().map(event).collect(),
        time: drawn.iter().map(|slot| stream.time(event(slot))).collect(),
        below_root: vec![0; roots.len()],
        below_neighbor: vec![0; drawn.len()],
        roots,
    }
}

fn largest(x: &[f64]) -> f64 {
    x.iter().fold(0.0, |most, x| most.max(x.abs()))
}

/// The committed stream's words for what it was made with stay ours.
#[test]
fn words_of_the_references_are_ours() {
    assert_eq!(word::<SameBatch>("visible"), SameBatch::Visible);
    assert_eq!(word::<tidemill_models::tgat::Query>("edge-slot"), tidemill_models::tgat::Query::EdgeSlot);
}
