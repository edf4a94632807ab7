//! What all trained models share behind their embeddings: the link decoder, its loss, and differentiation by autograd.

use tch::{Device, Tensor, no_grad};

use crate::decoder::{Decoder, DecoderInit};
use crate::input::{Embedded, PairInput, Scored};
use crate::loss::link_loss;
use crate::parameters::{Declarations, ParameterId, Parameters};
use crate::tgn::Dtype;
use crate::time_encoder::TimeEncoder;

/// The decoder, and which parameters are whose.
pub(crate) struct Link {
    decoder: Decoder,
    encoder_ids: Vec<ParameterId>,
    decoder_ids: Vec<ParameterId>,
    dtype: Dtype,
    /// Whether passes may go without autograd, see [`crate::fused`].
    pub(crate) fused: bool,
}

impl Link {
    /// Declares the decoder, after all of the encoder's parameters.
    ///
    /// * `width`: of an embedding, as the decoder is given it.
    pub(crate) fn declare(
        declare: &mut Declarations,
        width: i64,
        init: DecoderInit,
        dtype: Dtype,
        device: Device,
    ) -> Link {
        let mark = declare.mark();
        let decoder = Decoder::declare(declare, width, init);
        let (encoder_ids, decoder_ids) = (declare.since(0)[..mark].to_vec(), declare.since(mark));
        Link { decoder, encoder_ids, decoder_ids, dtype, fused: device == Device::Cpu }
    }

    /// See [`crate::Model::complete_once_scored`]: the decoder's parameters are the last ones.
    pub(crate) fn first(&self, p: &Parameters) -> i64 {
        self.decoder_ids.first().map_or(p.count(), |&id| p.start_of(id))
    }

    /// See [`crate::Model::score`].
    pub(crate) fn score(&self, p: &mut Parameters, z: &Tensor, pairs: &PairInput) -> Scored {
        if self.fused {
            return no_grad(|| match self.dtype {
                Dtype::F32 => self.decoder.score::<f32>(p, z, pairs),
                Dtype::F64 => self.decoder.score::<f64>(p, z, pairs),
            });
        }
        let z = z.detach().set_requires_grad(true);
        let (positive, negative) = self.decoder.forward(p, &z, pairs);
        let loss = link_loss(&positive, &negative, pairs.events, pairs.loss);
        let grad_z = p.differentiate(&loss, &self.decoder_ids, &[&z]).pop().expect("z was asked for");
        Scored { positive: positive.detach(), negative: negative.detach(), loss: loss.double_value(&[]), grad_z }
    }

    /// See [`crate::Model::logits`].
    pub(crate) fn logits(&self, p: &Parameters, z: &Tensor, pairs: &PairInput) -> (Tensor, Tensor) {
        no_grad(|| self.decoder.forward(p, z, pairs))
    }

    /// See [`crate::Model::backward`], for what autograd recorded.
    pub(crate) fn backward(&self, p: &mut Parameters, time: &TimeEncoder, embedded: Embedded, grad_z: &Tensor) {
        let Embedded { z, tape, .. } = embedded;
        if z.requires_grad() {
            let product = (z * grad_z).sum(self.dtype.kind());
            let leaves: Vec<&Tensor> = tape.leaves().collect();
            let gradients = p.differentiate(&product, &self.encoder_ids, &leaves);
            time.differentiate(p, &tape, &gradients);
        }
    }
}
