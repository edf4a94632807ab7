//! The event stream of Tidemill: where temporal interactions come from and how they are named, split and drawn.
//!
//! ```text
//!  csv, Arrow --dataset--> EventStream --split--> train | val | test --batch--> Batch k
//!                 ^             |                        |
//!  generate ------+         stream (Arrow IPC)       negative (candidates, Philox draws)
//! ```
//!
//! Reading order: [`id`], [`stream`], [`dataset`], [`split`], [`batch`], [`negative`]; then [`philox`], [`mod@generate`],
//! [`statistics`], [`drawing`], [`export`]. Shape letters: E events, N nodes, D_e edge feature, D_v node feature, B events in a batch.
//!
//! This crate knows no tensors, no models and no ranks: it builds and tests without libtorch.

pub mod batch;
pub mod dataset;
pub mod drawing;
pub mod error;
pub mod export;
pub mod generate;
pub mod id;
pub mod negative;
pub mod node_set;
mod npy;
pub mod philox;
pub mod split;
pub mod statistics;
pub mod stream;

pub use batch::{Batch, Batches};
pub use dataset::{Columns, DataConfig, Report, TimeOrigin, Watch, check, load, load_watched};
pub use error::{Error, Fault, FaultKind, Result};
pub use export::write_csv;
pub use generate::{GenerateConfig, Preset, generate};
pub use id::{EventId, NodeId, Timestamp};
pub use negative::{CandidateRule, CandidateSets, EdgeRule, EdgeSampler, NegativeSampler, Scored};
pub use node_set::NodeSet;
pub use philox::{Key, Purpose};
pub use split::{Split, SplitBy, SplitConfig};
pub use statistics::Statistics;
pub use stream::{Chunk, Endpoint, EventStream, IdMap, RawId, StreamMeta, Tick, TimeUnit};
