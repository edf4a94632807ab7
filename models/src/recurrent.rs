//! Rows that a recurrent cell updates from pending mail: TGN (arXiv:2006.10637, section 3.1 and table 1), and in its words JODIE
//! (arXiv:1908.01207, eq. 1) and DyRep (ICLR 2019, eq. 4).
//!
//! `s' = cell([s | carried | edge | code(dt)], s)`. Public codes differ in whether the row itself is part of the message, in what
//! happens to rows without mail, and in whether the new row is normalised: each is a key.

use serde::{Deserialize, Serialize};
use tch::Tensor;

use crate::error::{Error, Result};
use crate::input::MailInput;
use crate::memory_updater::{MemoryUpdater, MessageDims};
use crate::message::{Message, MessageTime, aggregate};
use crate::parameters::{Declarations, Init, ParameterId, Parameters};
use crate::tgn::{FeatureDims, TgnConfig, require};
use crate::time_encoder::Tape;
use crate::trained::Trained;

/// What a message holds beside edge features and time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MessageOf {
    /// The receiver's own row and what the peer sent (TGN's and DyGLib's code).
    #[default]
    Both,
    /// What the peer sent (TGLite's code).
    Peer,
}

/// What becomes of a row without mail when it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoMail {
    /// It stays.
    #[default]
    Keep,
    /// The cell runs on zeros and the code of zero (TGL's and TGLite's code).
    Update,
}

/// Normalisation of an updated row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowNorm {
    /// None.
    #[default]
    None,
    /// LayerNorm with weights `norm.w`, `norm.b` (TGL's and TGLite's code).
    Layer,
    /// To length 1 (JODIE's own code).
    L2,
}

/// The keys of the `[model]` table that JODIE and DyRep share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecurrentConfig {
    /// What a message holds.
    pub message: MessageOf,
    /// What becomes of a row without mail.
    pub no_mail: NoMail,
}

impl RecurrentConfig {
    /// Refuses what neither JODIE nor DyRep can be.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`], naming the key and the mend.
    pub fn validate(self, config: &TgnConfig) -> Result<()> {
        config.validate_widths()?;
        config.validate_heads()?;
        let memory = config.memory_dim;
        let reason = "this model's embedding is as wide as its memory row";
        require(
            config.embedding_dim == memory,
            "embedding_dim",
            config.embedding_dim,
            reason,
            &format!("write {memory}"),
        )?;
        require(config.layers == 1, "layers", config.layers, "this model has one", "write 1")?;
        let clash = self.no_mail == NoMail::Update && config.message_time == MessageTime::Stored;
        if clash {
            let reason = "a row without mail has no stored time code".to_owned();
            let mend = "write \"keep\", or message_time = \"applied\"".to_owned();
            return Err(Error::InvalidConfig { key: "no_mail", value: "\"update\"".to_owned(), reason, mend });
        }
        Ok(())
    }
}

/// The update of rows read.
pub(crate) struct RecurrentRows {
    pub(crate) updater: MemoryUpdater,
    no_mail: NoMail,
    norm: Norm,
    edge_dim: i64,
    /// `node.w [D_m, D_v]`, where node features are of another width than rows.
    pub(crate) node_projection: Option<ParameterId>,
}

enum Norm {
    None,
    Layer { w: ParameterId, b: ParameterId },
    L2,
}

impl RecurrentRows {
    /// Declares `node.w`, the cell's parameters and, for LayerNorm, `norm.w`, `norm.b`.
    pub(crate) fn declare(
        declare: &mut Declarations,
        config: &TgnConfig,
        recurrent: RecurrentConfig,
        norm: RowNorm,
        features: FeatureDims,
    ) -> RecurrentRows {
        let memory = config.memory_dim;
        let node_projection = declare_node_projection(declare, memory, features.node);
        let own = recurrent.message == MessageOf::Both;
        let dims = MessageDims { memory, payload: memory, edge: features.edge, time: config.time_dim, own };
        let updater = MemoryUpdater::declare(declare, config.updater, dims);
        let norm = match norm {
            RowNorm::None => Norm::None,
            RowNorm::L2 => Norm::L2,
            RowNorm::Layer => Norm::Layer {
                w: declare.add("norm.w", &[memory], Init::Constant(1.0)),
                b: declare.add("norm.b", &[memory], Init::Constant(0.0)),
            },
        };
        RecurrentRows { updater, no_mail: recurrent.no_mail, norm, edge_dim: features.edge, node_projection }
    }

    /// Rows with pending mail applied.
    ///
    /// * `memory`: `[N, D_m]` float. * returns `[N, D_m]`.
    pub(crate) fn updated(
        &self,
        Trained { parameters: p, time, .. }: &Trained,
        memory: &Tensor,
        mail: &MailInput,
        tape: &mut Tape,
    ) -> Tensor {
        if mail.row.size()[0] == 0 && self.no_mail == NoMail::Keep {
            return memory.shallow_clone();
        }
        let code = match &mail.code {
            Some(code) => code.shallow_clone(),
            None => time.encode(p, &mail.dt, tape),
        };
        let message = aggregate(mail, code);
        match self.no_mail {
            NoMail::Keep => {
                let own = memory.index_select(0, &mail.row); // [M, D_m]
                memory.index_copy(0, &mail.row, &self.cell(p, &own, &message))
            }
            NoMail::Update => self.cell(p, memory, &self.for_all(message, &mail.row, memory, &time.zero(p))),
        }
    }

    /// The messages of all N rows: zeros and the code of zero where there is no mail.
    fn for_all(&self, message: Message, row: &Tensor, memory: &Tensor, zero_code: &Tensor) -> Message {
        let n = memory.size()[0];
        let spread =
            |x: &Tensor, width: i64| Tensor::zeros([n, width], (memory.kind(), memory.device())).index_copy(0, row, x);
        let code = zero_code.unsqueeze(0).expand([n, zero_code.size()[0]], false).index_copy(0, row, &message.code);
        Message {
            payload: spread(&message.payload, message.payload.size()[1]),
            edge_features: message.edge_features.map(|x| spread(&x, self.edge_dim)),
            code,
        }
    }

    fn cell(&self, p: &Parameters, own: &Tensor, message: &Message) -> Tensor {
        let rows = self.updater.forward(p, own, message);
        match self.norm {
            Norm::None => rows,
            Norm::Layer { w, b } => layer_norm(&rows, &p[w], &p[b]),
            Norm::L2 => {
                let length = rows.norm_scalaropt_dim(2, [-1i64].as_slice(), true).clamp_min(1e-12);
                rows / length
            }
        }
    }

    /// Rows with node features added, through `node.w` if they are of another width.
    pub(crate) fn with_node_features(&self, p: &Parameters, rows: &Tensor, features: Option<&Tensor>) -> Tensor {
        match (features, self.node_projection) {
            (Some(features), Some(w)) => rows.addmm(features, &p[w].tr()),
            (Some(features), None) => rows + features,
            (None, _) => rows.shallow_clone(),
        }
    }
}

fn declare_node_projection(declare: &mut Declarations, memory: i64, node: i64) -> Option<ParameterId> {
    (node > 0 && node != memory).then(|| declare.add("node.w", &[memory, node], Init::xavier_uniform(node, memory)))
}

/// LayerNorm of the last dimension, eps 1e-5.
pub(crate) fn layer_norm(x: &Tensor, w: &Tensor, b: &Tensor) -> Tensor {
    x.layer_norm(w.size(), Some(w), Some(b), 1e-5, false)
}
