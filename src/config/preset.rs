//! Presets: the choices of a published protocol under one name.
//!
//! A preset is the starting point; every key of the file and every `--set` overrides it. Results carry the preset's name
//! and the keys that differ from it.

use super::Config;
use crate::eval::{Average, NewNode};
use crate::sampler::{HopTime, SameBatch, Strategy};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use tidemill_data::dataset::TimeOrigin;
use tidemill_data::negative::CandidateRule;
use tidemill_data::split::SplitBy;
use tidemill_models::message::MessageTime;
use tidemill_models::optimizer::OptimizerKind;
use tidemill_models::time_encoder::TimeEncoding;

/// A named set of values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preset {
    /// Exact and safe defaults: strict causality, pooled metrics, fixed time encoder, negatives that avoid the positive.
    #[default]
    Tidemill,
    /// The choices of the TGN repository (Rossi et al., arXiv:2006.10637).
    Tgn2020,
}

const NAMES: [(&str, Preset); 2] = [("tidemill", Preset::Tidemill), ("tgn-2020", Preset::Tgn2020)];
/// Named by the documentation, not made yet.
const LATER: [&str; 4] = ["pyg", "dyglib-2023", "tgl-2022", "tgb-v2"];

impl Preset {
    /// The name in files and results.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(_, preset)| *preset == self).expect("every preset has a name").0
    }

    /// The preset of a name, or why there is none.
    ///
    /// # Errors
    /// A sentence for the user: the name is unknown, or comes with a later release.
    pub fn from_name(name: &str) -> Result<Preset, String> {
        if let Some((_, preset)) = NAMES.iter().find(|(known, _)| *known == name) {
            return Ok(*preset);
        }
        if LATER.contains(&name) {
            return Err(format!("the preset \"{name}\" comes with a later release; set \"tidemill\" or \"tgn-2020\""));
        }
        let near = super::nearest(name, NAMES.iter().map(|(known, _)| *known)).unwrap_or("tidemill");
        Err(format!("there is no preset \"{name}\"; did you mean \"{near}\"? (tidemill, tgn-2020)"))
    }

    /// Every value of the preset.
    pub fn config(self) -> Config {
        let config = Config { preset: self, ..Config::default() };
        match self {
            Preset::Tidemill => config,
            Preset::Tgn2020 => tgn_2020(config),
        }
    }
}

/// What the TGN repository does where the defaults do something else, and what it does like them but must not drift.
fn tgn_2020(mut config: Config) -> Config {
    config.data.time_origin = TimeOrigin::Zero;
    config.split.by = SplitBy::Quantile;
    config.split.new_node_share = 0.1;
    let tgn = &mut config.model.tgn;
    (tgn.memory_dim, tgn.time_dim, tgn.embedding_dim) = (172, 172, 172);
    (tgn.layers, tgn.heads, tgn.dropout) = (1, 2, 0.1);
    tgn.time_encoder = TimeEncoding::Learned;
    tgn.message_time = MessageTime::Stored;
    tgn.root_time = true;
    config.sampler.strategy = Strategy::Recent;
    config.sampler.neighbors = vec![10];
    config.sampler.same_batch = SameBatch::Visible;
    config.sampler.hop_time = HopTime::Root;
    (config.train.epochs, config.train.patience) = (50, 5);
    (config.train.batch_size, config.train.lr) = (200, 1e-4);
    config.train.optimizer = OptimizerKind::Adam;
    config.train.negatives = CandidateRule::TrainDestinations;
    config.train.avoid_positive = false;
    config.eval.candidates = CandidateRule::StreamDestinations;
    config.eval.average = Average::Batch;
    config.eval.new_node = NewNode::SeparatePass;
    config
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Preset {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Preset {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Preset, D::Error> {
        Preset::from_name(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}
