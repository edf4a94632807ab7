//! Stage 2, state: reads what a batch needs and turns its integers into tensors on the device.
//!
//! Together with [`Gather`], the only place where integers become tensors. Reading has two parts: what does not depend on the
//! state (features, indices, times, masks) is prepared at once, the rows and their mail are read when the commits that the
//! batch must see have happened. The only writer of the node memory is the state commit, [`StateWriter::commit`], called after
//! a batch's forward pass. On one of several ranks the rows that others own are brought before they are read ([`Peers`]).

use super::commit::CommitPlan;
use super::event::BatchPlan;
use super::exchange::{self, Peers};
use super::features::Features;
use super::gather::Gather;
use super::replay::Replayer;
use super::{lock, slots};
use crate::device::stream::Event;
use crate::error::Result;
use crate::memory::{Mail, NodeMemory, StateCommit};
use crate::partition::{Partition, Rank};
use crate::sampler::{Hop, SampleHash};
use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use tch::Tensor;
use tidemill_data::id::NodeId;
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
    /// Fingerprint of the sampled neighbors, as they were turned into the input; evaluation has none.
    pub hash: SampleHash,
    /// `[Q, D_e]`: features of the events whose mails go to replicas.
    pub replayed: Vec<f32>,
    /// Behind the read, in the stream that it was given to; absent where stages run inline.
    pub arrived: Option<Arc<Event>>,
}

/// A batch as far as it can be made without a look at the state.
pub struct PreparedBatch {
    plan: BatchPlan,
    /// All but what depends on times of last update.
    layers: Vec<LayerInput>,
    pairs: PairInput,
    hash: SampleHash,
    replayed: Vec<f32>,
}

/// Reads the state for batches.
pub struct StateReader {
    gather: Gather,
    root_time: bool,
    absolute_time: bool,
    keeping: MailKeeping,
    loss: LossReduction,
    node_features: Option<Tensor>,
    features: Features,
    among: Option<Among>,
    most_copied: u64,
}

/// A reader's place among several ranks in a pass.
struct Among {
    peers: Peers,
    me: Rank,
    partition: Arc<Partition>,
}

impl StateReader {
    /// A reader for `model`.
    pub fn new(gather: Gather, model: &dyn Model, loss: LossReduction) -> StateReader {
        let (node_features, features) = (gather.node_features(), Features::new(gather.stream.clone()));
        let StateSpec { root_time, absolute_time, mail_keeping: keeping, .. } = model.spec();
        let (among, most_copied) = (None, 0);
        StateReader { gather, root_time, absolute_time, keeping, loss, node_features, features, among, most_copied }
    }

    /// Makes ready for a pass on one of several ranks; no copies are left from an earlier one.
    pub fn begin(&mut self, peers: Peers, me: Rank, partition: Arc<Partition>, memory: &Mutex<NodeMemory>) {
        self.features.clear();
        lock(memory).dismiss_copies();
        self.among = Some(Among { peers, me, partition });
    }

    /// Everything of a batch that does not depend on the state.
    ///
    /// # Errors
    /// A lost peer.
    pub fn prepare(&mut self, plan: BatchPlan) -> Result<PreparedBatch> {
        if let Some(among) = &self.among {
            if let Some(window) = plan.exchange.opens_window {
                self.features.restrict(among.me, among.partition.table(window).clone());
            }
            among.peers.bring_features(&plan, &mut self.features)?;
        }
        let hops = plan.sample.hops.iter().zip(&plan.keep).rev();
        let layers = hops.map(|(hop, keep)| self.layer(hop, keep.as_deref())).collect();
        let (pairs, hash) = (self.pairs(&plan), plan.sample_hash());
        let replayed = match self.features.dim() {
            0 => Vec::new(),
            _ => self.features.of_events(plan.commit.replayed_mails().map(|(_, mail)| mail.event)),
        };
        Ok(PreparedBatch { plan, layers, pairs, hash, replayed })
    }

    /// Brings the rows of a prepared batch that other ranks own.
    ///
    /// # Errors
    /// A lost peer.
    pub fn bring(&mut self, prepared: &mut PreparedBatch, memory: &Mutex<NodeMemory>) -> Result<()> {
        let Some(among) = &self.among else { return Ok(()) };
        if let Some(window) = prepared.plan.exchange.correct {
            let owners = among.partition.table(window);
            among.peers.correct_replicas(&prepared.plan, |node| owners.owner(node), memory, &self.features)?;
        }
        let own = prepared.plan.exchange.opens_window.map(|window| among.partition.table(window).nodes_of(among.me));
        let refreshed = among.peers.bring_rows(&prepared.plan, own, memory, &self.features)? as u64;
        prepared.plan.counts.hits -= refreshed;
        prepared.plan.counts.fetched += refreshed;
        let copied = exchange::copied_bytes(&lock(memory), &self.features, self.gather.shape);
        self.most_copied = self.most_copied.max(copied);
        Ok(())
    }

    /// Reads a prepared batch's rows and mail.
    pub fn read(&mut self, prepared: PreparedBatch, memory: &mut NodeMemory) -> ReadyBatch {
        let PreparedBatch { plan, mut layers, pairs, hash, replayed } = prepared;
        for (layer, hop) in layers.iter_mut().rev().zip(&plan.sample.hops) {
            self.date(layer, hop, memory);
        }
        let (mail, slots) = match self.keeping {
            MailKeeping::UntilApplied => (self.gather.mail(&plan.rows, memory, &self.features), None),
            MailKeeping::Latest(slots) => {
                let tick = self.gather.stream.meta().tick;
                (slots::no_mail(memory), Some(slots::read(&plan.sample.hops[0], memory, tick, slots)))
            }
        };
        let features = |table: &Tensor| table.index_select(0, &self.gather.nodes(&plan.rows));
        let input = ModelInput {
            memory: memory.rows(&plan.rows),
            node_features: self.node_features.as_ref().map(features),
            mail,
            slots,
            layers,
        };
        if self.among.is_some() {
            exchange::drop_copies(&plan, memory, &mut self.features);
        }
        ReadyBatch { plan, input, pairs, hash, replayed, arrived: None }
    }

    /// What is kept of features.
    pub fn features(&self) -> &Features {
        &self.features
    }

    /// Most bytes of other ranks' rows and features that were here at once.
    pub fn most_copied_bytes(&self) -> u64 {
        self.most_copied
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
            valid: self.gather.send(Tensor::from_slice(&valid).view([r, k])),
            dt: self.elapsed(hop, |root, _| hop.roots[root].time.0),
            root_dt: Tensor::zeros([r], (shape.kind, shape.device)),
            since_origin: None,
            edge_features: self.gather.edge_features(&self.features, &hop.event, &valid, &[r, k]),
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

    /// Embeddings are laid out as sources, destinations, negatives.
    fn pairs(&self, plan: &BatchPlan) -> PairInput {
        let b = plan.events.len();
        let of = |range: std::ops::Range<usize>| self.gather.rows(&plan.embeddings[range]);
        PairInput {
            source: of(0..b),
            destination: of(b..2 * b),
            negative: of(2 * b..2 * b + plan.negatives.len()),
            events: plan.all.len() as f64,
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
    features: Features,
    payload: Payload,
    keeping: MailKeeping,
    replayer: Replayer,
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
    /// A writer for `model`, whose reader keeps features of copies and replicas.
    pub fn new(gather: Gather, model: &dyn Model, reader: &StateReader, replayer: Replayer) -> StateWriter {
        let StateSpec { payload, mail_keeping: keeping, .. } = model.spec();
        StateWriter { features: Features::beside(&reader.features), gather, payload, keeping, replayer }
    }

    /// What brings replicas forward.
    pub fn replayer(&self) -> &Replayer {
        &self.replayer
    }

    /// The same, for a test to change it.
    #[cfg(test)]
    pub(crate) fn replayer_mut(&mut self) -> &mut Replayer {
        &mut self.replayer
    }

    /// The state commit of a batch: steps 3 and 4 of a TGN step. An owner alone writes its nodes; of other ranks' it needs no
    /// more than what mails carry. Replicas of other ranks' nodes are brought forward along with it.
    ///
    /// # Errors
    /// A lost peer.
    pub fn commit(
        &mut self,
        memory: &Mutex<NodeMemory>,
        batch: &ReadyBatch,
        embedded: &Embedded,
        model: &dyn Model,
        (rows, peers): (CommitRows, Option<&Peers>),
    ) -> Result<()> {
        let plan = &batch.plan.commit;
        let gather = self.gather.clone();
        let of = |from: &Tensor, at: &[u32]| from.index_select(0, &gather.rows(at));
        if let MailKeeping::Latest(slots) = self.keeping {
            let z = embedded.z.detach(); // neither rows nor mails depend on what is in memory now
            let (rows, payload) = (of(&z, &plan.rows), self.pairs(batch, &z));
            let commit = StateCommit { nodes: &plan.nodes, rows: &rows, mails: &plan.mails, payload: &payload };
            lock(memory).commit_slots(&commit, &plan.times, slots);
            return Ok(());
        }
        let committed = match rows {
            CommitRows::AsRead => of(&embedded.rows.detach(), &plan.rows),
            CommitRows::ReadAgain => self.read_again(&lock(memory), &batch.plan, model),
        };
        let (at_hand, kept) = self.with_replicas(committed, memory, batch, model);
        let carried = match self.payload {
            Payload::MemoryRow => at_hand.shallow_clone(),
            _ => embedded.carried.as_ref().unwrap_or(&embedded.z).detach(),
        };
        let payload = match peers {
            Some(peers) => of(&peers.exchange_payload(&batch.plan, &carried)?, &plan.payload_rows),
            None => of(&carried, &plan.payload_rows),
        };
        let encode = |elapsed: &[i64]| {
            gather.shape.code_dim?;
            Some(model.encode_mail_time(&gather.seconds(elapsed.iter().copied())))
        };
        let mut memory = lock(memory);
        if let (Some(peers), false) = (peers, plan.replays.is_empty()) {
            let features = (&self.features, &*batch.replayed);
            self.replayer.note_mails(plan, &kept, features, (peers.boundary(), batch.plan.batch));
        }
        let written = Written::of(plan, &kept);
        let (nodes, mails) = (&*written.nodes, &*written.mails);
        let narrowed = |from: &Tensor, at: &Option<Vec<u32>>| match at {
            Some(at) => of(from, at),
            None => from.shallow_clone(),
        };
        let (rows, payload) = (narrowed(&at_hand, &written.rows), narrowed(&payload, &written.payload));
        memory.commit(&StateCommit { nodes, rows: &rows, mails, payload: &payload }, encode);
        Ok(())
    }

    /// `[C + L, D_m]`: the committed rows, and behind them those of replicas; and which replicas were brought forward.
    fn with_replicas(
        &mut self,
        committed: Tensor,
        memory: &Mutex<NodeMemory>,
        batch: &ReadyBatch,
        model: &dyn Model,
    ) -> (Tensor, Vec<bool>) {
        let plan = &batch.plan.commit;
        if plan.replays.is_empty() {
            return (committed, Vec::new());
        }
        let at = (&self.gather, &self.features);
        let replayed = self.replayer.replay(plan, at, &lock(memory), model, batch.plan.training);
        (Tensor::cat(&[committed, replayed.rows], 0), replayed.kept)
    }

    /// What the mails of a batch carry of its events' two embeddings.
    fn pairs(&self, batch: &ReadyBatch, z: &Tensor) -> Tensor {
        let events = &batch.plan.events;
        let valid = vec![true; events.len()];
        let features = self.gather.edge_features(&self.features, events, &valid, &[events.len() as i64]);
        let ends = (&batch.pairs.source, &batch.pairs.destination);
        slots::payload(self.payload, &batch.plan.commit, z, ends, features.as_ref())
    }

    /// `[C, D_m]`: the endpoints' rows from the state as it is.
    fn read_again(&self, memory: &NodeMemory, plan: &BatchPlan, model: &dyn Model) -> Tensor {
        let nodes = &plan.commit.nodes;
        model.apply_mail(&memory.rows(nodes), &self.gather.mail(nodes, memory, &self.features)).detach()
    }
}

/// What a commit writes once replay is pruned.
struct Written<'a> {
    nodes: Cow<'a, [NodeId]>,
    /// Which of the rows at hand; `None`: all.
    rows: Option<Vec<u32>>,
    mails: Cow<'a, [(NodeId, Mail)]>,
    /// Which of the payloads; `None`: all.
    payload: Option<Vec<u32>>,
}

impl<'a> Written<'a> {
    fn of(plan: &'a CommitPlan, kept: &[bool]) -> Written<'a> {
        if plan.replays.is_empty() {
            let (nodes, mails) = (Cow::Borrowed(&*plan.nodes), Cow::Borrowed(&*plan.mails));
            return Written { nodes, rows: None, mails, payload: None };
        }
        let kept = |i: usize| i.checked_sub(plan.nodes.len()).is_none_or(|replica| kept[replica]);
        let all: Vec<NodeId> = plan.nodes.iter().chain(&plan.replays).copied().collect();
        let rows: Vec<u32> = (0..all.len()).filter(|&i| kept(i)).map(|i| i as u32).collect();
        let nodes: Vec<NodeId> = rows.iter().map(|&i| all[i as usize]).collect();
        if nodes.len() == all.len() {
            return Written { nodes: Cow::Owned(nodes), rows: None, mails: Cow::Borrowed(&plan.mails), payload: None };
        }
        let written: HashSet<NodeId> = nodes.iter().copied().collect();
        let payload: Vec<u32> =
            (0..plan.mails.len() as u32).filter(|&q| written.contains(&plan.mails[q as usize].0)).collect();
        let mails = payload.iter().map(|&q| plan.mails[q as usize]).collect();
        Written { nodes: Cow::Owned(nodes), rows: Some(rows), mails: Cow::Owned(mails), payload: Some(payload) }
    }
}
