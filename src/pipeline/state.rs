//! Stage 2, state: reads what a batch needs and turns its integers into tensors on the device.
//!
//! Together with [`Gather`], the only place where integers become tensors. Reading has two parts: what does not depend on the
//! state (features, indices, times, masks) is prepared at once, the rows and their mail are read when the commits that the
//! batch must see have happened. The only writer of the node memory is the state commit, [`StateWriter::commit`], called after
//! a batch's forward pass.

use super::event::BatchPlan;
use super::gather::Gather;
use super::slots;
use crate::memory::{NodeMemory, StateCommit};
use crate::sampler::Hop;
use std::collections::HashMap;
use tch::Tensor;
use tidemill_models::input::{Embedded, LayerInput, LossReduction, ModelInput, PairInput};
use tidemill_models::model::{MailKeeping, Model, Payload, StateSpec};

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
    /// `[N]` i64: the nodes read.
    nodes: Tensor,
    /// All but what depends on times of last update.
    layers: Vec<LayerInput>,
    pairs: PairInput,
}

/// Reads the state for batches.
pub struct StateReader {
    gather: Gather,
    root_time: bool,
    absolute_time: bool,
    keeping: MailKeeping,
    loss: LossReduction,
    node_features: Option<Tensor>,
}

impl StateReader {
    /// A reader for `model`.
    pub fn new(gather: Gather, model: &dyn Model, loss: LossReduction) -> StateReader {
        let node_features = gather.node_features();
        let StateSpec { root_time, absolute_time, mail_keeping: keeping, .. } = model.spec();
        StateReader { gather, root_time, absolute_time, keeping, loss, node_features }
    }

    /// Everything of a batch that does not depend on the state.
    pub fn prepare(&self, plan: BatchPlan) -> PreparedBatch {
        let nodes = self.gather.nodes(&plan.sample.rows);
        let hops = plan.sample.hops.iter().zip(&plan.keep).rev();
        let layers = hops.map(|(hop, keep)| self.layer(hop, keep.as_deref())).collect();
        let pairs = self.pairs(&plan);
        PreparedBatch { plan, nodes, layers, pairs }
    }

    /// Reads a prepared batch's rows and mail.
    pub fn read(&self, prepared: PreparedBatch, memory: &NodeMemory) -> ReadyBatch {
        let PreparedBatch { plan, nodes, mut layers, pairs } = prepared;
        for (layer, hop) in layers.iter_mut().rev().zip(&plan.sample.hops) {
            self.date(layer, hop, memory);
        }
        let (mail, slots) = match self.keeping {
            MailKeeping::UntilApplied => (self.gather.mail(&plan.sample.rows, memory), None),
            MailKeeping::Latest(slots) => {
                let tick = self.gather.stream.meta().tick;
                (slots::no_mail(memory), Some(slots::read(&plan.sample.hops[0], memory, tick, slots)))
            }
        };
        let input = ModelInput {
            memory: memory.rows(&nodes),
            node_features: self.node_features.as_ref().map(|table| table.index_select(0, &nodes)),
            mail,
            slots,
            layers,
        };
        ReadyBatch { plan, input, pairs }
    }

    /// One hop's block as a layer's input, its times counted from the roots' own.
    fn layer(&self, hop: &Hop, keep: Option<&[bool]>) -> LayerInput {
        let (r, k, shape) = (hop.roots.len() as i64, hop.fanout as i64, self.gather.shape);
        let mut valid = vec![false; hop.neighbor.len()];
        (0..hop.roots.len()).flat_map(|i| hop.slots(i)).for_each(|slot| valid[slot] = true);
        let heads = keep.map_or(0, |keep| keep.len() as i64 / (r * k).max(1));
        let kept = |keep: &[bool]| self.gather.floats(keep.iter().map(|&kept| f64::from(u8::from(kept))));
        LayerInput {
            root: self.gather.rows(&hop.below_root),
            neighbor: self.gather.rows(&hop.below_neighbor).view([r, k]),
            valid: Tensor::from_slice(&valid).view([r, k]).to_device(shape.device),
            dt: self.elapsed(hop, |root, _| hop.roots[root].time.0),
            root_dt: Tensor::zeros([r], (shape.kind, shape.device)),
            since_origin: None,
            edge_features: self.gather.edge_features(&hop.event, &[r, k]),
            keep: keep.map(|keep| kept(keep).view([r, heads, k])),
        }
    }

    /// Times that depend on when nodes were last updated.
    fn date(&self, layer: &mut LayerInput, hop: &Hop, memory: &NodeMemory) {
        let since = hop.roots.iter().map(|root| root.time.0 - memory.next_update(root.node).0);
        layer.root_dt = self.gather.seconds(since);
        let origin = memory.origin().0;
        let absolute = || self.gather.seconds(hop.roots.iter().map(|root| root.time.0 - origin));
        layer.since_origin = self.absolute_time.then(absolute);
        if !self.root_time {
            layer.dt = self.elapsed(hop, |_, slot| memory.next_update(hop.neighbor[slot]).0);
        }
    }

    /// `[R, K]` seconds from each sampled edge to the ticks that `until` gives for (root, slot); 0 where absent.
    fn elapsed(&self, hop: &Hop, until: impl Fn(usize, usize) -> i64) -> Tensor {
        let mut ticks = vec![0; hop.neighbor.len()];
        for root in 0..hop.roots.len() {
            for slot in hop.slots(root) {
                ticks[slot] = until(root, slot) - hop.time[slot].0;
            }
        }
        self.gather.seconds(ticks.into_iter()).view([hop.roots.len() as i64, hop.fanout as i64])
    }

    /// Roots are laid out as sources, destinations, negatives.
    fn pairs(&self, plan: &BatchPlan) -> PairInput {
        let b = plan.events.len();
        let of = |range: std::ops::Range<usize>| self.gather.rows(&plan.sample.root_of[range]);
        PairInput {
            source: of(0..b),
            destination: of(b..2 * b),
            negative: of(2 * b..2 * b + plan.negatives.len()),
            events: b as f64,
            loss: self.loss,
            seen: plan.seen.as_ref().map(|seen| self.answers(seen, b)),
        }
    }

    /// What is known of the pairs, `[B]` and `[B * n]`: 1 or 0.
    fn answers(&self, seen: &[bool], events: usize) -> [Tensor; 2] {
        [&seen[..events], &seen[events..]]
            .map(|seen| self.gather.floats(seen.iter().map(|&seen| f64::from(u8::from(seen)))))
    }
}

/// Writes batches' new rows and mails.
pub struct StateWriter {
    gather: Gather,
    payload: Payload,
    keeping: MailKeeping,
}

/// Which rows the state commit makes the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitRows {
    /// Those that the forward pass read and updated: exact where it saw every commit before its own.
    AsRead,
    /// The endpoints' rows and pending mail as they are at the commit, updated then: no commit in between is lost.
    ReadAgain,
}

impl StateWriter {
    /// A writer for `model`.
    pub fn new(gather: Gather, model: &dyn Model) -> StateWriter {
        let StateSpec { payload, mail_keeping: keeping, .. } = model.spec();
        StateWriter { gather, payload, keeping }
    }

    /// The state commit of a batch: steps 3 and 4 of a TGN step.
    pub fn commit(
        &self,
        memory: &mut NodeMemory,
        batch: &ReadyBatch,
        embedded: &Embedded,
        model: &dyn Model,
        rows: CommitRows,
    ) {
        let plan = &batch.plan.commit;
        let of = |from: &Tensor, at: &[u32]| from.index_select(0, &self.gather.rows(at));
        if let MailKeeping::Latest(slots) = self.keeping {
            let z = embedded.z.detach(); // neither rows nor mails depend on what is in memory now
            let (rows, payload) = (of(&z, &plan.rows), self.pairs(batch, &z));
            let commit = StateCommit { nodes: &plan.nodes, rows: &rows, mails: &plan.mails, payload: &payload };
            return memory.commit_slots(&commit, &plan.times, slots);
        }
        let (committed, own_payload) = match rows {
            CommitRows::AsRead => {
                let rows = embedded.rows.detach();
                (of(&rows, &plan.rows), (self.payload == Payload::MemoryRow).then(|| of(&rows, &plan.payload_rows)))
            }
            CommitRows::ReadAgain => self.read_again(memory, &batch.plan, model),
        };
        let carried = || of(&embedded.carried.as_ref().unwrap_or(&embedded.z).detach(), &plan.payload_rows);
        let payload = own_payload.unwrap_or_else(carried);
        let encode = |elapsed: &[i64]| {
            self.gather.shape.code_dim?;
            Some(model.encode_mail_time(&self.gather.seconds(elapsed.iter().copied())))
        };
        let (nodes, mails) = (&plan.nodes, &plan.mails);
        memory.commit(&StateCommit { nodes, rows: &committed, mails, payload: &payload }, encode);
    }

    /// What the mails of a batch carry of its events' two embeddings.
    fn pairs(&self, batch: &ReadyBatch, z: &Tensor) -> Tensor {
        let events = &batch.plan.events;
        let features = self.gather.edge_features(events, &[events.len() as i64]);
        let ends = (&batch.pairs.source, &batch.pairs.destination);
        slots::payload(self.payload, &batch.plan.commit, z, ends, features.as_ref())
    }

    /// The endpoints' rows from the state as it is, `[C, D_m]`, and what the mails carry of them, `[Q, D_m]`, if they do.
    fn read_again(&self, memory: &NodeMemory, plan: &BatchPlan, model: &dyn Model) -> (Tensor, Option<Tensor>) {
        let commit = &plan.commit;
        let rows = memory.rows(&self.gather.nodes(&commit.nodes));
        let rows = model.apply_mail(&rows, &self.gather.mail(&commit.nodes, memory)).detach();
        let payload = (self.payload == Payload::MemoryRow).then(|| {
            let slot_of: HashMap<u32, u32> = commit.rows.iter().copied().zip(0..).collect();
            let slots: Vec<u32> = commit.payload_rows.iter().map(|row| slot_of[row]).collect(); // peers are endpoints
            rows.index_select(0, &self.gather.rows(&slots))
        });
        (rows, payload)
    }
}
