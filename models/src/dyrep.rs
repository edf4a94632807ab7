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
use crate::encoder::Encoder;
use crate::error::Result;
use crate::input::{Embedded, MailInput, ModelInput};
use crate::model::{Payload, StateSpec};
use crate::parameters::{Declarations, Draw};
use crate::recurrent::{RecurrentConfig, RecurrentRows, RowNorm};
use crate::tgn::{FeatureDims, TgnConfig};
use crate::time_encoder::{Tape, TimeEncoder};
use crate::trained::Trained;

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
    rows: RecurrentRows,
    layer: EmbeddingLayer,
    trained: Trained,
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
        let d = &mut Declarations::default();
        let time = TimeEncoder::declare(d, config.time_encoder, config.time_dim, config.dtype.kind(), device);
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
        let trained = Trained::declare(d, time, config, config.memory_dim, draw, device);
        Ok(Dyrep { config: config.clone(), score: dyrep.score, features, rows, layer, trained })
    }
}

impl Encoder for Dyrep {
    fn spec(&self) -> StateSpec {
        let c = &self.config;
        StateSpec {
            payload: Payload::Embedding,
            embedding_dim: c.memory_dim,
            layers: 1,
            heads: c.heads,
            dropout: c.dropout,
            root_time: c.root_time,
            ..c.rows_with_mail(self.features)
        }
    }

    fn trained(&self) -> &Trained {
        &self.trained
    }

    fn trained_mut(&mut self) -> &mut Trained {
        &mut self.trained
    }

    fn updated_rows(&self, memory: &Tensor, mail: &MailInput, tape: &mut Tape) -> Tensor {
        self.rows.updated(&self.trained, memory, mail, tape)
    }

    fn forward(&self, input: &ModelInput, tape: &mut Tape) -> Embedded {
        let (Trained { parameters: p, time, .. }, roots) = (&self.trained, &input.layers[0]);
        let rows = self.updated_rows(&input.memory, &input.mail, tape);
        let neighborhood = |tape: &mut Tape| {
            let x = self.rows.with_node_features(p, &rows, input.node_features.as_ref());
            let codes = Codes { zero: time.zero(p), neighbor: time.encode(p, &roots.dt, tape) };
            self.layer.forward(p, &x, roots, Some(codes)) // [R, D_m]
        };
        match self.score {
            Score::Attention => Embedded::new(neighborhood(tape), rows),
            Score::Memory => {
                let carried = no_grad(|| neighborhood(&mut Tape::default()));
                let z = rows.index_select(0, &roots.root);
                Embedded { carried: Some(carried), ..Embedded::new(z, rows) }
            }
        }
    }
}
