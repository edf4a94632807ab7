//! Link decoder of TGN (arXiv:2006.10637, section 3.4): `logit = w2 . relu(W1 [z_source | z_destination] + b1) + b2`.
//!
//! W1 is applied to embeddings before they are paired: one product serves a source's positive and all its negatives, and an
//! embedding that is a candidate of many events is multiplied once.

use serde::{Deserialize, Serialize};
use tch::Tensor;

use crate::input::PairInput;
use crate::linear::Mlp;
use crate::parameters::{Declarations, Init, Parameters};

/// How the decoder's weights are drawn. It moves the first epochs: Xavier's output weights are two to three times as large.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecoderInit {
    /// Xavier normal (Glorot and Bengio 2010), as in TGN's code.
    #[default]
    Xavier,
    /// Uniform within `1 / sqrt(D_emb)`, as PyTorch draws linear layers.
    FanIn,
}

/// The link decoder.
pub struct Decoder {
    pub(crate) mlp: Mlp,
}

impl Decoder {
    /// Declares `dec.w1.{source,destination} [D_emb, D_emb]`, `dec.b1`, `dec.w2 [1, D_emb]`, `dec.b2`.
    pub fn declare(declare: &mut Declarations, embedding_dim: i64, init: DecoderInit) -> Decoder {
        let blocks = [("source", embedding_dim), ("destination", embedding_dim)];
        let mlp = match init {
            DecoderInit::Xavier => Mlp::declare(declare, "dec", &blocks, embedding_dim, 1),
            DecoderInit::FanIn => {
                let init = Init::inverse_root(embedding_dim);
                Mlp::declare_drawn(declare, "dec", &blocks, embedding_dim, 1, [init.clone(), init.clone(), init])
            }
        };
        Decoder { mlp }
    }

    /// Logits of the true and of the negative pairs, `([B], [B * n])`.
    pub fn forward(&self, p: &Parameters, z: &Tensor, pairs: &PairInput) -> (Tensor, Tensor) {
        let hidden = &self.mlp.hidden;
        let events = pairs.source.size()[0];
        let negatives = pairs.negative.size()[0] / events.max(1);
        let source = hidden.bias(p).addmm(&z.index_select(0, &pairs.source), &hidden.weight(p, 0).tr()); // [B, D_emb]
        let all = z.mm(&hidden.weight(p, 1).tr()); // [R, D_emb]
        let positive = all.index_select(0, &pairs.destination) + &source;
        let width = source.size()[1];
        let negative = all.index_select(0, &pairs.negative).view([events, negatives, width]) + source.unsqueeze(1);
        let logits = |hidden: Tensor| self.mlp.output(p, hidden).squeeze_dim(1);
        (logits(positive), logits(negative.view([-1, width])))
    }
}
