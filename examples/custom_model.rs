//! A model of one's own in Tidemill's trainer: `cargo run --release --example custom_model -- events.csv`.
//!
//! No memory update, no attention: an embedding is a linear map of how long ago the node's last few neighbors were met. It
//! shows what a model has to bring (parameters, embed, score, backward) and what it gets for it: sampling, batches, evaluation.
//! A model with memory, or whose links the decoder of TGN scores, is shorter as a `tidemill_models::Encoder`.

use tch::{Device, Kind, Tensor};
use tidemill::trainer::PhiloxDraw;
use tidemill::{Config, Trainer};
use tidemill_models::input::{Embedded, ModelInput, PairInput, Scored};
use tidemill_models::loss::link_loss;
use tidemill_models::model::{Mode, Model, StateSpec};
use tidemill_models::parameters::{Declarations, Init, ParameterId, Parameters};

const WIDTH: i64 = 16;

struct Recency {
    parameters: Parameters,
    map: ParameterId,
    neighbors: i64,
}

impl Recency {
    fn new(config: &Config, device: Device) -> Recency {
        let neighbors = config.sampler.neighbors[0] as i64;
        let mut declare = Declarations::default();
        let map = declare.add("map", &[WIDTH, neighbors], Init::xavier_uniform(neighbors, WIDTH));
        let parameters = declare.build(Kind::Float, device, &PhiloxDraw::new(config.seed));
        Recency { parameters, map, neighbors }
    }

    /// Logits of the true and of the negative pairs, `([B], [B * n])`.
    fn dot(z: &Tensor, pairs: &PairInput) -> (Tensor, Tensor) {
        let [source, destination, negative] =
            [&pairs.source, &pairs.destination, &pairs.negative].map(|index| z.index_select(0, index));
        let dot = |a: &Tensor, b: &Tensor| (a * b).sum_dim_intlist([1i64].as_slice(), false, Kind::Float);
        (dot(&source, &destination), dot(&source, &negative))
    }
}

impl Model for Recency {
    fn spec(&self) -> StateSpec {
        StateSpec { embedding_dim: WIDTH, layers: 1, ..StateSpec::default() }
    }

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn parameters_mut(&mut self) -> &mut Parameters {
        &mut self.parameters
    }

    fn embed(&self, input: &ModelInput, mode: Mode) -> Embedded {
        let layer = &input.layers[0];
        let recency = (layer.dt.log1p() / -5.0).exp() * layer.valid.to_kind(Kind::Float); // [R, K], 1 for just now
        let embed = || recency.matmul(&self.parameters[self.map].tr()).tanh(); // [R, WIDTH]
        let z = if mode == Mode::Train { embed() } else { tch::no_grad(embed) };
        assert_eq!(recency.size()[1], self.neighbors);
        Embedded::new(z, input.memory.shallow_clone())
    }

    fn score(&mut self, z: &Tensor, pairs: &PairInput) -> Scored {
        let z = z.detach().set_requires_grad(true);
        let (positive, negative) = Recency::dot(&z, pairs);
        let loss = link_loss(&positive, &negative, pairs.events, pairs.loss);
        let grad_z = Tensor::run_backward(&[&loss], &[&z], false, false).remove(0);
        Scored { positive: positive.detach(), negative: negative.detach(), loss: loss.double_value(&[]), grad_z }
    }

    fn logits(&self, z: &Tensor, pairs: &PairInput) -> (Tensor, Tensor) {
        tch::no_grad(|| Recency::dot(z, pairs))
    }

    fn backward(&mut self, embedded: Embedded, grad_z: &Tensor) {
        let scalar = (&embedded.z * grad_z).sum(Kind::Float);
        self.parameters.differentiate(&scalar, &[self.map], &[]);
    }
}

fn main() -> tidemill::Result<()> {
    let mut config = Config::default();
    config.data.path =
        std::env::args_os().nth(1).unwrap_or_else(|| "data/cache/synthetic-wikipedia.arrow".into()).into();
    (config.train.epochs, config.train.lr) = (2, 1e-2);
    let stream = tidemill_data::load(&config.data, &mut |notice| eprintln!("{notice}"))?;
    let mut trainer =
        Trainer::with_model(config, stream, |config, _, device| Ok(Box::new(Recency::new(config, device))))?;
    let test = trainer.fit()?.test.expect("a finished run has been tested");
    eprintln!("test AP {:.4}, AUC {:.4}", test.links.ap, test.links.auc);
    Ok(())
}
