//! Stage 2, state: reads what a batch needs and turns its integers into tensors on the device.
//!
//! The only place where integers become tensors, and the only writer of the node memory: the state commit of a batch, called
//! after its forward pass, and whatever undoes it.

use super::event::BatchPlan;
use crate::memory::{NodeMemory, StateCommit};
use crate::sampler::Hop;
use rayon::prelude::*;
use tch::{Kind, Tensor};
use tidemill_data::id::{EventId, NodeId};
use tidemill_data::stream::EventStream;
use tidemill_models::input::Embedded;
use tidemill_models::input::{LayerInput, LossReduction, MailInput, ModelInput, PairInput};
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

/// Reads and writes the node memory for batches in order.
pub struct StateStage {
    stream: EventStream,
    memory: NodeMemory,
    root_time: bool,
    payload: Payload,
    loss: LossReduction,
    node_features: Option<Tensor>,
}

impl StateStage {
    /// A stage over a stream and its memory, reading what `model` wants.
    pub fn new(stream: EventStream, memory: NodeMemory, model: &dyn Model, loss: LossReduction) -> StateStage {
        let spec = model.spec();
        let node_features = node_feature_table(&stream, &memory);
        StateStage { stream, memory, root_time: spec.root_time, payload: spec.payload, loss, node_features }
    }

    /// The node memory.
    pub fn memory(&self) -> &NodeMemory {
        &self.memory
    }

    /// The node memory, to reset, restore, settle or roll back between batches.
    pub fn memory_mut(&mut self) -> &mut NodeMemory {
        &mut self.memory
    }

    /// Reads a planned batch's rows, mail and features.
    pub fn read(&self, plan: BatchPlan) -> ReadyBatch {
        let sample = &plan.sample;
        let nodes = self.index(sample.rows.iter().map(|n| i64::from(n.0)));
        let hops = sample.hops.iter().zip(&plan.keep).rev();
        let input = ModelInput {
            memory: self.memory.rows(&nodes),
            node_features: self.node_features.as_ref().map(|table| table.index_select(0, &nodes)),
            mail: self.mail(&sample.rows),
            layers: hops.map(|(hop, keep)| self.layer(hop, keep.as_deref())).collect(),
        };
        let pairs = self.pairs(&plan);
        ReadyBatch { plan, input, pairs }
    }

    /// The state commit of a batch: step 3 and 4 of a TGN step.
    pub fn commit(&mut self, plan: &BatchPlan, embedded: &Embedded, model: &dyn Model) {
        let commit = &plan.commit;
        let rows = embedded.rows.detach();
        let committed = rows.index_select(0, &self.index(commit.rows.iter().map(|&r| i64::from(r))));
        let payload = match self.payload {
            Payload::MemoryRow => rows.index_select(0, &self.index(commit.payload_rows.iter().map(|&r| i64::from(r)))),
            Payload::Embedding => unreachable!("a model whose mails carry embeddings is refused at start"),
        };
        let code_dim = self.memory.shape().code_dim;
        let stream = &self.stream;
        let shape = self.memory.shape();
        let encode = |elapsed: &[i64]| {
            code_dim?;
            let seconds = elapsed.iter().map(|&ticks| stream.meta().tick.seconds(ticks));
            Some(model.encode_mail_time(&floats(seconds, shape.kind).to_device(shape.device)))
        };
        let write = StateCommit { nodes: &commit.nodes, rows: &committed, mails: &commit.mails, payload: &payload };
        self.memory.commit(&write, encode);
    }

    /// Pending mail of the rows read.
    fn mail(&self, rows: &[NodeId]) -> MailInput {
        let mailbox = self.memory.mailbox();
        let (mut row, mut segment, mut pool, mut events, mut elapsed) = (vec![], vec![], vec![], vec![], vec![]);
        for (at, &node) in rows.iter().enumerate() {
            let mails = mailbox.rows_of(node);
            if mails.is_empty() {
                continue;
            }
            for &mail in mails {
                segment.push(row.len() as i64);
                pool.push(i64::from(mail));
                events.push(mailbox.mail(mail).event);
                elapsed.push(self.stream.meta().tick.seconds(mailbox.mail(mail).elapsed));
            }
            row.push(at as i64);
        }
        let single = row.len() == pool.len();
        let pool = self.index(pool.into_iter());
        MailInput {
            payload: mailbox.payload(&pool),
            edge_features: self.edge_features(&events, &[events.len() as i64]),
            dt: self.floats(elapsed.into_iter()),
            code: mailbox.code(&pool),
            row: self.index(row.into_iter()),
            segment: (!single).then(|| self.index(segment.into_iter())),
        }
    }

    /// One hop's block as a layer's input.
    fn layer(&self, hop: &Hop, keep: Option<&[bool]>) -> LayerInput {
        let (r, k) = (hop.roots.len() as i64, hop.fanout as i64);
        let tick = self.stream.meta().tick;
        let mut dt = vec![0.0; hop.neighbor.len()];
        let mut valid = vec![false; hop.neighbor.len()];
        for (i, root) in hop.roots.iter().enumerate() {
            for slot in i * hop.fanout..i * hop.fanout + usize::from(hop.count[i]) {
                let from = if self.root_time { root.time } else { self.memory.next_update(hop.neighbor[slot]) };
                dt[slot] = tick.seconds(from.0 - hop.time[slot].0);
                valid[slot] = true;
            }
        }
        let root_dt = hop.roots.iter().map(|root| tick.seconds(root.time.0 - self.memory.next_update(root.node).0));
        let heads = keep.map_or(0, |keep| keep.len() as i64 / (r * k).max(1));
        LayerInput {
            root: self.index(hop.below_root.iter().map(|&i| i64::from(i))),
            neighbor: self.index(hop.below_neighbor.iter().map(|&i| i64::from(i))).view([r, k]),
            valid: Tensor::from_slice(&valid).view([r, k]).to_device(self.memory.shape().device),
            dt: self.floats(dt.into_iter()).view([r, k]),
            root_dt: self.floats(root_dt),
            edge_features: self.edge_features(&hop.event, &[r, k]),
            keep: keep.map(|keep| self.floats(keep.iter().map(|&kept| f64::from(u8::from(kept)))).view([r, heads, k])),
        }
    }

    /// Roots are laid out as sources, destinations, negatives.
    fn pairs(&self, plan: &BatchPlan) -> PairInput {
        let b = plan.events.len();
        let of = |range: std::ops::Range<usize>| self.index(plan.sample.root_of[range].iter().map(|&i| i64::from(i)));
        PairInput {
            source: of(0..b),
            destination: of(b..2 * b),
            negative: of(2 * b..plan.sample.root_of.len()),
            events: b as f64,
            loss: self.loss,
        }
    }

    /// Features of events, gathered straight into the tensor's memory; `shape` is followed by D_e.
    fn edge_features(&self, events: &[EventId], shape: &[i64]) -> Option<Tensor> {
        let dim = self.stream.feature_dim();
        if dim == 0 {
            return None;
        }
        let mut shape = shape.to_vec();
        shape.push(dim as i64);
        let host = Tensor::empty(&shape, (Kind::Float, tch::Device::Cpu));
        // SAFETY: the tensor is contiguous, f32, on the CPU, freshly made and of exactly this many elements.
        let out = unsafe { std::slice::from_raw_parts_mut(host.data_ptr().cast::<f32>(), events.len() * dim) };
        const ROWS: usize = 256;
        let stream = &self.stream;
        out.par_chunks_mut(ROWS * dim)
            .zip(events.par_chunks(ROWS))
            .for_each(|(out, events)| stream.gather_features(events, out));
        let shape = self.memory.shape();
        Some(host.to_device(shape.device).to_kind(shape.kind))
    }

    fn index(&self, ids: impl Iterator<Item = i64>) -> Tensor {
        Tensor::from_slice(&ids.collect::<Vec<_>>()).to_device(self.memory.shape().device)
    }

    fn floats(&self, values: impl Iterator<Item = f64>) -> Tensor {
        floats(values, self.memory.shape().kind).to_device(self.memory.shape().device)
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
fn node_feature_table(stream: &EventStream, memory: &NodeMemory) -> Option<Tensor> {
    let dim = stream.node_feature_dim() as i64;
    let shape = memory.shape();
    (dim > 0).then(|| {
        let rows: Vec<f32> =
            (0..stream.nodes()).flat_map(|n| stream.node_features(NodeId(n)).iter().copied()).collect();
        Tensor::from_slice(&rows).view([i64::from(stream.nodes()), dim]).to_device(shape.device).to_kind(shape.kind)
    })
}
