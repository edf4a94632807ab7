//! Tidemill trains memory-based temporal graph neural networks (TGN and its kin) on event streams.
//!
//! ```text
//!            tidemill-data                       tidemill-models
//!  csv -> event stream, splits, negatives    embed -> score -> backward
//!               |                                      ^      |
//!               v                                      |      v
//!   [graph] T-CSR -> [sampler] blocks      +-----------+----------------+
//!               |                          | [trainer]  the one loop     |
//!               v                          +-----------+----------------+
//!  [pipeline]  1 event  ->  2 state  ->  3 gradient  ->  4 sync
//!                plan      [memory] rows     |   state commit     |  parameter commit
//!                             ^--------------+                    v  to [trainer]
//! ```
//!
//! Reading order: `main` -> [`cli`] -> [`trainer::Trainer::fit`], then [`pipeline`], [`memory`], [`sampler`], [`graph`]; the
//! models have a crate of their own, one file each. Arrows between modules point down only: cli, config; bench; trainer, eval;
//! pipeline; dependency, replay, boundary, gradient; graph, sampler, partition, memory; comms, device, stats, error.
//!
//! Letters for shapes: B events in a batch, N rows in a block, E sampled edges, K fanout, R roots, Q mails, H heads,
//! D_m memory, D_p mail payload, D_e edge feature, D_v node feature, D_t time code, D_emb embedding, P ranks.

pub mod bench;
pub mod boundary;
pub mod byte_size;
pub mod cli;
pub mod comms;
pub mod config;
pub mod dependency;
pub mod device;
pub mod error;
pub mod eval;
pub mod gradient;
pub mod graph;
pub mod memory;
pub mod partition;
pub mod pipeline;
pub mod queue;
pub mod replay;
pub mod sampler;
pub mod setting;
pub mod stats;
pub mod trainer;

pub use config::Config;
pub use error::{Error, Result};
pub use trainer::Trainer;
