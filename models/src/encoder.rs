//! What is a model's own: how mail changes a row, and how a root is embedded. All else of [`Model`] is the same for all encoders
//! whose links the shared decoder scores, and written here, once.
//!
//! A model that scores links in another way, or learns nothing, implements [`Model`] itself.

use tch::{Tensor, no_grad};

use crate::input::{Embedded, MailInput, ModelInput, PairInput, Scored};
use crate::model::{Mode, Model, StateSpec};
use crate::parameters::Parameters;
use crate::time_encoder::Tape;
use crate::trained::Trained;

/// The equations of a paper: memory update and embedding.
pub trait Encoder: Send {
    /// What the pipeline must keep and read for this model.
    fn spec(&self) -> StateSpec;

    /// Parameters, time encoder and link decoder.
    fn trained(&self) -> &Trained;

    /// The same, to be trained.
    fn trained_mut(&mut self) -> &mut Trained;

    /// Rows with pending mail applied; as they are for a model whose mail changes no row.
    ///
    /// * `memory`: `[N, D_m]` float. * `mail`: of those rows. * returns `[N, D_m]`.
    fn updated_rows(&self, memory: &Tensor, _mail: &MailInput, _tape: &mut Tape) -> Tensor {
        memory.shallow_clone()
    }

    /// Applies pending mail and embeds the roots, under autograd; time codes are made on the tape.
    fn forward(&self, input: &ModelInput, tape: &mut Tape) -> Embedded;

    /// The same without autograd, if the encoder can do this input so.
    fn embed_without_autograd(&self, _input: &ModelInput, _mode: Mode) -> Option<Embedded> {
        None
    }

    /// Adds the gradients of a pass that was made without autograd.
    fn backward_without_autograd(&mut self, _embedded: Embedded, _grad_z: &Tensor) {
        unreachable!("this encoder makes no pass without autograd")
    }
}

impl<E: Encoder> Model for E {
    fn spec(&self) -> StateSpec {
        Encoder::spec(self)
    }

    fn parameters(&self) -> &Parameters {
        &self.trained().parameters
    }

    fn parameters_mut(&mut self) -> &mut Parameters {
        &mut self.trained_mut().parameters
    }

    fn embed(&self, input: &ModelInput, mode: Mode) -> Embedded {
        let forward = |mut tape: Tape| {
            let embedded = self.forward(input, &mut tape);
            Embedded { tape, ..embedded }
        };
        self.embed_without_autograd(input, mode).unwrap_or_else(|| match mode {
            Mode::Train => forward(Tape::recording()),
            Mode::Eval => no_grad(|| forward(Tape::default())),
        })
    }

    fn apply_mail(&self, memory: &Tensor, mail: &MailInput) -> Tensor {
        no_grad(|| self.updated_rows(memory, mail, &mut Tape::default()))
    }

    fn score(&mut self, z: &Tensor, pairs: &PairInput) -> Scored {
        self.trained_mut().score(z, pairs)
    }

    fn complete_once_scored(&self) -> i64 {
        self.trained().complete_once_scored()
    }

    fn logits(&self, z: &Tensor, pairs: &PairInput) -> (Tensor, Tensor) {
        self.trained().logits(z, pairs)
    }

    fn backward(&mut self, embedded: Embedded, grad_z: &Tensor) {
        match embedded.trace {
            Some(_) => self.backward_without_autograd(embedded, grad_z),
            None => self.trained_mut().backward(embedded, grad_z),
        }
    }

    fn encode_mail_time(&self, dt: &Tensor) -> Tensor {
        self.trained().encode_mail_time(dt)
    }
}
