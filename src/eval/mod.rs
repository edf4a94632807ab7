//! Link prediction: how well the model ranks the events that happened above those that were drawn.

pub mod breakdown;
mod config;
mod link_prediction;
pub mod metrics;
pub mod ranking;

pub use breakdown::Breakdown;
pub use config::{Average, EvalConfig, NegativeKind, NewNode, StateBefore};
pub use link_prediction::{SplitMetrics, SplitScores, SubsetMetrics, touches};
pub use metrics::{Class, LinkMetrics, LinkScores, NonFiniteScore, Ranking, Score, rank};
pub use ranking::{Mrr, RankedEvent};
