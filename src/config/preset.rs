//! Presets: the choices of a published protocol under one name.
//!
//! A preset is the starting point; every key of the file and every `--set` overrides it. Results carry the preset's name
//! and the keys that differ from it.

use super::Config;
use crate::eval::{Average, NegativeKind, NewNode, StateBefore};
use crate::sampler::{HopTime, SameBatch, Strategy};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use tidemill_data::dataset::TimeOrigin;
use tidemill_data::negative::CandidateRule;
use tidemill_data::split::SplitBy;
use tidemill_models::input::LossReduction;
use tidemill_models::message::MessageTime;
use tidemill_models::optimizer::OptimizerKind;
use tidemill_models::time_encoder::TimeEncoding;
use tidemill_models::{DecoderInit, Embedding};

/// A named set of values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preset {
    /// Exact and safe defaults: strict causality, pooled metrics, fixed time encoder, negatives that avoid the positive.
    #[default]
    Tidemill,
    /// The choices of the TGN repository (Rossi et al., arXiv:2006.10637).
    Tgn2020,
    /// The choices of PyTorch Geometric's TGN example: attention with a skip, no query time, metrics averaged over batches.
    Pyg,
    /// The choices of TGL (Zhou et al., arXiv:2203.14883): batches of 600, negatives among all nodes.
    Tgl2022,
    /// The choices of DyGLib (Yu et al., arXiv:2303.13047): mean loss, 172 wide with a time code of 100.
    Dyglib2023,
    /// The choices of the Temporal Graph Benchmark (arXiv:2307.01026), version 2 of its sets: mean reciprocal rank among 999.
    TgbV2,
}

const NAMES: [(&str, Preset); 6] = [
    ("tidemill", Preset::Tidemill),
    ("tgn-2020", Preset::Tgn2020),
    ("pyg", Preset::Pyg),
    ("tgl-2022", Preset::Tgl2022),
    ("dyglib-2023", Preset::Dyglib2023),
    ("tgb-v2", Preset::TgbV2),
];

impl Preset {
    /// The name in files and results.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(_, preset)| *preset == self).expect("every preset has a name").0
    }

    /// The preset of a name, or why there is none.
    ///
    /// # Errors
    /// A sentence for the user: the name is unknown.
    pub fn from_name(name: &str) -> Result<Preset, String> {
        if let Some((_, preset)) = NAMES.iter().find(|(known, _)| *known == name) {
            return Ok(*preset);
        }
        let names: Vec<&str> = NAMES.iter().map(|(known, _)| *known).collect();
        let near = super::nearest(name, names.iter().copied()).unwrap_or("tidemill");
        Err(format!("there is no preset \"{name}\"; did you mean \"{near}\"? ({})", names.join(", ")))
    }

    /// Every value of the preset.
    pub fn config(self) -> Config {
        let config = Config { preset: self, ..Config::default() };
        match self {
            Preset::Tidemill => config,
            Preset::Tgn2020 => tgn_2020(config),
            Preset::Pyg => pyg(config),
            Preset::Tgl2022 => tgl_2022(config),
            Preset::Dyglib2023 => dyglib_2023(config),
            Preset::TgbV2 => tgb_v2(config),
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

/// What the published protocols have in common where the defaults do something else: a learned time encoder, times counted
/// from the file's zero, negatives that may be the true destination, metrics averaged over batches; and what they share with
/// the defaults but must not drift.
fn published(mut config: Config) -> Config {
    config.data.time_origin = TimeOrigin::Zero;
    config.split.by = SplitBy::Quantile;
    let tgn = &mut config.model.tgn;
    (tgn.layers, tgn.heads, tgn.dropout) = (1, 2, 0.1);
    tgn.time_encoder = TimeEncoding::Learned;
    config.sampler.strategy = Strategy::Recent;
    config.sampler.neighbors = vec![10];
    config.sampler.hop_time = HopTime::Edge;
    (config.train.batch_size, config.train.lr) = (200, 1e-4);
    config.train.optimizer = OptimizerKind::Adam;
    config.train.loss = LossReduction::Sum;
    config.train.avoid_positive = false;
    config.eval.average = Average::Batch;
    config
}

/// PyTorch Geometric's example. Kept different: a mail holds its sender's memory as it was, nodes without mail are not
/// updated, and pending mail is not applied to all nodes when evaluation starts.
fn pyg(config: Config) -> Config {
    let mut config = published(config);
    let tgn = &mut config.model.tgn;
    (tgn.memory_dim, tgn.time_dim, tgn.embedding_dim) = (100, 100, 100);
    tgn.time_encoder = TimeEncoding::Linear;
    tgn.message_time = MessageTime::Applied;
    tgn.embedding = Embedding::Transformer;
    tgn.root_time = false;
    tgn.decoder_init = DecoderInit::FanIn;
    config.sampler.same_batch = SameBatch::Hidden;
    (config.train.epochs, config.train.patience) = (50, 0);
    config.train.negatives = CandidateRule::IdRange;
    config.eval.candidates = CandidateRule::IdRange;
    config.eval.new_node = NewNode::Off;
    config
}

/// TGL's. Kept different: no layer norm after the attention, and the first epochs count as best ones too.
fn tgl_2022(config: Config) -> Config {
    let mut config = published(config);
    let tgn = &mut config.model.tgn;
    (tgn.memory_dim, tgn.time_dim, tgn.embedding_dim) = (100, 100, 100);
    tgn.dropout = 0.2;
    tgn.message_time = MessageTime::Applied;
    tgn.root_time = true;
    tgn.decoder_init = DecoderInit::FanIn;
    config.sampler.same_batch = SameBatch::Visible;
    (config.train.epochs, config.train.patience) = (100, 0);
    config.train.batch_size = 600;
    config.train.negatives = CandidateRule::AllNodes;
    config.eval.candidates = CandidateRule::AllNodes;
    config.eval.new_node = NewNode::Off;
    config.eval.state = StateBefore::Replayed;
    config
}

/// DyGLib's; `eval.negatives = "historical"` and `"inductive"` are its own too.
fn dyglib_2023(config: Config) -> Config {
    let mut config = published(config);
    config.split.new_node_share = 0.1;
    let tgn = &mut config.model.tgn;
    (tgn.memory_dim, tgn.time_dim, tgn.embedding_dim) = (172, 100, 172);
    tgn.message_time = MessageTime::Stored;
    tgn.root_time = true;
    config.sampler.same_batch = SameBatch::Visible;
    (config.train.epochs, config.train.patience) = (100, 20);
    config.train.negatives = CandidateRule::TrainDestinations;
    config.train.loss = LossReduction::Mean;
    config.eval.candidates = CandidateRule::StreamDestinations;
    config.eval.new_node = NewNode::SeparatePass;
    config
}

/// The Temporal Graph Benchmark's example, which is PyTorch Geometric's, ranked one against many.
fn tgb_v2(config: Config) -> Config {
    let mut config = pyg(config);
    config.train.patience = 5;
    config.eval.negatives = NegativeKind::Tgb;
    config.eval.candidates = CandidateRule::StreamDestinations;
    config.eval.candidates_per_event = 999;
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
