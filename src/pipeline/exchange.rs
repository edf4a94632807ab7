//! What ranks send each other while a batch goes through the stages: rows, features, committed memory, embeddings.
//!
//! ```text
//!  prepare k    features of sampled edges and of replayed mails, at first need
//!  read k       corrections of replicas, at a window's border states that move, pushed rows   after commit k-1
//!  commit k     s(peer) of the mails that other ranks' nodes get                         after the forward pass
//!  score k      embeddings of delegated roots; their gradients back before the backward pass
//! ```
//!
//! Every message is one side of a [`Routes`] of the batch's plan: nothing is sent that the other side does not expect. Only a
//! correction is asked for: which of its replicas fell behind, a rank alone knows. Sends come before receives, so no two ranks wait for each other.

use super::event::BatchPlan;
use super::features::Features;
use super::wire;
use crate::boundary::Boundary;
use crate::comms::{Communicator, Purpose, Tag};
use crate::dependency::Routes;
use crate::error::Result;
use crate::memory::{NodeMemory, NodeState, StateShape, row_numbers};
use crate::partition::Rank;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use tch::{Device, Kind, Tensor};
use tidemill_data::id::NodeId;

/// How many batches old the copies of some nodes are.
type Ages = HashMap<NodeId, usize>;

/// What the gate lets through.
struct Due<'a> {
    push: Cow<'a, Routes<NodeId>>,
    /// Of the copies here that were read in an older version and are replaced.
    ages: Ages,
    /// Copies here that are replaced.
    refreshed: usize,
}

/// This rank's end of a pass's messages.
#[derive(Clone)]
pub struct Peers {
    comm: Communicator,
    pass: u32,
    boundary: Arc<Boundary>,
}

impl Peers {
    /// The end of pass `pass`, which counts all passes of the run.
    pub fn new(comm: Communicator, pass: u32, boundary: Boundary) -> Peers {
        Peers { comm, pass, boundary: Arc::new(boundary) }
    }

    /// The pass's books on versions, gate and drift.
    pub fn boundary(&self) -> &Boundary {
        &self.boundary
    }

    /// Ends the pass on this rank: who waits for a message of it is let go.
    pub fn close(&self) {
        self.boundary.close();
        self.comm.close_below(u64::from(self.pass + 1) << 32);
    }

    /// The tag of a batch's messages.
    fn tag(&self, purpose: Purpose, batch: usize) -> Tag {
        Tag { purpose, sequence: u64::from(self.pass) << 32 | batch as u64 }
    }

    /// Brings the features of a batch's sampled edges; copies without room go.
    ///
    /// # Errors
    /// A lost peer.
    pub fn bring_features(&self, plan: &BatchPlan, features: &mut Features) -> Result<()> {
        let exchange = &plan.exchange;
        features.forget(&exchange.features_before);
        let tag = self.tag(Purpose::Feature, plan.batch);
        for (peer, events) in &exchange.features.out {
            let rows = features.to_send(events);
            self.comm.send(peer.index(), tag, bytemuck::cast_slice(&rows).to_vec())?;
        }
        for (peer, events) in &exchange.features.into {
            let bytes = self.comm.receive(peer.index(), tag)?.bytes;
            let row = bytemuck::allocation::pod_collect_to_vec::<u8, f32>(&bytes);
            features.keep(events, &row);
        }
        Ok(())
    }

    /// Brings the rows that a batch reads and this rank does not own; at a window's border nodes change owners first.
    /// Returns how many copies were refreshed.
    ///
    /// # Errors
    /// A lost peer.
    pub fn bring_rows(
        &self,
        plan: &BatchPlan,
        own: Option<Vec<NodeId>>,
        memory: &Mutex<NodeMemory>,
        features: &Features,
    ) -> Result<usize> {
        let exchange = &plan.exchange;
        if let Some(own) = own {
            self.move_states(plan, own, memory, features)?;
        }
        {
            let mut memory = super::lock(memory);
            memory.dismiss(&exchange.drop_before);
            exchange.blank.iter().for_each(|&node| memory.admit(node));
        }
        features.forget_mailed(&exchange.drop_before);
        let tag = self.tag(Purpose::Fetch, plan.batch);
        let Due { push, ages, refreshed } = self.rows_due(plan);
        self.send_states(&push, tag, memory, Some(features))?;
        self.receive_states(&push, tag, memory, Some((features, &ages)))?;
        Ok(refreshed)
    }

    /// The rows that are pushed, those that the gate lets through among them.
    fn rows_due<'a>(&self, plan: &'a BatchPlan) -> Due<'a> {
        let exchange = &plan.exchange;
        if !plan.training || !self.boundary.is_gated() {
            return Due { push: Cow::Borrowed(&exchange.push), ages: Ages::new(), refreshed: 0 };
        }
        let mut refreshed = 0;
        let (mut push, versions, mut ages) = (exchange.push.clone(), &exchange.versions, Ages::new());
        let refreshes = self.boundary.refreshes(plan.batch);
        for (reading, due, versions, offered) in [
            (false, &mut push.out, &versions.out, &exchange.refresh.out),
            (true, &mut push.into, &versions.into, &exchange.refresh.into),
        ] {
            for ((peer, nodes), (_, versions)) in due.iter().zip(versions) {
                let first = nodes.iter().copied().zip(versions.iter().copied());
                self.boundary.note_versions(*peer, first, reading);
            }
            for (peer, rows) in offered {
                let outdated = self.boundary.outdated(*peer, rows, (reading, refreshes, plan.batch));
                if reading {
                    refreshed += outdated.len();
                    ages.extend(outdated.iter().filter_map(|row| Some((row.node, row.age?))));
                }
                let nodes = outdated.into_iter().map(|row| row.node);
                match due.binary_search_by_key(peer, |(rank, _)| *rank) {
                    Ok(at) => due[at].1.extend(nodes),
                    Err(at) => {
                        let nodes: Vec<NodeId> = nodes.collect();
                        if !nodes.is_empty() {
                            due.insert(at, (*peer, nodes));
                        }
                    }
                }
            }
        }
        Due { push: Cow::Owned(push), ages, refreshed }
    }

    /// Asks owners for the replicas that fell behind, and sends those that others ask for.
    ///
    /// * `owner`: of each node, before the batch.
    ///
    /// # Errors
    /// A lost peer.
    pub fn correct_replicas(
        &self,
        plan: &BatchPlan,
        owner: impl Fn(NodeId) -> Rank,
        memory: &Mutex<NodeMemory>,
        features: &Features,
    ) -> Result<()> {
        let behind = self.boundary.take_behind(plan.exchange.wanted.as_deref());
        let peers = || (0..self.comm.world() as u16).map(Rank).filter(|rank| rank.index() != self.comm.rank());
        let answer = self.tag(Purpose::Sync, plan.batch);
        let ask = Tag { sequence: answer.sequence | 1 << 31, ..answer };
        let ages: Ages = behind.iter().map(|(&node, &since)| (node, plan.batch - since as usize)).collect();
        let mut routes = Routes::default();
        for peer in peers() {
            let nodes: Vec<NodeId> = behind.keys().copied().filter(|&node| owner(node) == peer).collect();
            let ids: Vec<u32> = nodes.iter().map(|node| node.0).collect();
            self.comm.send(peer.index(), ask, bytemuck::cast_slice(&ids).to_vec())?;
            if !nodes.is_empty() {
                routes.into.push((peer, nodes));
            }
        }
        for peer in peers() {
            let bytes = self.comm.receive(peer.index(), ask)?.bytes;
            let asked: Vec<u32> = bytemuck::allocation::pod_collect_to_vec(&bytes);
            if !asked.is_empty() {
                routes.out.push((peer, asked.into_iter().map(NodeId).collect()));
            }
        }
        self.send_states(&routes, answer, memory, Some(features))?;
        self.receive_states(&routes, answer, memory, Some((features, &ages)))
    }

    /// Notes how far the copies that are replaced were from what their owners sent.
    fn measure_drift(&self, nodes: &[NodeId], sent: &NodeState, memory: &NodeMemory, ages: &Ages) {
        let known: Vec<usize> = (0..nodes.len()).filter(|&i| ages.contains_key(&nodes[i])).collect();
        if known.is_empty() {
            return;
        }
        let copied: Vec<NodeId> = known.iter().map(|&i| nodes[i]).collect();
        let here = memory.rows(&copied); // [C, D_m]
        let there = sent.rows.index_select(0, &row_numbers(known.iter().map(|&i| i as u32)).to_device(here.device()));
        let relative = relative_distances(&here, &there);
        self.boundary.note_drift(relative.into_iter().zip(copied.iter().map(|node| ages[node])));
    }

    fn move_states(
        &self,
        plan: &BatchPlan,
        own: Vec<NodeId>,
        memory: &Mutex<NodeMemory>,
        features: &Features,
    ) -> Result<()> {
        let (exchange, tag) = (&plan.exchange, self.tag(Purpose::Migration, plan.batch));
        // Without features: the new owner has them, since the nodes' events are its own now.
        self.send_states(&exchange.migrate, tag, memory, None)?;
        self.receive_states(&exchange.migrate, tag, memory, None)?;
        for (_, nodes) in &exchange.migrate.into {
            features.forget_mailed(nodes);
        }
        let mut memory = super::lock(memory);
        own.iter().for_each(|&node| memory.admit(node)); // blank ones did not travel
        memory.set_own(own);
        memory.dismiss(&exchange.leave);
        Ok(())
    }

    fn send_states(
        &self,
        routes: &Routes<NodeId>,
        tag: Tag,
        memory: &Mutex<NodeMemory>,
        features: Option<&Features>,
    ) -> Result<()> {
        for (peer, nodes) in &routes.out {
            let state = super::lock(memory).read(nodes);
            let mut rows = Vec::new();
            if let Some(features) = features {
                let mut at = 0;
                for (&node, &count) in nodes.iter().zip(&state.counts) {
                    let mails = &state.mails[at..at + count as usize];
                    features.of_mails(node, mails.iter().map(|mail| mail.event), &mut rows);
                    at += count as usize;
                }
            }
            self.comm.send(peer.index(), tag, wire::state_bytes(&state, &rows))?;
        }
        Ok(())
    }

    fn receive_states(
        &self,
        routes: &Routes<NodeId>,
        tag: Tag,
        memory: &Mutex<NodeMemory>,
        copies: Option<(&Features, &Ages)>,
    ) -> Result<()> {
        let (shape, dim) = (super::lock(memory).shape(), copies.map_or(0, |(features, _)| features.dim()));
        for (peer, nodes) in &routes.into {
            let bytes = self.comm.receive(peer.index(), tag)?.bytes;
            let (state, rows) = wire::state(&bytes, nodes.len(), shape, dim)?;
            let mut memory = super::lock(memory);
            if let Some((_, ages)) = copies {
                self.measure_drift(nodes, &state, &memory, ages);
            }
            memory.put_copies(nodes, &state);
            if let Some((features, _)) = copies.filter(|_| dim > 0) {
                features.keep_mailed(nodes, &state.counts, &rows);
            }
        }
        Ok(())
    }

    /// Exchanges what mails carry from one rank to another.
    ///
    /// * `rows`: `[C, D_p]`: the memory that this rank commits, or the embeddings that it makes. * returns `[C + received, D_p]`.
    ///
    /// # Errors
    /// A lost peer.
    pub fn exchange_payload(&self, plan: &BatchPlan, rows: &Tensor) -> Result<Tensor> {
        self.append(&plan.commit.peers, self.tag(Purpose::Commit, plan.batch), rows)
    }

    /// Exchanges the embeddings of delegated roots.
    ///
    /// * `z`: `[R, D_emb]`: those made here. * returns `[R + received, D_emb]`, a leaf.
    ///
    /// # Errors
    /// A lost peer.
    pub fn exchange_embeddings(&self, plan: &BatchPlan, z: &Tensor) -> Result<Tensor> {
        self.append(&plan.exchange.embeddings, self.tag(Purpose::Delegate, plan.batch), z)
    }

    /// Returns the gradients of received embeddings to the ranks that made them, and adds those that come back.
    ///
    /// * `grad_z`: `[R + received, D_emb]`. * returns `[R, D_emb]`.
    ///
    /// # Errors
    /// A lost peer.
    pub fn return_gradients(&self, plan: &BatchPlan, grad_z: &Tensor) -> Result<Tensor> {
        let (routes, tag) = (&plan.exchange.embeddings, self.tag(Purpose::DelegateGradient, plan.batch));
        let own = grad_z.size()[0] - routes.received() as i64;
        let mut at = own;
        for (peer, items) in &routes.into {
            let part = grad_z.narrow(0, at, items.len() as i64);
            self.comm.send(peer.index(), tag, wire::bytes_of(&part))?;
            at += items.len() as i64;
        }
        let mut grad = grad_z.narrow(0, 0, own);
        if !routes.out.is_empty() {
            grad = grad.copy();
        }
        for (peer, items) in &routes.out {
            let bytes = self.comm.receive(peer.index(), tag)?.bytes;
            let width = grad.size()[1];
            let part = wire::matrix(&bytes, items.len(), width, grad.kind(), grad.device())?;
            // One message's rows are distinct, so this is a plain sum in rank order.
            let index = row_numbers(items.iter().copied()).to_device(grad.device());
            let _ = grad.index_add_(0, &index, &part);
        }
        Ok(grad)
    }

    /// Sends rows of a matrix, and appends those that come.
    fn append(&self, routes: &Routes<u32>, tag: Tag, own: &Tensor) -> Result<Tensor> {
        if routes.is_empty() {
            return Ok(own.shallow_clone());
        }
        for (peer, items) in &routes.out {
            let part = own.index_select(0, &row_numbers(items.iter().copied()).to_device(own.device()));
            self.comm.send(peer.index(), tag, wire::bytes_of(&part))?;
        }
        let mut parts = vec![own.detach()];
        for (peer, items) in &routes.into {
            let bytes = self.comm.receive(peer.index(), tag)?.bytes;
            parts.push(wire::matrix(&bytes, items.len(), own.size()[1], own.kind(), own.device())?);
        }
        Ok(Tensor::cat(&parts, 0))
    }
}

/// `||a - b|| / ||b||` of each row of two matrices.
pub(super) fn relative_distances(a: &Tensor, b: &Tensor) -> Vec<f64> {
    let length = |rows: &Tensor| rows.to_kind(Kind::Double).norm_scalaropt_dim(2, [1i64], false);
    let relative = (length(&(a - b)) / length(b).clamp_min(1e-12)).to_device(Device::Cpu);
    Vec::<f64>::try_from(relative).expect("a vector of doubles")
}

/// Drops the copies that served a batch and do not stay.
pub fn drop_copies(plan: &BatchPlan, memory: &mut NodeMemory, features: &mut Features) {
    memory.dismiss(&plan.exchange.drop_after);
    features.forget_mailed(&plan.exchange.drop_after);
    features.forget(&plan.exchange.features_after);
}

/// Bytes of copies that a rank holds.
pub fn copied_bytes(memory: &NodeMemory, features: &Features, shape: StateShape) -> u64 {
    memory.places().copies() as u64 * wire::row_bytes(shape, 0) + features.copied_bytes() as u64
}
