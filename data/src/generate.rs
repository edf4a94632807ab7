//! Synthetic.
use crate::error::Result;
use crate::stream::EventStream;
use serde::{Deserialize, Serialize};

/// Shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// Users edit pages.
    #[default]
    Wikipedia,
    /// Users post to subreddits.
    Reddit,
}

/// Config.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerateConfig {
    /// Shape.
    pub preset: Preset,
    /// Events; absent: the preset's.
    pub events: Option<usize>,
    /// Nodes; absent: the preset's.
    pub nodes: Option<usize>,
    /// Width D_e.
    pub features: usize,
    /// Seed.
    pub seed: u64,
}

/// Generates.
///
/// # Errors
/// x
pub fn generate(_config: &GenerateConfig) -> Result<EventStream> {
    unimplemented!()
}
