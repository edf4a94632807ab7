//! EdgeBank (Poursafaei et al., NeurIPS 2022, arXiv:2207.10128): an edge that was seen will be seen again. It learns nothing,
//! and is the floor that learned models are held against.
//!
//! `score(s, d) = 1` if the pair (s, d), in this direction, is in the memory of past edges, else 0 (section 4). The memory is a
//! function of the stream alone, so it is no state: the caller answers by looking the pair up among the events that the batch may
//! see, and hands in the answers as [`crate::PairInput::seen`]. Which events count is the rule [`EdgeMemory`].
//!
//! The loss is the share of true pairs unseen plus that of negatives seen; it has no gradient, and there are no parameters.

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use crate::error::Result;
use crate::input::{Embedded, LossReduction, ModelInput, PairInput, Scored};
use crate::model::{Mode, Model, StateSpec};
use crate::parameters::{Declarations, Draw, Parameters};
use crate::tgn::require;

/// Which past edges are remembered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EdgeMemory {
    /// All.
    #[default]
    Unlimited,
    /// Those of the latest `edge_window` of all past events: from that quantile of their times on (EdgeBank's and DyGLib's code).
    Window,
    /// Those not older, at the latest past event, than the latest `edge_window` of the training events lasted (TGB's code).
    FixedWindow,
}

/// EdgeBank's keys of the `[model]` table.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EdgeBankConfig {
    /// Which past edges are remembered.
    pub edge_memory: EdgeMemory,
    /// The share of events that a window holds.
    pub edge_window: f64,
}

impl Default for EdgeBankConfig {
    fn default() -> EdgeBankConfig {
        EdgeBankConfig { edge_memory: EdgeMemory::Unlimited, edge_window: 0.15 }
    }
}

impl EdgeBankConfig {
    /// Refuses an impossible window.
    ///
    /// # Errors
    /// [`crate::Error::InvalidConfig`], naming the key and the mend.
    pub fn validate(&self) -> Result<()> {
        let share = self.edge_window;
        require(share > 0.0 && share <= 1.0, "edge_window", share, "it is a share of the events", "write 0.15")
    }
}

/// The model: no parameters, no state.
pub struct EdgeBank {
    config: EdgeBankConfig,
    parameters: Parameters,
    device: Device,
}

impl EdgeBank {
    /// The model of a rule.
    ///
    /// # Errors
    /// If the configuration is impossible.
    pub fn new(config: EdgeBankConfig, draw: &dyn Draw, device: Device) -> Result<EdgeBank> {
        config.validate()?;
        Ok(EdgeBank { config, parameters: Declarations::default().build(Kind::Float, device, draw), device })
    }
}

impl Model for EdgeBank {
    fn spec(&self) -> StateSpec {
        StateSpec { edge_memory: Some(self.config), ..StateSpec::default() }
    }

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn parameters_mut(&mut self) -> &mut Parameters {
        &mut self.parameters
    }

    fn embed(&self, input: &ModelInput, _: Mode) -> Embedded {
        let roots = input.layers[0].root.size()[0];
        Embedded::new(Tensor::zeros([roots, 0], (Kind::Float, self.device)), input.memory.shallow_clone())
    }

    fn score(&mut self, z: &Tensor, pairs: &PairInput) -> Scored {
        let (positive, negative) = self.logits(z, pairs);
        let per_event = (negative.numel() / positive.numel().max(1)).max(1) as f64;
        let half = if pairs.loss == LossReduction::Mean { 0.5 } else { 1.0 };
        let missed = positive.numel() as f64 - positive.sum(Kind::Double).double_value(&[]);
        let seen = negative.sum(Kind::Double).double_value(&[]) / per_event;
        Scored { positive, negative, loss: half * (missed + seen) / pairs.events, grad_z: z.zeros_like() }
    }

    fn logits(&self, _: &Tensor, pairs: &PairInput) -> (Tensor, Tensor) {
        let [positive, negative] = pairs.seen.as_ref().expect("the caller looks pairs up for this model");
        (positive.shallow_clone(), negative.shallow_clone())
    }

    fn backward(&mut self, _: Embedded, _: &Tensor) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    struct NoDraw;

    impl Draw for NoDraw {
        fn uniform(&self, _: &str, _: u64) -> f64 {
            unreachable!("there are no parameters")
        }

        fn normal(&self, _: &str, _: u64) -> f64 {
            unreachable!("there are no parameters")
        }
    }

    /// Three of four true pairs were seen, and one of eight negatives.
    #[test]
    fn the_loss_counts_wrong_answers() {
        let mut model = EdgeBank::new(EdgeBankConfig::default(), &NoDraw, Device::Cpu).expect("possible");
        let index = |n: i64| Tensor::zeros([n], (Kind::Int64, Device::Cpu));
        let seen = [vec![1f32, 0.0, 1.0, 1.0], vec![0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]];
        let pairs = PairInput {
            source: index(4),
            destination: index(4),
            negative: index(8),
            events: 4.0,
            loss: LossReduction::Sum,
            seen: Some(seen.map(|x| Tensor::from_slice(&x))),
        };
        let z = Tensor::zeros([1, 0], (Kind::Float, Device::Cpu));
        assert_eq!(model.score(&z, &pairs).loss, 0.25 + 0.125);
        assert_eq!(model.parameters().count(), 0);
        let config = EdgeBankConfig { edge_window: 0.0, ..EdgeBankConfig::default() };
        assert!(config.validate().expect_err("empty").to_string().starts_with("model.edge_window = 0: "));
    }
}
