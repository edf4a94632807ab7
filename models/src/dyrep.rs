//! DyRep (Trivedi, Farajtabar, Biswal and Zha, ICLR 2019) as a memory-based link predictor, in the words of TGN
//! (arXiv:2006.10637, table 1): what drives a node's update is the *neighborhood* of whom it met.
//!
//! * update (DyRep, eq. 4): `s' = tanh(W_ih [s | h_peer | edge | code(dt)] + b_ih + W_hh s + b_hh)`, see [`crate::recurrent`];
//! * neighborhood: `h(v) = merge([attention(s'(v), s' of v's neighbors) | s'(v)])`, TGN's layer ([`crate::attention`]);
//! * mails carry the peer's `h` from before the event, without gradient; `z = s'`.
//!
//! Since mails are detached and the row is scored, nothing trains the attention: that is what public codes do. `score =
//! "attention"` scores `h` instead, and then everything is trained. Absent on purpose: the paper's point process and survival
//! loss; links are scored by the decoder that all models here share.

use serde::{Deserialize, Serialize};
use tch::{Device, Tensor, no_grad};

use crate::attention::AttentionDims;
use crate::embedding::{Codes, Embedding, EmbeddingDims, EmbeddingLayer};
use crate::error::Result;
use crate::input::{Embedded, MailInput, ModelInput, PairInput, Scored};
use crate::link::Link;
use crate::message::MessageTime;
use crate::model::{MailKeeping, MailTargets, Mode, Model, Payload, StateSpec};
use crate::parameters::{Declarations, Draw, Parameters};
use crate::recurrent::{RecurrentConfig, RecurrentRows, RowNorm};
use crate::tgn::{FeatureDims, TgnConfig};
use crate::time_encoder::{Tape, TimeEncoder};

/// What the decoder is given of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Score {
    /// Its row (TGN's and DyGLib's code).
    #[default]
    Memory,
    /// Its neighborhood `h`.
    Attention,
}

/// DyRep's own key of the `[model]` table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DyrepConfig {
    /// What is scored.
    pub score: Score,
}

/// The model.
pub struct Dyrep {
    config: TgnConfig,
    score: Score,
    features: FeatureDims,
    parameters: Parameters,
    time: TimeEncoder,
    rows: RecurrentRows,
    layer: EmbeddingLayer,
    link: Link,
}

impl Dyrep {
    /// Declares and draws all parameters.
    ///
    /// # Errors
    /// If the configuration is impossible.
    pub fn new(
        config: &TgnConfig,
        (recurrent, dyrep): (RecurrentConfig, DyrepConfig),
        features: FeatureDims,
        draw: &dyn Draw,
        device: Device,
    ) -> Result<Dyrep> {
        recurrent.validate(config)?;
        let (kind, d) = (config.dtype.kind(), &mut Declarations::default());
        let time = TimeEncoder::declare(d, config.time_encoder, config.time_dim, kind, device);
        let rows = RecurrentRows::declare(d, config, recurrent, RowNorm::None, features);
        let attention = AttentionDims {
            row: config.memory_dim,
            edge: features.edge,
            time: config.time_dim,
            heads: config.heads,
            dropout: config.dropout,
            root_time: config.root_time,
        };
        let dims = EmbeddingDims { attention, out: config.memory_dim };
        let layer = EmbeddingLayer::declare(d, "layer0", Embedding::Attention, dims);
        let link = Link::declare(d, config.memory_dim, config.decoder_init, config.dtype, device);
        let parameters = std::mem::take(d).build(kind, device, draw);
        Ok(Dyrep { config: config.clone(), score: dyrep.score, features, parameters, time, rows, layer, link })
    }

    fn forward(&self, input: &ModelInput, mut tape: Tape) -> Embedded {
        let (p, roots) = (&self.parameters, &input.layers[0]);
        let rows = self.rows.updated(p, &self.time, &input.memory, &input.mail, &mut tape);
        let neighborhood = |tape: &mut Tape| {
            let x = self.rows.with_node_features(p, &rows, input.node_features.as_ref());
            let codes = Codes { zero: self.time.zero(p), neighbor: self.time.encode(p, &roots.dt, tape) };
            self.layer.forward(p, &x, roots, Some(codes)) // [R, D_m]
        };
        match self.score {
            Score::Attention => Embedded { z: neighborhood(&mut tape), tape, ..Embedded::new(Tensor::new(), rows) },
            Score::Memory => {
                let carried = no_grad(|| neighborhood(&mut Tape::default()));
                let z = rows.index_select(0, &roots.root);
                Embedded { carried: Some(carried), tape, ..Embedded::new(z, rows) }
            }
        }
    }
}

impl Model for Dyrep {
    fn spec(&self) -> StateSpec {
        let c = &self.config;
        StateSpec {
            kind: c.dtype.kind(),
            memory_dim: c.memory_dim,
            payload: Payload::Embedding,
            payload_dim: c.memory_dim,
            mail_targets: MailTargets::Endpoints,
            mail_keeping: MailKeeping::UntilApplied,
            mail_order: c.mail_order,
            aggregator: c.aggregator,
            stored_time_code: (c.message_time == MessageTime::Stored).then_some(c.time_dim),
            edge_dim: self.features.edge,
            node_dim: self.features.node,
            embedding_dim: c.memory_dim,
            layers: 1,
            heads: c.heads,
            dropout: c.dropout,
            root_time: c.root_time,
            ..StateSpec::default()
        }
    }

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn parameters_mut(&mut self) -> &mut Parameters {
        &mut self.parameters
    }

    fn embed(&self, input: &ModelInput, mode: Mode) -> Embedded {
        match mode {
            Mode::Train => self.forward(input, Tape::recording()),
            Mode::Eval => no_grad(|| self.forward(input, Tape::default())),
        }
    }

    fn apply_mail(&self, memory: &Tensor, mail: &MailInput) -> Tensor {
        no_grad(|| self.rows.updated(&self.parameters, &self.time, memory, mail, &mut Tape::default()))
    }

    fn score(&mut self, z: &Tensor, pairs: &PairInput) -> Scored {
        self.link.score(&mut self.parameters, z, pairs)
    }

    fn complete_once_scored(&self) -> i64 {
        self.link.first(&self.parameters)
    }

    fn logits(&self, z: &Tensor, pairs: &PairInput) -> (Tensor, Tensor) {
        self.link.logits(&self.parameters, z, pairs)
    }

    fn backward(&mut self, embedded: Embedded, grad_z: &Tensor) {
        self.link.backward(&mut self.parameters, &self.time, embedded, grad_z);
    }

    fn encode_mail_time(&self, dt: &Tensor) -> Tensor {
        no_grad(|| self.time.encode(&self.parameters, dt, &mut Tape::default()))
    }
}
