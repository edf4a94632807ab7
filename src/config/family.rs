//! What a model's name implies: values of keys that nobody set, and which keys have no meaning for it.
//!
//! A preset is made for TGN; under another model's name some of its values would be impossible (JODIE has no attention to drop
//! weights of) or not that model at all (TGAT samples uniformly, in two layers). They stand between the preset and the keys
//! that the user sets, and results name neither.

use super::{Config, ModelName, Preset};
use crate::sampler::{HopTime, Latest, Strategy};
use tidemill_models::memory_updater::Updater;
use tidemill_models::message::Aggregator;
use tidemill_models::tgat::{Merge, NoNeighbors, Query};

impl Preset {
    /// Every value of the preset for a model.
    pub fn config_for(self, model: ModelName) -> Config {
        let mut config = self.config();
        config.model.name = model;
        match model {
            ModelName::Tgn => {}
            ModelName::Tgat => tgat(self, &mut config),
            ModelName::Jodie => {
                row_as_embedding(&mut config);
                (config.model.tgn.updater, config.model.tgn.dropout) = (Updater::Rnn, 0.0);
            }
            ModelName::Dyrep => {
                row_as_embedding(&mut config);
                config.model.tgn.updater = Updater::Rnn;
            }
            ModelName::Apan => {
                row_as_embedding(&mut config);
                (config.model.tgn.aggregator, config.model.tgn.dropout) = (Aggregator::Mean, 0.0);
            }
            ModelName::Edgebank => {
                (config.train.epochs, config.model.tgn.layers) = (1, 1);
                config.sampler.neighbors = vec![10];
            }
        }
        config
    }
}

/// Two layers of 20 uniform neighbors, each at its edge's time; in `tgn-2020` what TGAT's own code does.
fn tgat(preset: Preset, config: &mut Config) {
    config.model.tgn.layers = 2;
    config.model.tgn.root_time = true;
    config.sampler.strategy = Strategy::Uniform;
    config.sampler.neighbors = vec![20, 20];
    config.sampler.hop_time = HopTime::Edge;
    let tgat = &mut config.model.tgat;
    if preset == Preset::Tgn2020 {
        config.sampler.latest = Latest::Dropped;
        (tgat.no_neighbors, tgat.query, tgat.merge) = (NoNeighbors::Padding, Query::EdgeSlot, Merge::Previous);
    }
}

/// One layer, and an embedding as wide as the row.
fn row_as_embedding(config: &mut Config) {
    let tgn = &mut config.model.tgn;
    (tgn.layers, tgn.embedding_dim, tgn.root_time) = (1, tgn.memory_dim, true);
    config.sampler.neighbors.truncate(1);
}

const TGN: &[ModelName] = &[ModelName::Tgn];
const TGAT: &[ModelName] = &[ModelName::Tgat];
const JODIE: &[ModelName] = &[ModelName::Jodie];
const DYREP: &[ModelName] = &[ModelName::Dyrep];
const APAN: &[ModelName] = &[ModelName::Apan];
const EDGEBANK: &[ModelName] = &[ModelName::Edgebank];
const ROW_UPDATERS: &[ModelName] = &[ModelName::Tgn, ModelName::Jodie, ModelName::Dyrep];
const RECURRENT: &[ModelName] = &[ModelName::Jodie, ModelName::Dyrep];
const MAILING: &[ModelName] = &[ModelName::Tgn, ModelName::Jodie, ModelName::Dyrep, ModelName::Apan];

/// Keys of `[model]` that only some models have.
pub(super) const OWN_KEYS: &[(&str, &[ModelName])] = &[
    ("model.message_time", ROW_UPDATERS),
    ("model.aggregator", MAILING),
    ("model.mail_order", MAILING),
    ("model.updater", ROW_UPDATERS),
    ("model.embedding", TGN),
    ("model.matmul", TGN),
    ("model.root_time", &[ModelName::Tgn, ModelName::Dyrep]),
    ("model.dropout", &[ModelName::Tgn, ModelName::Tgat, ModelName::Dyrep]),
    ("model.message", RECURRENT),
    ("model.no_mail", RECURRENT),
    ("model.no_neighbors", TGAT),
    ("model.query", TGAT),
    ("model.merge", TGAT),
    ("model.layer_norm", TGAT),
    ("model.projection_bias", TGAT),
    ("model.gap", JODIE),
    ("model.row_norm", JODIE),
    ("model.score", DYREP),
    ("model.mail", APAN),
    ("model.mail_slots", APAN),
    ("model.deliver", APAN),
    ("model.empty_slots", APAN),
    ("model.slot_attention", APAN),
    ("model.position", APAN),
    ("model.edge_memory", EDGEBANK),
    ("model.edge_window", EDGEBANK),
];
