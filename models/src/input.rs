//! What a model is given for one batch: tensors and row numbers, made by the pipeline's state stage.
//!
//! Row numbers point into the tensors of the same struct, never at a node: a model sees no node id, no graph and no clock.
//! Every number here is a leaf without gradient. Letters: N rows read, M rows with pending mail, Q mails, R roots of a hop,
//! K fanout, H heads, D_m memory, D_p payload, D_e edge feature, D_v node feature, D_t time code, D_emb embedding.
//! "Float" is the model's own kind (`f32` or `f64`); all tensors are on the model's device.

use serde::{Deserialize, Serialize};
use tch::Tensor;

use crate::fused::Trace;
use crate::time_encoder::Tape;

/// All that one embedding pass reads.
#[derive(Debug)]
pub struct ModelInput {
    /// `[N, D_m]` float: committed memory rows of every node read, pending mail not yet applied.
    pub memory: Tensor,
    /// `[N, D_v]` float: node features of the same rows.
    pub node_features: Option<Tensor>,
    /// The pending mail of those rows; none where mails are kept in slots.
    pub mail: MailInput,
    /// The kept mails of the top hop's roots, for models that keep the latest few.
    pub slots: Option<SlotInput>,
    /// One entry a hop, deepest first: `layers[0]` reads memory rows, the last one yields the embeddings.
    pub layers: Vec<LayerInput>,
}

/// Pending mail of M of the N rows, Q mails in all (Q = M unless the aggregator is `mean`).
#[derive(Debug)]
pub struct MailInput {
    /// `[M]` i64: rows of `memory` that have mail, each once.
    pub row: Tensor,
    /// `[Q]` i64 in `0..M`, ascending, every value present: which receiver a mail belongs to. `None`: mail i is for receiver i.
    pub segment: Option<Tensor>,
    /// `[Q, D_p]` float: what the peer sent, s(peer) after its own commit.
    pub payload: Tensor,
    /// `[Q, D_e]` float: features of the mails' events. `None` counts as zeros.
    pub edge_features: Option<Tensor>,
    /// `[Q]` float, seconds: mail time minus the receiver's last update when the mail was stored.
    pub dt: Tensor,
    /// `[Q, D_t]` float: the time code as it was when the mail was stored; present iff `message_time = "stored"`.
    pub code: Option<Tensor>,
}

/// The kept mails of R roots, in S slots each, the newest mail in the first.
#[derive(Debug)]
pub struct SlotInput {
    /// `[Q, D_p]` float: the mails of the roots' nodes, each once.
    pub payload: Tensor,
    /// `[R, S]` i64 into `payload`, 0 where the slot is empty.
    pub mail: Tensor,
    /// `[R, S]` bool: which slots hold a mail.
    pub filled: Tensor,
    /// `[R, S]` float, seconds: the root's time minus the mail's; an empty slot counts as a mail of the time origin.
    pub dt: Tensor,
}

/// The R distinct roots of one hop and their sampled neighbors.
#[derive(Debug)]
pub struct LayerInput {
    /// `[R]` i64: the root's own row in the layer below (for the deepest layer: in `memory`).
    pub root: Tensor,
    /// `[R, K]` i64: the neighbors' rows in the layer below, 0 where absent.
    pub neighbor: Tensor,
    /// `[R, K]` bool: which slots hold a neighbor.
    pub valid: Tensor,
    /// `[R, K]` float, seconds: `t_root - t_edge`, or `last_update(neighbor, pending mail included) - t_edge` without root
    /// time; 0 where absent.
    pub dt: Tensor,
    /// `[R]` float, seconds: `t_root - last_update(root, pending mail included)`.
    pub root_dt: Tensor,
    /// `[R]` float, seconds: the root's time from the time origin; present iff [`crate::StateSpec::absolute_time`].
    pub since_origin: Option<Tensor>,
    /// `[R, K, D_e]` float: features of the sampled edges, anything finite where absent. `None` counts as zeros.
    pub edge_features: Option<Tensor>,
    /// `[R, H, K]` float, 0 or 1: which attention weights dropout keeps. `None` in evaluation or when `dropout = 0`.
    pub keep: Option<Tensor>,
}

/// The result of an embedding pass.
#[derive(Debug)]
pub struct Embedded {
    /// `[R, D_emb]` float: embeddings of the top hop's roots. In training a graph may be attached: [`crate::Model::backward`] knows.
    pub z: Tensor,
    /// `[N, D_m]` float: memory rows with their mail applied; a graph may be attached likewise. Endpoints' rows become the memory
    /// (their embeddings do where mails are kept in slots).
    pub rows: Tensor,
    /// `[R, D]` float: what mails carry of a root where that is not `z`.
    pub carried: Option<Tensor>,
    /// Time codes whose gradient is taken outside of autograd.
    pub(crate) tape: Tape,
    /// What the backward pass without autograd reads.
    pub(crate) trace: Option<Trace>,
}

impl Embedded {
    /// A result whose gradients autograd knows all about.
    pub fn new(z: Tensor, rows: Tensor) -> Embedded {
        Embedded { z, rows, carried: None, tape: Tape::default(), trace: None }
    }
}

/// Which embeddings are scored against each other: B events, n negatives each.
#[derive(Debug)]
pub struct PairInput {
    /// `[B]` i64 into `z`: sources.
    pub source: Tensor,
    /// `[B]` i64 into `z`: true destinations.
    pub destination: Tensor,
    /// `[B * n]` i64 into `z`: negatives, event by event.
    pub negative: Tensor,
    /// Events of the *global* batch, over all ranks: the divisor of the loss.
    pub events: f64,
    /// How the two halves of the loss are combined.
    pub loss: LossReduction,
    /// `[B]`, `[B * n]` f32, 1 or 0: whether each true and each negative pair is in the memory of edges; present iff
    /// [`crate::StateSpec::edge_memory`].
    pub seen: Option<[Tensor; 2]>,
}

/// How the positives' and the negatives' mean cross-entropy make one loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossReduction {
    /// Their sum, as in TGN's own training.
    #[default]
    Sum,
    /// Half of the sum: the mean over an equal number of positives and negatives.
    Mean,
}

/// Scores and loss of one batch, and the loss's gradient at the embeddings.
#[derive(Debug)]
pub struct Scored {
    /// `[B]` float: logits of the true pairs, without graph.
    pub positive: Tensor,
    /// `[B * n]` float: logits of the negative pairs, without graph.
    pub negative: Tensor,
    /// This rank's share of the loss: sums over its events divided by the global count.
    pub loss: f64,
    /// `[R, D_emb]` float: d loss / d z.
    pub grad_z: Tensor,
}
