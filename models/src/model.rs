//! The seam between the trainer and a model: embed, score, backward.
//!
//! A model reads no graph and writes no state. It returns new memory rows in [`Embedded::rows`]; who writes them, and which
//! mails follow from them, is declared in its [`StateSpec`] and done by the pipeline. Embedding and scoring are apart because
//! embeddings (and their gradients) may travel between ranks in between.

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use crate::edgebank::EdgeBankConfig;
use crate::input::{Embedded, MailInput, ModelInput, PairInput, Scored};
use crate::message::Aggregator;
use crate::parameters::Parameters;

/// Whether a pass is differentiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Records the autograd graph.
    Train,
    /// Records nothing.
    Eval,
}

/// What a mail carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// The peer's memory row after its own commit (TGN, JODIE).
    MemoryRow,
    /// What [`Embedded::carried`] holds of the peer, from before the event (DyRep).
    Embedding,
    /// `[sender's embedding | peer's embedding | edge features]` (APAN): the event as its sender saw it.
    Pair,
    /// Their sum; edge features are as wide as an embedding, or there are none.
    PairSum,
}

/// Who receives mail of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MailTargets {
    /// Nobody: the model keeps no state (TGAT).
    Nobody,
    /// The event's two endpoints, each from the other.
    Endpoints,
    /// Each endpoint sends to itself and to its sampled neighbors (APAN).
    Neighbors,
    /// Each endpoint sends to its sampled neighbors, not to itself.
    OnlyNeighbors,
}

/// How long a mail is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MailKeeping {
    /// Until its receiver, an endpoint, commits the row that the mail was applied to. The aggregator's `mean` is taken when
    /// mails are applied.
    UntilApplied,
    /// The latest so many, whether read or not; `mean` makes one of all that a batch sends to a node, as it is stored. A
    /// node's row is then the embedding of its last event, and its time that event's.
    Latest(usize),
}

/// Which of two mails of a batch to one node is the later one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MailOrder {
    /// That of the larger event id, the destination's of one event.
    #[default]
    Stream,
    /// Any that a destination got before any that a source got, then by event id (TGN's own code).
    Roles,
}

/// What the pipeline must keep, read and write for a model.
#[derive(Clone, Debug, PartialEq)]
pub struct StateSpec {
    /// Kind of every float tensor.
    pub kind: Kind,
    /// D_m: width of a memory row; 0 for a model without memory.
    pub memory_dim: i64,
    /// What a mail carries.
    pub payload: Payload,
    /// D_p: its width.
    pub payload_dim: i64,
    /// Who receives mail.
    pub mail_targets: MailTargets,
    /// How long a mail is kept.
    pub mail_keeping: MailKeeping,
    /// Which of a batch's mails to one node is the last.
    pub mail_order: MailOrder,
    /// How several mails of a batch to one node become one message.
    pub aggregator: Aggregator,
    /// `Some(D_t)`: a mail's time code is made when it is stored, by [`Model::encode_mail_time`], and kept with it.
    pub stored_time_code: Option<i64>,
    /// D_e: width of the edge features the model has weights for.
    pub edge_dim: i64,
    /// D_v: width of the node features the model expects, 0 for none.
    pub node_dim: i64,
    /// D_emb: width of an embedding.
    pub embedding_dim: i64,
    /// Hops sampled; 0 for a model that reads no neighbors (its one [`crate::LayerInput`] has K = 0).
    pub layers: usize,
    /// H: attention heads, the middle dimension of a dropout mask.
    pub heads: i64,
    /// Probability with which an attention weight is dropped in training; 0: no mask is wanted.
    pub dropout: f64,
    /// Whether neighbors' `dt` counts from the root's time or from the neighbor's own last update.
    pub root_time: bool,
    /// Whether layers want [`crate::LayerInput::since_origin`].
    pub absolute_time: bool,
    /// Present iff the model wants [`PairInput::seen`], by this rule.
    pub edge_memory: Option<EdgeBankConfig>,
}

impl Default for StateSpec {
    /// A model of f32 without memory, mail, features and neighbors.
    fn default() -> StateSpec {
        StateSpec {
            kind: Kind::Float,
            memory_dim: 0,
            payload: Payload::MemoryRow,
            payload_dim: 0,
            mail_targets: MailTargets::Nobody,
            mail_keeping: MailKeeping::UntilApplied,
            mail_order: MailOrder::Stream,
            aggregator: Aggregator::Last,
            stored_time_code: None,
            edge_dim: 0,
            node_dim: 0,
            embedding_dim: 0,
            layers: 0,
            heads: 1,
            dropout: 0.0,
            root_time: true,
            absolute_time: false,
            edge_memory: None,
        }
    }
}

/// A temporal graph network as the trainer sees it. [`crate::Encoder`] is the shorter way to one that is like those here.
pub trait Model: Send {
    /// What the pipeline must keep and read for this model.
    fn spec(&self) -> StateSpec;

    /// Values and gradients.
    fn parameters(&self) -> &Parameters;

    /// Values and gradients, for the optimizer and for checkpoints.
    fn parameters_mut(&mut self) -> &mut Parameters;

    /// Applies pending mail and embeds the roots.
    fn embed(&self, input: &ModelInput, mode: Mode) -> Embedded;

    /// The memory update alone: rows with their pending mail applied, as in [`Embedded::rows`], without graph.
    ///
    /// * `memory`: `[N, D_m]` float. * `mail`: of those rows. * returns `[N, D_m]`.
    ///
    /// # Panics
    /// Unless written: if the model has a memory.
    fn apply_mail(&self, memory: &Tensor, _mail: &MailInput) -> Tensor {
        assert_eq!(self.spec().memory_dim, 0, "a model with memory says what mail makes of a row");
        memory.shallow_clone()
    }

    /// Scores pairs of embeddings and differentiates the loss down to `z`.
    ///
    /// * `z`: `[R, D_emb]` float, taken as a leaf: whatever graph it has is left alone.
    ///
    /// *Adds* the decoder's gradients to `parameters().grads()`.
    fn score(&mut self, z: &Tensor, pairs: &PairInput) -> Scored;

    /// Index from which on the flat gradient is complete once [`Model::score`] has returned: [`Model::backward`] adds nothing
    /// there. P where that is so of none.
    fn complete_once_scored(&self) -> i64 {
        self.parameters().count()
    }

    /// Logits `([B], [B * n])` without any gradient.
    fn logits(&self, z: &Tensor, pairs: &PairInput) -> (Tensor, Tensor);

    /// Differentiates the encoder: *adds* the gradients of `sum(z * grad_z)` to `parameters().grads()`.
    ///
    /// * `grad_z`: `[R, D_emb]` float: d loss / d z, from [`Model::score`] or from the ranks that used the embeddings.
    fn backward(&mut self, embedded: Embedded, grad_z: &Tensor);

    /// The time code to be stored with mails.
    ///
    /// * `dt`: `[Q]` float, seconds.
    /// * returns `[Q, D_t]` float, without graph.
    ///
    /// # Panics
    /// Unless written: only asked for where [`StateSpec::stored_time_code`] is given.
    fn encode_mail_time(&self, _dt: &Tensor) -> Tensor {
        unreachable!("a model that stores time codes makes them")
    }
}
