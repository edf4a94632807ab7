//! What all trained models share around their own layers: parameters, time codes, the link decoder with its loss, and
//! differentiation by autograd.

use tch::{Device, Tensor, no_grad};

use crate::decoder::Decoder;
use crate::input::{Embedded, PairInput, Scored};
use crate::loss::link_loss;
use crate::parameters::{Declarations, Draw, ParameterId, Parameters};
use crate::product::Matmul;
use crate::tgn::{Dtype, TgnConfig};
use crate::time_encoder::{Tape, TimeEncoder};

/// Parameters, time encoder and link decoder.
pub struct Trained {
    /// The whole model's.
    pub parameters: Parameters,
    /// Encodes elapsed seconds.
    pub time: TimeEncoder,
    decoder: Decoder,
    by_role: bool,
    encoder_ids: Vec<ParameterId>,
    decoder_ids: Vec<ParameterId>,
    dtype: Dtype,
    /// Whether passes may go without autograd, see [`crate::fused`].
    pub(crate) fused: bool,
}

impl Trained {
    /// Declares the decoder, behind all of the encoder's parameters, and draws everything.
    ///
    /// * `width`: of an embedding, as the decoder is given it.
    pub fn declare(
        declare: &mut Declarations,
        time: TimeEncoder,
        config: &TgnConfig,
        width: i64,
        draw: &dyn Draw,
        device: Device,
    ) -> Trained {
        let mark = declare.mark();
        let decoder = Decoder::declare(declare, width, config.decoder_init);
        let (encoder_ids, decoder_ids) = (declare.since(0)[..mark].to_vec(), declare.since(mark));
        let parameters = std::mem::take(declare).build(config.dtype.kind(), device, draw);
        let (dtype, fused) = (config.dtype, device == Device::Cpu);
        Trained { parameters, time, decoder, by_role: false, encoder_ids, decoder_ids, dtype, fused }
    }

    /// A node has *two* embeddings, as a source and as a destination, side by side in `z: [R, 2 width]`.
    pub fn by_role(self, by_role: bool) -> Trained {
        Trained { by_role, ..self }
    }

    /// The same, products with rows taken in another way.
    pub fn multiplied_by(self, matmul: Matmul) -> Trained {
        Trained { parameters: self.parameters.multiplied_by(matmul), ..self }
    }

    /// See [`crate::Model::complete_once_scored`]: the decoder's parameters are the last ones.
    pub(crate) fn complete_once_scored(&self) -> i64 {
        let p = &self.parameters;
        self.decoder_ids.first().map_or(p.count(), |&id| p.start_of(id))
    }

    /// See [`crate::Model::score`].
    pub(crate) fn score(&mut self, z: &Tensor, pairs: &PairInput) -> Scored {
        if !self.by_role {
            return self.score_stacked(z, pairs);
        }
        let scored = self.score_stacked(&stacked(z), &pairs_of_stacked(z, pairs));
        let halves = scored.grad_z.chunk(2, 0);
        Scored { grad_z: Tensor::cat(&halves, 1), ..scored }
    }

    fn score_stacked(&mut self, z: &Tensor, pairs: &PairInput) -> Scored {
        let p = &mut self.parameters;
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
    pub(crate) fn logits(&self, z: &Tensor, pairs: &PairInput) -> (Tensor, Tensor) {
        let p = &self.parameters;
        no_grad(|| match self.by_role {
            false => self.decoder.forward(p, z, pairs),
            true => self.decoder.forward(p, &stacked(z), &pairs_of_stacked(z, pairs)),
        })
    }

    /// See [`crate::Model::backward`], for what autograd and the tape recorded.
    pub(crate) fn backward(&mut self, embedded: Embedded, grad_z: &Tensor) {
        let (p, Embedded { z, tape, .. }) = (&mut self.parameters, embedded);
        if z.requires_grad() {
            let product = (z * grad_z).sum(self.dtype.kind());
            let leaves: Vec<&Tensor> = tape.leaves().collect();
            let gradients = p.differentiate(&product, &self.encoder_ids, &leaves);
            self.time.differentiate(p, &tape, &gradients);
        }
    }

    /// See [`crate::Model::encode_mail_time`].
    pub(crate) fn encode_mail_time(&self, dt: &Tensor) -> Tensor {
        no_grad(|| self.time.encode(&self.parameters, dt, &mut Tape::default()))
    }
}

/// The embeddings as sources above those as destinations: `[R, 2 width]` as `[2 R, width]`.
fn stacked(z: &Tensor) -> Tensor {
    let width = z.size()[1] / 2;
    Tensor::cat(&[z.narrow(1, 0, width), z.narrow(1, width, width)], 0)
}

/// The same pairs, pointing into what [`stacked`] makes of `z`.
fn pairs_of_stacked(z: &Tensor, pairs: &PairInput) -> PairInput {
    let roots = z.size()[0];
    PairInput {
        source: pairs.source.shallow_clone(),
        destination: &pairs.destination + roots,
        negative: &pairs.negative + roots,
        events: pairs.events,
        loss: pairs.loss,
        seen: None,
    }
}
