//! Stage 2, state: reads what a batch needs and turns its integers into tensors on the device.
//!
//! The only place where integers become tensors. Reading has two parts: what does not depend on the state (features, indices,
//! times, masks) is prepared at once, the rows and their mail are read when the commit before has happened. The only writer
//! of the node memory is the state commit, [`StateWriter::commit`], called after a batch's forward pass. On one of several
//! ranks the rows that others own come here first ([`Peers::bring_rows`]).

use super::event::BatchPlan;
use super::exchange::{self, Peers};
use super::features::Features;
use super::lock;
use crate::error::Result;
use crate::memory::{NodeMemory, StateCommit, StateShape};
use crate::partition::{Partition, Rank};
use crate::sampler::Hop;
use std::sync::{Arc, Mutex};
use tch::{Kind, Tensor};
use tidemill_data::id::{EventId, NodeId};
use tidemill_data::stream::EventStream;
use tidemill_models::input::{Embedded, LayerInput, LossReduction, MailInput, ModelInput, PairInput};
use tidemill_models::model::{Model, Payload};

/// A batch whose state was read: all that the gradient stage needs.
pub struct ReadyBatch {
    /// The batch in integers.
    pub plan: BatchPlan,
    /// The model's input.
    pub input: ModelInput,
    /// Which embeddings are scored against which.
    pub pairs: PairInput,
}

/// A batch as far as it can be made without a look at the state.
pub struct PreparedBatch {
    plan: BatchPlan,
    /// All but what depends on times of last update.
    layers: Vec<LayerInput>,
    pairs: PairInput,
}

/// Reads the state for batches.
pub struct StateReader {
    stream: EventStream,
    shape: StateShape,
    root_time: bool,
    loss: LossReduction,
    node_features: Option<Tensor>,
    features: Features,
    among: Option<(Peers, Rank, Arc<Partition>)>,
    most_copied: u64,
}

impl StateReader {
    /// A reader of states of this shape, for `model`.
    pub fn new(stream: EventStream, shape: StateShape, model: &dyn Model, loss: LossReduction) -> StateReader {
        let node_features = node_feature_table(&stream, shape);
        let (root_time, features) = (model.spec().root_time, Features::new(stream.clone()));
        StateReader { stream, shape, root_time, loss, node_features, features, among: None, most_copied: 0 }
    }

    /// Makes ready for a pass on one of several ranks; no copies are left from an earlier one.
    pub fn begin(&mut self, peers: Peers, me: Rank, partition: Arc<Partition>, memory: &Mutex<NodeMemory>) {
        self.features.clear();
        lock(memory).dismiss_copies();
        self.among = Some((peers, me, partition));
    }

    /// Everything of a batch that does not depend on the state.
    ///
    /// # Errors
    /// A lost peer.
    pub fn prepare(&mut self, plan: BatchPlan) -> Result<PreparedBatch> {
        if let Some((peers, me, partition)) = &self.among {
            if let Some(window) = plan.exchange.opens_window {
                self.features.restrict(*me, partition.table(window).clone());
            }
            peers.bring_features(&plan, &mut self.features)?;
        }
        let hops = plan.sample.hops.iter().zip(&plan.keep).rev();
        let layers = hops.map(|(hop, keep)| self.layer(hop, keep.as_deref())).collect();
        let pairs = self.pairs(&plan);
        Ok(PreparedBatch { plan, layers, pairs })
    }

    /// Reads a prepared batch's rows and mail, once those of other ranks are here.
    ///
    /// # Errors
    /// A lost peer.
    pub fn read(&mut self, prepared: PreparedBatch, memory: &Mutex<NodeMemory>) -> Result<ReadyBatch> {
        self.bring_rows(&prepared.plan, memory)?;
        let ready = self.read_rows(prepared, &lock(memory));
        if let Some((peers, ..)) = &self.among {
            self.most_copied = self.most_copied.max(exchange::copied_bytes(&lock(memory), &self.features, self.shape));
            peers.drop_rows(&ready.plan, memory, &mut self.features);
        }
        Ok(ready)
    }

    /// Most bytes of other ranks' rows and features that were here at once.
    pub fn most_copied_bytes(&self) -> u64 {
        self.most_copied
    }

    fn bring_rows(&mut self, plan: &BatchPlan, memory: &Mutex<NodeMemory>) -> Result<()> {
        let Some((peers, me, partition)) = &self.among else { return Ok(()) };
        let own = plan.exchange.opens_window.map(|window| partition.table(window).nodes_of(*me));
        peers.bring_rows(plan, own, memory, &mut self.features)
    }

    fn read_rows(&self, prepared: PreparedBatch, memory: &NodeMemory) -> ReadyBatch {
        let PreparedBatch { plan, mut layers, pairs } = prepared;
        for (layer, hop) in layers.iter_mut().rev().zip(&plan.sample.hops) {
            self.date(layer, hop, memory);
        }
        let features = |table: &Tensor| table.index_select(0, &self.index(plan.rows.iter().map(|n| i64::from(n.0))));
        let input = ModelInput {
            memory: memory.rows(&plan.rows),
            node_features: self.node_features.as_ref().map(features),
            mail: self.mail(&plan.rows, memory),
            layers,
        };
        ReadyBatch { plan, input, pairs }
    }

    /// Pending mail of the rows read.
    fn mail(&self, rows: &[NodeId], memory: &NodeMemory) -> MailInput {
        let mailbox = memory.mailbox();
        let (mut row, mut segment, mut pool, mut elapsed) = (vec![], vec![], vec![], vec![]);
        let mut features = Vec::new();
        for (at, &node) in rows.iter().enumerate() {
            let mails = memory.pending(node);
            if mails.is_empty() {
                continue;
            }
            let events = mails.iter().map(|&mail| mailbox.mail(mail).event);
            self.features.of_mails(node, events, &mut features);
            for &mail in mails {
                segment.push(row.len() as i64);
                pool.push(i64::from(mail));
                elapsed.push(self.stream.meta().tick.seconds(mailbox.mail(mail).elapsed));
            }
            row.push(at as i64);
        }
        let single = row.len() == pool.len();
        let pool = self.index(pool.into_iter());
        MailInput {
            payload: mailbox.payload(&pool),
            edge_features: (self.features.dim() > 0).then(|| self.feature_rows(&features)),
            dt: self.floats(elapsed.into_iter()),
            code: mailbox.code(&pool),
            row: self.index(row.into_iter()),
            segment: (!single).then(|| self.index(segment.into_iter())),
        }
    }

    /// One hop's block as a layer's input, its times counted from the roots' own.
    fn layer(&self, hop: &Hop, keep: Option<&[bool]>) -> LayerInput {
        let (r, k) = (hop.roots.len() as i64, hop.fanout as i64);
        let mut valid = vec![false; hop.neighbor.len()];
        (0..hop.roots.len()).flat_map(|i| hop.slots(i)).for_each(|slot| valid[slot] = true);
        let heads = keep.map_or(0, |keep| keep.len() as i64 / (r * k).max(1));
        LayerInput {
            root: self.index(hop.below_root.iter().map(|&i| i64::from(i))),
            neighbor: self.index(hop.below_neighbor.iter().map(|&i| i64::from(i))).view([r, k]),
            valid: Tensor::from_slice(&valid).view([r, k]).to_device(self.shape.device),
            dt: self.elapsed(hop, |root, _| hop.roots[root].time.0),
            root_dt: Tensor::zeros([r], (self.shape.kind, self.shape.device)),
            edge_features: self.edge_features(&hop.event, &valid, &[r, k]),
            keep: keep.map(|keep| self.floats(keep.iter().map(|&kept| f64::from(u8::from(kept)))).view([r, heads, k])),
        }
    }

    /// Times that depend on when nodes were last updated.
    fn date(&self, layer: &mut LayerInput, hop: &Hop, memory: &NodeMemory) {
        let tick = self.stream.meta().tick;
        let since = hop.roots.iter().map(|root| tick.seconds(root.time.0 - memory.next_update(root.node).0));
        layer.root_dt = self.floats(since);
        if !self.root_time {
            layer.dt = self.elapsed(hop, |_, slot| memory.next_update(hop.neighbor[slot]).0);
        }
    }

    /// `[R, K]` seconds from each sampled edge to the ticks that `until` gives for (root, slot); 0 where absent.
    fn elapsed(&self, hop: &Hop, until: impl Fn(usize, usize) -> i64) -> Tensor {
        let mut dt = vec![0.0; hop.neighbor.len()];
        for root in 0..hop.roots.len() {
            for slot in hop.slots(root) {
                dt[slot] = self.stream.meta().tick.seconds(until(root, slot) - hop.time[slot].0);
            }
        }
        self.floats(dt.into_iter()).view([hop.roots.len() as i64, hop.fanout as i64])
    }

    /// Embeddings are laid out as sources, destinations, negatives.
    fn pairs(&self, plan: &BatchPlan) -> PairInput {
        let b = plan.events.len();
        let of = |range: std::ops::Range<usize>| self.index(plan.embeddings[range].iter().map(|&i| i64::from(i)));
        PairInput {
            source: of(0..b),
            destination: of(b..2 * b),
            negative: of(2 * b..plan.embeddings.len()),
            events: plan.global_events as f64,
            loss: self.loss,
        }
    }

    /// Features of events, gathered straight into the tensor's memory; `shape` is followed by D_e.
    fn edge_features(&self, events: &[EventId], valid: &[bool], shape: &[i64]) -> Option<Tensor> {
        let dim = self.features.dim();
        if dim == 0 {
            return None;
        }
        let mut shape = shape.to_vec();
        shape.push(dim as i64);
        let host = Tensor::empty(&shape, (Kind::Float, tch::Device::Cpu));
        // SAFETY: the tensor is contiguous, f32, on the CPU, freshly made and of exactly this many elements.
        let out = unsafe { std::slice::from_raw_parts_mut(host.data_ptr().cast::<f32>(), events.len() * dim) };
        self.features.gather(events, |slot| valid[slot], out);
        Some(host.to_device(self.shape.device).to_kind(self.shape.kind))
    }

    /// `[Q, D_e]` of rows at hand.
    fn feature_rows(&self, rows: &[f32]) -> Tensor {
        let dim = self.features.dim();
        let host = Tensor::from_slice(rows).view([(rows.len() / dim) as i64, dim as i64]);
        host.to_device(self.shape.device).to_kind(self.shape.kind)
    }

    fn index(&self, ids: impl Iterator<Item = i64>) -> Tensor {
        Tensor::from_slice(&ids.collect::<Vec<_>>()).to_device(self.shape.device)
    }

    fn floats(&self, values: impl Iterator<Item = f64>) -> Tensor {
        floats(values, self.shape.kind).to_device(self.shape.device)
    }
}

/// Writes batches' new rows and mails.
pub struct StateWriter {
    stream: EventStream,
    payload: Payload,
}

impl StateWriter {
    /// A writer for `model`.
    pub fn new(stream: EventStream, model: &dyn Model) -> StateWriter {
        StateWriter { stream, payload: model.spec().payload }
    }

    /// The state commit of a batch: steps 3 and 4 of a TGN step. An owner alone writes its nodes; of other ranks' it needs no
    /// more than the memory that mails carry.
    ///
    /// # Errors
    /// A lost peer.
    pub fn commit(
        &self,
        memory: &Mutex<NodeMemory>,
        plan: &BatchPlan,
        embedded: &Embedded,
        model: &dyn Model,
        peers: Option<&Peers>,
    ) -> Result<()> {
        let shape = lock(memory).shape();
        let index = |rows: &[u32]| {
            let rows: Vec<i64> = rows.iter().map(|&row| i64::from(row)).collect();
            Tensor::from_slice(&rows).to_device(shape.device)
        };
        let rows = embedded.rows.detach();
        let committed = rows.index_select(0, &index(&plan.commit.rows));
        let sent = match peers {
            Some(peers) => peers.exchange_memory(plan, &rows)?,
            None => rows,
        };
        let payload = match self.payload {
            Payload::MemoryRow => sent.index_select(0, &index(&plan.commit.payload_rows)),
            Payload::Embedding => unreachable!("a model whose mails carry embeddings is refused at start"),
        };
        let encode = |elapsed: &[i64]| {
            shape.code_dim?;
            let seconds = elapsed.iter().map(|&ticks| self.stream.meta().tick.seconds(ticks));
            Some(model.encode_mail_time(&floats(seconds, shape.kind).to_device(shape.device)))
        };
        let (nodes, mails) = (&plan.commit.nodes, &plan.commit.mails);
        lock(memory).commit(&StateCommit { nodes, rows: &committed, mails, payload: &payload }, encode);
        Ok(())
    }
}

/// f64 values rounded once to `kind`.
fn floats(values: impl Iterator<Item = f64>, kind: Kind) -> Tensor {
    match kind {
        Kind::Double => Tensor::from_slice(&values.collect::<Vec<f64>>()),
        _ => Tensor::from_slice(&values.map(|x| x as f32).collect::<Vec<f32>>()).to_kind(kind),
    }
}

/// All nodes' features, `[N, D_v]`, if the stream has any.
fn node_feature_table(stream: &EventStream, shape: StateShape) -> Option<Tensor> {
    let dim = stream.node_feature_dim() as i64;
    (dim > 0).then(|| {
        let rows: Vec<f32> =
            (0..stream.nodes()).flat_map(|n| stream.node_features(NodeId(n)).iter().copied()).collect();
        Tensor::from_slice(&rows).view([i64::from(stream.nodes()), dim]).to_device(shape.device).to_kind(shape.kind)
    })
}
