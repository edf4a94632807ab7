//! What the rows, embeddings and features of the configured model cost to send and to replay.

use super::{family, setup};
use crate::config::Config;
use crate::dependency::{Costs, Weights};
use crate::error::Result;
use crate::memory::StateShape;
use crate::pipeline::wire;
use tidemill_data::split::Split;
use tidemill_data::stream::EventStream;
use tidemill_models::model::StateSpec;

/// The costs of a run on several ranks, at the rates of `[calibration]`, before there is such a run.
///
/// # Errors
/// A model that is impossible.
pub fn expected(config: &Config, stream: &EventStream, split: &Split) -> Result<(Costs, Weights)> {
    let device = tch::Device::Cpu;
    let spec = family::make(config, stream, split, device)?.spec();
    Ok(of(config, &spec, setup::state_shape(&spec, stream, device), stream))
}

/// The costs of rows of a shape.
pub(super) fn of(config: &Config, spec: &StateSpec, shape: StateShape, stream: &EventStream) -> (Costs, Weights) {
    let float = shape.kind.elt_size_in_bytes() as u64;
    let (row, embedding) = (wire::row_bytes(shape, stream.feature_dim()), spec.embedding_dim as u64 * float);
    let costs = Costs {
        rates: config.calibration,
        alpha: config.dependency.alpha,
        beta: config.dependency.beta,
        row,
        memory: shape.memory_dim as u64 * float,
        embedding,
    };
    let feature = 4 * stream.feature_dim() as u64;
    (costs, Weights { row, embedding, feature, cache: config.dependency.cache_bytes.0 })
}
