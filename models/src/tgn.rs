//! Temporal Graph Network (Rossi et al., arXiv:2006.10637): memory, messages, updater, embedding, link decoder.
//!
//! ```text
//!  mail ──message──► updater ──► rows ──(+ node features)──► layer 0 ──► .. ──► layer L-1 ──► z ──► decoder ──► logits
//!                       ▲ own rows                     time code(dt), edge features, neighbors
//! ```
//! One step (section 3.6): every row read gets its pending mail applied with the current weights; the roots are embedded and
//! scored; the pipeline then persists the endpoints' rows and stores the batch's mails. Layer l reads the rows of layer l - 1
//! for root and neighbors alike, each with weights of its own. Node features are added to rows when read, not stored: as they
//! are where as wide as the memory, through a learned projection `node.w [D_m, D_v]` otherwise.

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor, no_grad};

use crate::attention::AttentionDims;
use crate::decoder::DecoderInit;
use crate::embedding::{Codes, Embedding, EmbeddingDims, EmbeddingLayer};
use crate::encoder::Encoder;
use crate::error::{Error, Result};
use crate::input::{Embedded, MailInput, ModelInput};
use crate::memory_updater::Updater;
use crate::message::{Aggregator, MessageTime};
use crate::model::{MailKeeping, MailOrder, MailTargets, Mode, Payload, StateSpec};
use crate::parameters::{Declarations, Draw};
use crate::product::Matmul;
use crate::recurrent::{RecurrentConfig, RecurrentRows, RowNorm};
use crate::time_encoder::{Tape, TimeEncoder, TimeEncoding};
use crate::trained::Trained;

/// Kind of every float in the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dtype {
    /// 32 bits.
    #[default]
    F32,
    /// 64 bits: for comparisons.
    F64,
}

impl Dtype {
    /// The tensors' kind.
    pub fn kind(self) -> Kind {
        match self {
            Dtype::F32 => Kind::Float,
            Dtype::F64 => Kind::Double,
        }
    }
}

/// The `[model]` table, without `name`. The default is the preset `tidemill`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TgnConfig {
    /// D_m
    pub memory_dim: i64,
    /// D_t
    pub time_dim: i64,
    /// D_emb
    pub embedding_dim: i64,
    /// L: embedding layers, one hop each.
    pub layers: usize,
    /// H: attention heads.
    pub heads: i64,
    /// Probability of dropping an attention weight in training.
    pub dropout: f64,
    /// Kind of every float.
    pub dtype: Dtype,
    /// How matrix products are taken.
    pub matmul: Matmul,
    /// Whether the time encoder is trained.
    pub time_encoder: TimeEncoding,
    /// When a mail's time is encoded.
    pub message_time: MessageTime,
    /// How several mails of a batch to one node become one message.
    pub aggregator: Aggregator,
    /// Which of a batch's mails to one node is the last.
    pub mail_order: MailOrder,
    /// The recurrent cell.
    pub updater: Updater,
    /// The embedding module.
    pub embedding: Embedding,
    /// Whether embeddings depend on the time at which they are asked for.
    pub root_time: bool,
    /// How the link decoder's weights are drawn.
    pub decoder_init: DecoderInit,
}

impl Default for TgnConfig {
    fn default() -> TgnConfig {
        TgnConfig {
            memory_dim: 100,
            time_dim: 100,
            embedding_dim: 100,
            layers: 1,
            heads: 2,
            dropout: 0.1,
            dtype: Dtype::F32,
            matmul: Matmul::Full,
            time_encoder: TimeEncoding::Fixed,
            message_time: MessageTime::Applied,
            aggregator: Aggregator::Last,
            mail_order: MailOrder::Stream,
            updater: Updater::Gru,
            embedding: Embedding::Attention,
            root_time: true,
            decoder_init: DecoderInit::Xavier,
        }
    }
}

impl TgnConfig {
    /// Refuses what no model can be.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`], naming the key and the mend.
    pub fn validate(&self) -> Result<()> {
        self.validate_widths()?;
        self.validate_matmul()?;
        match self.embedding {
            Embedding::Attention => self.validate_heads(),
            Embedding::Transformer => self.validate_transformer(),
            Embedding::Sum => Ok(()),
            Embedding::Identity | Embedding::Time => self.validate_row_embedding(),
        }
    }

    /// The part of [`TgnConfig::validate`] that holds for any model.
    ///
    /// # Errors
    /// As there.
    pub fn validate_widths(&self) -> Result<()> {
        for (key, width) in
            [("memory_dim", self.memory_dim), ("time_dim", self.time_dim), ("embedding_dim", self.embedding_dim)]
        {
            require(width > 0, key, width, "a width is positive", "write 1 or more, such as 100")?;
            require(width <= 65_536, key, width, "no memory holds rows that wide", "write 65536 or less, such as 100")?;
        }
        require(self.layers > 0, "layers", self.layers, "there is no embedding without a layer", "write 1 or 2")?;
        require(
            (0.0..1.0).contains(&self.dropout),
            "dropout",
            self.dropout,
            "it is a probability below 1",
            "write 0.1",
        )?;
        require(self.heads > 0, "heads", self.heads, "attention has at least one head", "write 1 or 2")
    }

    pub(crate) fn validate_heads(&self) -> Result<()> {
        for (layer, width) in (0..self.layers.min(2)).map(|l| (l, self.row_dim(l) + self.time_dim)) {
            let reason =
                format!("layer {layer} attends in {width} dimensions (row + time_dim), which it does not divide");
            let heads = (1..=self.heads).rev().find(|h| width % h == 0).unwrap_or(1);
            require(
                width % self.heads == 0,
                "heads",
                self.heads,
                &reason,
                &format!("write {heads}, or change time_dim"),
            )?;
        }
        Ok(())
    }

    fn validate_matmul(&self) -> Result<()> {
        let kernels = self.dtype == Dtype::F32
            && self.embedding == Embedding::Attention
            && self.updater == Updater::Gru
            && self.aggregator == Aggregator::Last;
        let reason = "only f32 kernels do: those of a GRU updater, the last aggregator and attention";
        require(kernels || self.matmul == Matmul::Full, "matmul", "\"bf16\"", reason, "write \"full\"")
    }

    fn validate_transformer(&self) -> Result<()> {
        let (out, heads) = (self.embedding_dim, self.heads);
        let reason = format!("the {heads} heads (model.heads) share it in equal parts");
        let mend = format!("write {}, or change heads", (out / heads).max(1) * heads);
        require(out % heads == 0, "embedding_dim", out, &reason, &mend)?;
        let reason = "this embedding's query knows no time";
        require(!self.root_time, "root_time", self.root_time, reason, "write false, or embedding = \"attention\"")
    }

    fn validate_row_embedding(&self) -> Result<()> {
        let (memory, reason) = (self.memory_dim, "this embedding is the memory row, whose width is memory_dim");
        require(
            self.embedding_dim == memory,
            "embedding_dim",
            self.embedding_dim,
            reason,
            &format!("write {memory}, or embedding = \"attention\""),
        )?;
        let reason = "this embedding reads no neighbors";
        require(self.layers == 1, "layers", self.layers, reason, "write 1, or embedding = \"attention\"")?;
        let dated = self.embedding == Embedding::Time && !self.root_time;
        let reason = "the time embedding is a function of the root's time";
        require(!dated, "root_time", self.root_time, reason, "write true, or embedding = \"identity\"")
    }

    /// What is kept for a model whose rows wait for their endpoints' mails, which carry the peers' rows.
    pub(crate) fn rows_with_mail(&self, features: FeatureDims) -> StateSpec {
        StateSpec {
            kind: self.dtype.kind(),
            memory_dim: self.memory_dim,
            payload: Payload::MemoryRow,
            payload_dim: self.memory_dim,
            mail_targets: MailTargets::Endpoints,
            mail_keeping: MailKeeping::UntilApplied,
            mail_order: self.mail_order,
            aggregator: self.aggregator,
            stored_time_code: (self.message_time == MessageTime::Stored).then_some(self.time_dim),
            edge_dim: features.edge,
            node_dim: features.node,
            ..StateSpec::default()
        }
    }

    /// Width of the rows that layer `l` reads.
    fn row_dim(&self, layer: usize) -> i64 {
        if layer == 0 { self.memory_dim } else { self.embedding_dim }
    }

    fn attention_dims(&self, layer: usize, edge_dim: i64) -> AttentionDims {
        AttentionDims {
            row: self.row_dim(layer),
            edge: edge_dim,
            time: self.time_dim,
            heads: self.heads,
            dropout: self.dropout,
            root_time: self.root_time,
        }
    }
}

pub(crate) fn require(
    holds: bool,
    key: &'static str,
    value: impl std::fmt::Display,
    reason: &str,
    mend: &str,
) -> Result<()> {
    let error = || Error::InvalidConfig { key, value: value.to_string(), reason: reason.into(), mend: mend.into() };
    if holds { Ok(()) } else { Err(error()) }
}

/// Widths of the stream's features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeatureDims {
    /// D_e, 0 for none.
    pub edge: i64,
    /// D_v, 0 for none.
    pub node: i64,
}

/// The model.
pub struct Tgn {
    config: TgnConfig,
    features: FeatureDims,
    pub(crate) rows: RecurrentRows,
    pub(crate) layers: Vec<EmbeddingLayer>,
    pub(crate) trained: Trained,
}

impl Tgn {
    /// Declares and draws all parameters.
    ///
    /// # Errors
    /// If the configuration is impossible.
    pub fn new(config: &TgnConfig, features: FeatureDims, draw: &dyn Draw, device: Device) -> Result<Tgn> {
        config.validate()?;
        let (reason, mend) = ("only kernels on a CPU do", "write \"full\", or device.kind = \"cpu\"");
        require(device == Device::Cpu || config.matmul == Matmul::Full, "matmul", "\"bf16\"", reason, mend)?;
        let d = &mut Declarations::default();
        let time = TimeEncoder::declare(d, config.time_encoder, config.time_dim, config.dtype.kind(), device);
        let rows = RecurrentRows::declare(d, config, RecurrentConfig::default(), RowNorm::None, features);
        let layers = (0..config.layers).map(|l| {
            let dims = EmbeddingDims { attention: config.attention_dims(l, features.edge), out: config.embedding_dim };
            EmbeddingLayer::declare(d, &format!("layer{l}"), config.embedding, dims)
        });
        let layers = layers.collect();
        let trained =
            Trained::declare(d, time, config, config.embedding_dim, draw, device).multiplied_by(config.matmul);
        Ok(Tgn { config: config.clone(), features, rows, layers, trained })
    }

    /// The configuration it was made with.
    pub fn config(&self) -> &TgnConfig {
        &self.config
    }

    /// The same model as a composition of tensor operations under autograd, on any device: the reference of the path without.
    pub fn composed(mut self) -> Tgn {
        self.trained.fused = false;
        self
    }

    /// Whether the encoder can do this input without autograd.
    fn is_fused(&self, input: &ModelInput) -> bool {
        let c = &self.config;
        let attends = c.embedding == Embedding::Attention && c.updater == Updater::Gru;
        self.trained.fused && attends && input.mail.segment.is_none()
    }
}

impl Encoder for Tgn {
    fn spec(&self) -> StateSpec {
        let c = &self.config;
        let attends = matches!(c.embedding, Embedding::Attention | Embedding::Transformer);
        StateSpec {
            embedding_dim: c.embedding_dim,
            layers: if matches!(c.embedding, Embedding::Identity | Embedding::Time) { 0 } else { c.layers },
            heads: c.heads,
            dropout: if attends { c.dropout } else { 0.0 },
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
        assert_eq!(input.layers.len(), self.layers.len(), "one layer of roots for each layer of the model");
        let Trained { parameters: p, time, .. } = &self.trained;
        let rows = self.updated_rows(&input.memory, &input.mail, tape);
        let mut x = self.rows.with_node_features(p, &rows, input.node_features.as_ref());
        for (layer, roots) in self.layers.iter().zip(&input.layers) {
            let codes = layer
                .reads_neighbors()
                .then(|| Codes { zero: time.zero(p), neighbor: time.encode(p, &roots.dt, tape) });
            x = layer.forward(p, &x, roots, codes);
        }
        Embedded::new(x, rows)
    }

    fn embed_without_autograd(&self, input: &ModelInput, mode: Mode) -> Option<Embedded> {
        let embed = || match self.config.dtype {
            Dtype::F32 => self.forward_fused::<f32>(input, mode),
            Dtype::F64 => self.forward_fused::<f64>(input, mode),
        };
        self.is_fused(input).then(|| no_grad(embed))
    }

    fn backward_without_autograd(&mut self, embedded: Embedded, grad_z: &Tensor) {
        let trace = embedded.trace.expect("the pass was made without autograd");
        no_grad(|| match self.config.dtype {
            Dtype::F32 => self.backward_fused::<f32>(trace, grad_z),
            Dtype::F64 => self.backward_fused::<f64>(trace, grad_z),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_possible_and_survives_json() {
        let config = TgnConfig::default();
        config.validate().expect("possible");
        let text = serde_json::to_string(&config).expect("plain values");
        for word in
            [r#""dtype":"f32""#, r#""time_encoder":"fixed""#, r#""updater":"gru""#, r#""message_time":"applied""#]
        {
            assert!(text.contains(word), "{text}");
        }
        assert_eq!(serde_json::from_str::<TgnConfig>(&text).expect("own words"), config);
        assert_eq!(serde_json::from_str::<TgnConfig>("{}").expect("all keys have defaults"), config);
    }

    #[test]
    fn impossible_configurations_name_key_and_mend() {
        let base = TgnConfig::default;
        let cases = [
            (TgnConfig { memory_dim: 0, ..base() }, "memory_dim"),
            (TgnConfig { time_dim: -1, ..base() }, "time_dim"),
            (TgnConfig { layers: 0, ..base() }, "layers"),
            (TgnConfig { dropout: 1.0, ..base() }, "dropout"),
            (TgnConfig { dropout: f64::NAN, ..base() }, "dropout"),
            (TgnConfig { heads: 3, ..base() }, "heads"),
            (TgnConfig { heads: 8, layers: 2, embedding_dim: 102, ..base() }, "heads"),
            (TgnConfig { embedding: Embedding::Identity, embedding_dim: 50, ..base() }, "embedding_dim"),
            (TgnConfig { embedding: Embedding::Transformer, root_time: false, heads: 3, ..base() }, "embedding_dim"),
            (TgnConfig { embedding: Embedding::Transformer, ..base() }, "root_time"),
            (TgnConfig { embedding: Embedding::Time, layers: 2, ..base() }, "layers"),
            (TgnConfig { embedding: Embedding::Time, root_time: false, ..base() }, "root_time"),
        ];
        for (config, key) in cases {
            let message = config.validate().expect_err(key).to_string();
            assert!(message.starts_with(&format!("model.{key} = ")) && message.contains("; write "), "{message}");
        }
    }
}
