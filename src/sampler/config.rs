//! The `[sampler]` table of a configuration.

use crate::byte_size::ByteSize;
use serde::{Deserialize, Serialize};

/// Which of a root's visible entries become its neighbors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// The latest K (TGN's choice).
    #[default]
    Recent,
    /// The first K (TGAT's code without its uniform draws).
    Oldest,
    /// K independent uniform draws, with replacement (TGAT's choice).
    Uniform,
}

/// Whether a root sees earlier events of its own batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SameBatch {
    /// No: only events before the global batch's first.
    #[default]
    Hidden,
    /// Yes, if strictly earlier in time.
    Visible,
}

/// Whether a root sees the newest event that it may see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Latest {
    /// Yes.
    #[default]
    Visible,
    /// No: all but that one (TGAT's code).
    Dropped,
}

/// The time at which a neighbor is itself sampled, one hop deeper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HopTime {
    /// The time of the edge that led to it (TGAT).
    #[default]
    Edge,
    /// The time of the root (TGN's code).
    Root,
}

/// How neighbors are sampled. Defaults are those of the `tidemill` preset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplerConfig {
    /// Which neighbors.
    pub strategy: Strategy,
    /// How many per root: K of each hop, the roots' own hop first.
    pub neighbors: Vec<usize>,
    /// Whether a batch's own events are visible.
    pub same_batch: SameBatch,
    /// Whether the newest visible event is.
    pub latest: Latest,
    /// The time of deeper hops.
    pub hop_time: HopTime,
    /// Whether samples of positive roots are kept from one epoch to the next (`recent` only).
    pub cache: bool,
    /// Bound on the kept samples.
    pub cache_bytes: ByteSize,
}

impl Default for SamplerConfig {
    fn default() -> SamplerConfig {
        SamplerConfig {
            strategy: Strategy::default(),
            neighbors: vec![10],
            same_batch: SameBatch::default(),
            latest: Latest::default(),
            hop_time: HopTime::default(),
            cache: true,
            cache_bytes: ByteSize(1 << 30),
        }
    }
}

/// An impossible `[sampler]` table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SamplerConfigError {
    /// No hop at all.
    #[error("sampler.neighbors is empty: give one number per layer of the model, as in `neighbors = [10]`")]
    NoHop,
    /// A hop that samples nothing, or more than a slot number holds.
    #[error("sampler.neighbors[{hop}] = {neighbors}: each hop samples 1 to {max} neighbors a root", max = u16::MAX)]
    Fanout {
        /// Which hop, from 0.
        hop: usize,
        /// What was asked for.
        neighbors: usize,
    },
}

impl SamplerConfig {
    /// Number of hops.
    pub fn hops(&self) -> usize {
        self.neighbors.len()
    }

    /// # Errors
    /// If `neighbors` is empty or one of its numbers is outside `1..=65535`.
    pub fn validate(&self) -> Result<(), SamplerConfigError> {
        if self.neighbors.is_empty() {
            return Err(SamplerConfigError::NoHop);
        }
        match self.neighbors.iter().position(|&k| k == 0 || k > usize::from(u16::MAX)) {
            Some(hop) => Err(SamplerConfigError::Fanout { hop, neighbors: self.neighbors[hop] }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_documented_table() {
        let text = r#"
            strategy = "uniform"
            neighbors = [20, 10]
            same_batch = "visible"
            latest = "dropped"
            hop_time = "root"
            cache = false
            cache_bytes = "64MiB"
        "#;
        let config: SamplerConfig = toml::from_str(text).unwrap();
        let want = SamplerConfig {
            strategy: Strategy::Uniform,
            neighbors: vec![20, 10],
            same_batch: SameBatch::Visible,
            latest: Latest::Dropped,
            hop_time: HopTime::Root,
            cache: false,
            cache_bytes: ByteSize(64 << 20),
        };
        assert_eq!(config, want);
        assert_eq!(toml::from_str::<SamplerConfig>(&toml::to_string(&config).unwrap()).unwrap(), want);
        assert_eq!(toml::from_str::<SamplerConfig>("").unwrap(), SamplerConfig::default());
    }

    #[test]
    fn refuses_the_impossible() {
        for text in ["strategy = \"newest\"", "fanout = [10]", "neighbors = [-1]", "cache_bytes = \"much\""] {
            assert!(toml::from_str::<SamplerConfig>(text).is_err(), "{text}");
        }
        let with = |neighbors: &[usize]| {
            SamplerConfig { neighbors: neighbors.to_vec(), ..SamplerConfig::default() }.validate()
        };
        assert_eq!(with(&[10, 1, 65_535]), Ok(()));
        assert_eq!(with(&[]), Err(SamplerConfigError::NoHop));
        assert_eq!(with(&[10, 0]), Err(SamplerConfigError::Fanout { hop: 1, neighbors: 0 }));
        assert_eq!(with(&[65_536]), Err(SamplerConfigError::Fanout { hop: 0, neighbors: 65_536 }));
    }
}
