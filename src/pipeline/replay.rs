//! Replay: the state updates of other ranks' nodes that this rank follows, done here instead of being sent.
//!
//! Part of the state commit: a replica's pending mail is applied with the weights of the batch at hand and without gradient, its
//! new mails are those that its owner stores, and s(peer) comes from own rows, other replicas or the peer's owner. So a replica
//! equals its owner's row bit for bit as long as both have the same weights and nothing is pruned; what falls behind is noted
//! and corrected (DepTGL, arXiv:2608.16305; algorithm page, sections 5 and 7).

use super::commit::CommitPlan;
use super::exchange::relative_distances;
use super::features::Features;
use super::gather::Gather;
use crate::boundary::Boundary;
use crate::memory::{Mail, NodeMemory};
use crate::replay::{Pruned, Pruner, ReplayConfig};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::time::Instant;
use tch::Tensor;
use tidemill_data::id::NodeId;
use tidemill_models::model::Model;

/// What replay did, in (event, node) pairs of training batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayCounts {
    /// Rows brought forward.
    pub rows: u64,
    /// Pairs dropped whose loss leaves no trace.
    pub lossless: u64,
    /// Other pairs dropped.
    pub lossy: u64,
}

/// Brings replicas forward.
pub struct Replayer {
    pruner: Pruner,
    prunes: bool,
    measures: bool,
    /// Ranks step their parameters at different times: every replica may be behind.
    weights_differ: bool,
    counts: ReplayCounts,
    latest: Option<Instant>,
    #[cfg(test)]
    pub(crate) idle: bool,
}

/// The rows of a batch's replicas.
pub(super) struct Replayed {
    /// `[L, D_m]`: after the batch; of those that were pruned, as before.
    pub(super) rows: Tensor,
    /// Which of them were brought forward.
    pub(super) kept: Vec<bool>,
}

impl Replayer {
    /// A replayer with an empty queue.
    pub fn new(config: &ReplayConfig, weights_differ: bool) -> Replayer {
        Replayer {
            pruner: Pruner::new(config),
            prunes: config.prunes(),
            measures: config.prunes() && config.lossy,
            weights_differ,
            counts: ReplayCounts::default(),
            latest: None,
            #[cfg(test)]
            idle: false,
        }
    }

    /// What it did so far.
    pub fn counts(&self) -> ReplayCounts {
        self.counts
    }

    /// Computes a batch's replicas anew.
    pub(super) fn replay(
        &mut self,
        plan: &CommitPlan,
        (gather, features): (&Gather, &Features),
        memory: &NodeMemory,
        model: &dyn Model,
        training: bool,
    ) -> Replayed {
        let (nodes, start) = (&plan.replays, Instant::now());
        let pruned = match self.prunes && training {
            true => self.pruner.prune(nodes, &plan.units),
            false => Pruned { kept: vec![true; nodes.len()], ..Pruned::default() },
        };
        let places: Vec<u32> = (0..nodes.len() as u32).filter(|&i| pruned.kept[i as usize]).collect();
        let kept: Vec<NodeId> = places.iter().map(|&i| nodes[i as usize]).collect();
        let before = memory.rows(&kept);
        let mail = gather.mail(&kept, memory, features);
        let mut after = tch::no_grad(|| model.apply_mail(&before, &mail));
        #[cfg(test)]
        if self.idle {
            after = before.shallow_clone();
        }
        if self.measures && training {
            self.note_movement(&kept, &before, &after);
        }
        if training {
            self.counts.rows += kept.len() as u64;
            self.counts.lossless += pruned.lossless;
            self.counts.lossy += pruned.lossy;
            self.clock(kept.len() as u64, start);
        }
        if kept.len() < nodes.len() {
            let rows = memory.rows(nodes);
            after = rows.index_copy(0, &gather.rows(&places), &after);
        }
        Replayed { rows: after, kept: pruned.kept }
    }

    /// Stores the features of the mails that replicas get, and notes which replicas fall behind.
    ///
    /// * `mails`: those that are stored. * `features`: `[Q, D_e]` of all mails to replicas.
    pub(super) fn note_mails(
        &self,
        plan: &CommitPlan,
        kept: &[bool],
        (features, rows): (&Features, &[f32]),
        (boundary, batch): (&Boundary, usize),
    ) {
        let place: HashMap<NodeId, usize> = plan.replays.iter().enumerate().map(|(i, &node)| (node, i)).collect();
        let mut mailed: HashMap<NodeId, (u32, Vec<f32>)> = HashMap::new();
        for (i, (node, _)) in plan.replayed_mails().enumerate().filter(|_| features.dim() > 0) {
            let (count, of_node) = mailed.entry(*node).or_default();
            *count += 1;
            of_node.extend_from_slice(&rows[i * features.dim()..(i + 1) * features.dim()]);
        }
        for (node, (count, rows)) in mailed.into_iter().filter(|(node, _)| kept[place[node]]) {
            features.keep_mailed(&[node], &[count], &rows);
        }
        let may_lag = self.weights_differ || kept.contains(&false) || boundary.any_behind();
        if !may_lag {
            return;
        }
        for (&node, kept) in plan.replays.iter().zip(kept) {
            if self.weights_differ || !kept {
                boundary.fall_behind(node, batch);
            }
        }
        let hears_old = |(_, mail): &&(NodeId, Mail)| boundary.is_behind(mail.peer);
        plan.replayed_mails().filter(hears_old).for_each(|(node, _)| boundary.fall_behind(*node, batch));
    }

    fn note_movement(&mut self, nodes: &[NodeId], before: &Tensor, after: &Tensor) {
        let moved = relative_distances(before, after);
        nodes.iter().zip(moved).for_each(|(&node, moved)| self.pruner.note_movement(node, moved));
    }

    /// The service rate, and how long a batch takes.
    fn clock(&mut self, pairs: u64, start: Instant) {
        let now = Instant::now();
        if let Some(latest) = self.latest.replace(now) {
            self.pruner.served(pairs, (now - start).as_secs_f64(), (now - latest).as_secs_f64());
        }
    }
}
