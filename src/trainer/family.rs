//! From a configuration to its model, and what a model needs to know of the stream.

use super::PhiloxDraw;
use crate::config::{Config, ModelName};
use crate::error::Result;
use crate::sampler::HopTime;
use crate::sampler::edge_memory::{EdgeMemory, Window};
use std::sync::Arc;
use tidemill_data::id::{EventId, Timestamp};
use tidemill_data::split::Split;
use tidemill_data::stream::EventStream;
use tidemill_models::edgebank;
use tidemill_models::jodie::Gap;
use tidemill_models::model::{Model, StateSpec};
use tidemill_models::tgn::{FeatureDims, Tgn};
use tidemill_models::{Apan, Dyrep, EdgeBank, GapStatistics, Jodie, Tgat};

/// The model of a configuration, its parameters drawn.
pub(super) fn make(
    config: &Config,
    stream: &EventStream,
    split: &Split,
    device: tch::Device,
) -> Result<Box<dyn Model>> {
    let features = FeatureDims { edge: stream.feature_dim() as i64, node: stream.node_feature_dim() as i64 };
    let draw = PhiloxDraw::new(config.seed);
    let (model, tgn) = (&config.model, &config.model.tgn);
    Ok(match model.name {
        ModelName::Tgn => Box::new(Tgn::new(tgn, features, &draw, device)?),
        ModelName::Tgat => {
            let at_root_time = config.sampler.hop_time == HopTime::Root;
            Box::new(Tgat::new(tgn, model.tgat, at_root_time, features, &draw, device)?)
        }
        ModelName::Jodie => {
            let statistics = gap_statistics(config, stream, split);
            Box::new(Jodie::new(tgn, (model.recurrent, model.jodie), statistics, features, &draw, device)?)
        }
        ModelName::Dyrep => Box::new(Dyrep::new(tgn, (model.recurrent, model.dyrep), features, &draw, device)?),
        ModelName::Apan => Box::new(Apan::new(tgn, model.apan, features, &draw, device)?),
        ModelName::Edgebank => Box::new(EdgeBank::new(model.edgebank, &draw, device)?),
    })
}

/// Gaps of the events that `model.gap` names.
fn gap_statistics(config: &Config, stream: &EventStream, split: &Split) -> GapStatistics {
    let origin = config.data.time_origin.of(stream);
    match config.model.jodie.gap {
        Gap::Train => gaps_of(stream, origin, split.train.iter().copied()),
        Gap::Stream => gaps_of(stream, origin, (0..stream.len() as u32).map(EventId)),
        Gap::Ratio | Gap::None => GapStatistics { mean: [0.0; 2], deviation: [1.0; 2] },
    }
}

/// Mean and population standard deviation, in seconds, of the gaps between a node's events in the same role.
fn gaps_of(stream: &EventStream, origin: Timestamp, events: impl Iterator<Item = EventId> + Clone) -> GapStatistics {
    let of = |destination: bool| {
        let mut last = vec![origin; stream.nodes() as usize];
        let gap = |event: EventId| {
            let node = if destination { stream.destination(event) } else { stream.source(event) };
            let before = std::mem::replace(&mut last[node.index()], stream.time(event));
            stream.tick().seconds(stream.time(event).0 - before.0)
        };
        let gaps: Vec<f64> = events.clone().map(gap).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len().max(1) as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len().max(1) as f64;
        (mean, variance.sqrt())
    };
    let (source, destination) = (of(false), of(true));
    GapStatistics { mean: [source.0, destination.0], deviation: [source.1, destination.1] }
}

/// The memory of `events`, for a model that asks for one.
pub(super) fn edge_memory(
    spec: &StateSpec,
    config: &Config,
    stream: &EventStream,
    split: &Split,
    events: &[EventId],
) -> Option<Arc<EdgeMemory>> {
    let rule = spec.edge_memory?;
    let window = match rule.edge_memory {
        edgebank::EdgeMemory::Unlimited => Window::All,
        edgebank::EdgeMemory::Window => Window::Latest(rule.edge_window),
        edgebank::EdgeMemory::FixedWindow => Window::lasting(stream, &split.train, rule.edge_window),
    };
    Some(Arc::new(EdgeMemory::new(stream, events, window, config.sampler.same_batch)))
}
