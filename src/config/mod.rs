//! `Config`: every module's own configuration, read from TOML.
//!
//! A preset first; each key of the file and each `--set KEY=VALUE` overrides it. What can not be used is an error that
//! names the key, the line and the nearest valid key or the mend. Nobody below this module sees [`Config`]: each module is
//! handed its own table.
//!
//! * [`preset`]: the values a name stands for. * `read`: TOML and `--set` to a [`Config`]. * `schema`: which keys exist.
//! * `check`: impossible values and combinations. * `name`: `tgn-2020+train.batch_size=600`.
//!
//! Invariants: [`Config::from_toml`] of [`Config::to_toml`] is the identity; a value is never silently ignored.

mod check;
mod family;
mod name;
pub mod preset;
mod read;
mod schema;
#[cfg(test)]
mod tests;

pub use preset::Preset;

pub use crate::boundary::SyncConfig;
pub use crate::comms::CommConfig;
pub use crate::dependency::{Calibration, DependencyConfig};
pub use crate::device::DeviceConfig;
pub use crate::eval::EvalConfig;
pub use crate::gradient::{GradientConfig, GradientMode};
pub use crate::partition::PartitionConfig;
pub use crate::pipeline::PipelineConfig;
pub use crate::replay::ReplayConfig;
pub use crate::sampler::SamplerConfig;
pub use crate::trainer::TrainConfig;
pub use tidemill_data::dataset::DataConfig;
pub use tidemill_data::split::SplitConfig;
pub use tidemill_models::tgn::TgnConfig;
pub use tidemill_models::{ApanConfig, DyrepConfig, EdgeBankConfig, JodieConfig, RecurrentConfig, TgatConfig};

use crate::error::{ConfigError, Error, Fault, Origin, Result};
use crate::setting::Auto;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// One run's configuration, every value present.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where the values came from that nobody set.
    pub preset: Preset,
    /// Seed of everything random in training.
    pub seed: u64,
    /// Threads of this rank, stages included; 0: cores / ranks on this host.
    pub threads: usize,
    /// `[data]`: the file and how to read it.
    pub data: DataConfig,
    /// `[split]`: training, validation and test; new nodes.
    pub split: SplitConfig,
    /// `[model]`: which model, how wide.
    pub model: ModelConfig,
    /// `[sampler]`: which neighbors.
    pub sampler: SamplerConfig,
    /// `[train]`: how long, how fast, which negatives.
    pub train: TrainConfig,
    /// `[eval]`: what is scored and averaged.
    pub eval: EvalConfig,
    /// `[partition]`: which rank owns which node.
    pub partition: PartitionConfig,
    /// `[dependency]`: rows that other ranks own.
    pub dependency: DependencyConfig,
    /// `[sync]`: when copies of such rows are refreshed.
    pub sync: SyncConfig,
    /// `[replay]`: bounds on replay events.
    pub replay: ReplayConfig,
    /// `[gradient]`: how gradients are exchanged.
    pub gradient: GradientConfig,
    /// `[pipeline]`: stages and their queues.
    pub pipeline: PipelineConfig,
    /// `[comm]`: messages between ranks.
    pub comm: CommConfig,
    /// `[device]`: CPU or GPU.
    pub device: DeviceConfig,
    /// `[calibration]`: what sending and replay cost; 0 is measured when a run on several ranks starts.
    pub calibration: Calibration,
}

/// `[model]`: the name and the model's own keys.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelConfig {
    /// Which model.
    pub name: ModelName,
    /// The keys of a memory-based model, most of them any model's.
    #[serde(flatten)]
    pub tgn: TgnConfig,
    /// Keys of JODIE and DyRep.
    #[serde(flatten)]
    pub recurrent: RecurrentConfig,
    /// Keys of TGAT.
    #[serde(flatten)]
    pub tgat: TgatConfig,
    /// Keys of JODIE.
    #[serde(flatten)]
    pub jodie: JodieConfig,
    /// Keys of DyRep.
    #[serde(flatten)]
    pub dyrep: DyrepConfig,
    /// Keys of APAN.
    #[serde(flatten)]
    pub apan: ApanConfig,
    /// Keys of EdgeBank.
    #[serde(flatten)]
    pub edgebank: EdgeBankConfig,
}

/// Models by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelName {
    /// Temporal Graph Networks (arXiv:2006.10637).
    #[default]
    Tgn,
    /// Temporal Graph Attention (arXiv:2002.07962).
    Tgat,
    /// JODIE (arXiv:1908.01207).
    Jodie,
    /// DyRep (ICLR 2019).
    Dyrep,
    /// Asynchronous Propagation Attention Network (arXiv:2011.11545).
    Apan,
    /// EdgeBank (NeurIPS 2022): remembers edges, learns nothing.
    Edgebank,
}

impl ModelName {
    /// The name in files and results.
    pub fn name(self) -> &'static str {
        match self {
            ModelName::Tgn => "tgn",
            ModelName::Tgat => "tgat",
            ModelName::Jodie => "jodie",
            ModelName::Dyrep => "dyrep",
            ModelName::Apan => "apan",
            ModelName::Edgebank => "edgebank",
        }
    }
}

impl Config {
    /// Reads a file, then applies each `KEY=VALUE`, and checks the whole.
    ///
    /// Paths in the file are relative to the current folder, as on the command line; they become absolute, so that a run
    /// folder's `config.toml` works from anywhere.
    ///
    /// # Errors
    /// The first file, key or combination that can not be used.
    pub fn load(path: &Path, sets: &[String]) -> Result<Config> {
        let text = std::fs::read_to_string(path).map_err(Error::io("read", path))?;
        Config::read(&text, path, sets)
    }

    /// [`Config::load`] with the file's text in hand; `path` is for error messages.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn read(text: &str, path: &Path, sets: &[String]) -> Result<Config> {
        let mut source = read::Source::new(text, path)?;
        for set in sets {
            source.set(set)?;
        }
        let mut config = source.config()?;
        config.make_paths_absolute();
        config.require_data().and_then(|()| config.validate()).map_err(|invalid| {
            let origin = source.origin(&invalid);
            ConfigError { origin, key: invalid.key.clone(), fault: invalid.into() }
        })?;
        Ok(config)
    }

    /// The configuration written by [`Config::to_toml`]; missing keys come from its preset. Not validated.
    ///
    /// # Errors
    /// The first key that can not be read.
    pub fn from_toml(text: &str) -> Result<Config> {
        read::Source::new(text, Path::new("config.toml"))?.config()
    }

    /// Every value as TOML.
    pub fn to_toml(&self) -> String {
        let body = toml::to_string(self).expect("every value has a TOML form");
        format!("# {}: every value, as resolved by tidemill {}\n{body}", self.name(), env!("CARGO_PKG_VERSION"))
    }

    /// The configuration of a run that goes on: the run folder's `config.toml` rules, and only what does not change the
    /// run's meaning may be set anew.
    ///
    /// # Errors
    /// A key that can not be used, or that may not differ.
    pub fn resume(path: &Path, sets: &[String]) -> Result<Config> {
        let mend = format!(
            "only {} and the number of ranks may differ; start a new run for anything else",
            RESUME_KEYS.join(", ")
        );
        let problem = "a run that goes on keeps the values it was started with";
        refuse_sets(sets, |key| RESUME_KEYS.contains(&key), problem, &mend)?;
        Config::load(path, sets)
    }

    /// The configuration under which a finished run is scored again: only how it is scored, and on what, may differ.
    ///
    /// # Errors
    /// A key that can not be used, or that may not differ.
    pub fn rescore(path: &Path, sets: &[String]) -> Result<Config> {
        let free = |key: &str| {
            key.starts_with("eval.")
                || key.starts_with("device.")
                || ["sampler.same_batch", "train.avoid_positive", "data.path", "threads"].contains(&key)
        };
        refuse_sets(
            sets,
            free,
            "a run is scored with the model and the split it was trained with",
            "only eval.*, device.*, sampler.same_batch, train.avoid_positive, threads and the place of the same data (data.path) may differ",
        )?;
        Config::load(path, sets)
    }

    /// The `[data]` table for a file, with each `KEY=VALUE` applied: the commands that read a file and train nothing.
    ///
    /// # Errors
    /// A key that is none of `[data]`, or a value that can not be used.
    pub fn data(path: &Path, sets: &[String]) -> Result<tidemill_data::DataConfig> {
        let free = |key: &str| key.starts_with("data.") && key != "data.path";
        let mend = "set keys of [data] only, as data.columns.src, data.tick or data.bipartite";
        refuse_sets(sets, free, "the command only reads a file of events", mend)?;
        let mut source = read::Source::new("", Path::new("--set"))?;
        for set in sets {
            source.set(set)?;
        }
        let mut config = source.config()?;
        config.data.path = path.to_owned();
        config.data.validate()?;
        Ok(config.data)
    }

    /// This configuration with everything at its default that may differ when a run goes on, the data's place included.
    pub fn fixed_on_resume(&self) -> Config {
        let mut fixed = self.clone();
        let free = TrainConfig::default();
        fixed.threads = 0;
        fixed.data.path = Default::default();
        (fixed.train.epochs, fixed.train.patience) = (free.epochs, free.patience);
        (fixed.train.log_every, fixed.train.keep_checkpoints) = (free.log_every, free.keep_checkpoints);
        fixed
    }

    /// Whether remote roots are embedded by their owners; never by the program's own choice under RaCoM, where that would have
    /// ranks wait for each other in every batch.
    pub fn delegate(&self) -> Auto<bool> {
        match (self.dependency.delegate, self.gradient.mode) {
            (Auto::Auto, GradientMode::Racom) => Auto::Value(false),
            (delegate, _) => delegate,
        }
    }

    /// Events in an evaluation batch: `eval.batch_size`, or that of training where it is 0.
    pub fn eval_batch_size(&self) -> usize {
        if self.eval.batch_size == 0 { self.train.batch_size } else { self.eval.batch_size }
    }
}

/// Refuses a `--set` of a key that is not free.
fn refuse_sets(sets: &[String], free: impl Fn(&str) -> bool, problem: &str, mend: &str) -> Result<()> {
    for set in sets {
        let (key, value) = read::split_set(set)?;
        if !free(key) {
            let (problem, mend) = (problem.to_owned(), mend.to_owned());
            let fault = Fault::Impossible { value: value.to_owned(), problem, mend };
            return Err(ConfigError { origin: Origin::Set, key: key.to_owned(), fault }.into());
        }
    }
    Ok(())
}

/// What may differ from the run folder's `config.toml` on resume.
const RESUME_KEYS: [&str; 5] =
    ["train.epochs", "train.patience", "train.log_every", "train.keep_checkpoints", "threads"];

/// A value that is impossible by itself or beside others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// The key to change.
    pub key: String,
    /// Keys it collides with.
    pub beside: Vec<&'static str>,
    /// Its value as TOML.
    pub value: String,
    /// Why it can not be.
    pub problem: String,
    /// What to set instead.
    pub mend: String,
}

impl From<Invalid> for Fault {
    fn from(invalid: Invalid) -> Fault {
        Fault::Impossible { value: invalid.value, problem: invalid.problem, mend: invalid.mend }
    }
}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Error {
        ConfigError { origin: Origin::Preset, key: invalid.key.clone(), fault: invalid.into() }.into()
    }
}

/// The candidate most like `word`, if any is like it at all.
pub(crate) fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .map(|candidate| (strsim::normalized_damerau_levenshtein(word, candidate), candidate))
        .filter(|(likeness, _)| *likeness >= 0.4)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}
