//! Link prediction: how well the model ranks the events that happened above those that were drawn.

mod config;
mod link_prediction;
pub mod metrics;

pub use config::{Average, EvalConfig, NegativeKind, NewNode};
pub use link_prediction::{SplitMetrics, SplitScores, touches};
pub use metrics::{Class, LinkMetrics, LinkScores, NonFiniteScore, Ranking, Score, rank};
