//! Impossible values and combinations, each with its mend.
//!
//! One function per table; the first fault ends the check.

use super::family::OWN_KEYS;
use super::name::find;
use super::{Config, Invalid, ModelName};
use crate::eval::NegativeKind;
use crate::setting::Auto;
use std::path::{Path, PathBuf};
use tidemill_data::negative::CandidateRule;
use toml::Table;

type Check = Result<(), Invalid>;

impl Config {
    /// Refuses values and combinations that are impossible, or that this release can not honour.
    ///
    /// # Errors
    /// The first one, with its mend.
    pub fn validate(&self) -> Check {
        let checks = Checks { config: self, table: self.table() };
        checks.data()?;
        checks.split()?;
        checks.model()?;
        checks.sampler()?;
        checks.train()?;
        checks.optimizer()?;
        checks.eval()?;
        checks.threads()?;
        checks.pipeline()?;
        checks.partition()?;
        checks.comm()?;
        checks.dependency()?;
        checks.boundary()?;
        checks.replay()?;
        checks.calibration()?;
        checks.gradient()
    }

    /// Refuses a configuration without a stream to read. Apart, since a program may bring its own stream.
    pub(super) fn require_data(&self) -> Check {
        Checks { config: self, table: self.table() }.data_path()
    }

    /// Makes the paths of the configuration absolute, relative to the current folder.
    pub(super) fn make_paths_absolute(&mut self) {
        let candidates = match &mut self.eval.candidates {
            CandidateRule::File(path) => Some(path),
            _ => None,
        };
        let paths: [Option<&mut PathBuf>; 4] = [
            Some(&mut self.data.path),
            self.data.node_features.as_mut(),
            self.split.new_node_file.as_mut(),
            candidates,
        ];
        for path in paths.into_iter().flatten().filter(|path| !path.as_os_str().is_empty()) {
            if let Ok(full) = std::path::absolute(&*path) {
                *path = full;
            }
        }
    }
}

/// Keys of the model that are held against each other.
const MODEL_WIDTHS: [&str; 6] =
    ["model.embedding", "model.memory_dim", "model.time_dim", "model.embedding_dim", "model.layers", "model.root_time"];

struct Checks<'a> {
    config: &'a Config,
    table: Table,
}

impl Checks<'_> {
    /// An error for `key` if `wrong`.
    fn refuse(&self, wrong: bool, key: &'static str, problem: impl Into<String>, mend: impl Into<String>) -> Check {
        self.refuse_beside(wrong, key, &[], problem, mend)
    }

    /// An error for `key` if it collides with the keys of `beside`.
    fn refuse_beside(
        &self,
        wrong: bool,
        key: &'static str,
        beside: &[&'static str],
        problem: impl Into<String>,
        mend: impl Into<String>,
    ) -> Check {
        if !wrong {
            return Ok(());
        }
        let value = find(&self.table, key).map_or_else(|| "(unset)".to_owned(), ToString::to_string);
        let (key, beside) = (key.to_owned(), beside.to_vec());
        Err(Invalid { key, beside, value, problem: problem.into(), mend: mend.into() })
    }

    fn at_least_one(&self, value: usize, key: &'static str, what: &str) -> Check {
        self.refuse(value == 0, key, format!("{what} must be at least 1"), "set 1 or more")
    }

    fn not_negative(&self, value: f64, key: &'static str) -> Check {
        let wrong = !(value.is_finite() && value >= 0.0);
        self.refuse(wrong, key, "it must be a finite number, 0 or more", "set 0 or more")
    }

    fn file_exists(&self, path: Option<&Path>, key: &'static str) -> Check {
        let wrong = path.is_some_and(|path| !path.is_file());
        self.refuse(wrong, key, "there is no such file", "give the path of a file that exists")
    }

    /// A fault found by the data crate.
    fn data_fault(&self, result: tidemill_data::Result<()>) -> Check {
        match result {
            Ok(()) => Ok(()),
            Err(tidemill_data::Error::Setting { key, mend, .. }) => self.refuse(true, key, "", mend),
            Err(other) => self.refuse(true, "data.path", other.to_string(), "see the README's section on data"),
        }
    }

    fn data(&self) -> Check {
        let data = &self.config.data;
        self.data_fault(data.unit().map(|_| ()))?;
        self.file_exists(data.node_features.as_deref(), "data.node_features")
    }

    fn data_path(&self) -> Check {
        self.refuse(
            self.config.data.path.as_os_str().is_empty(),
            "data.path",
            "no event stream is named",
            "give the file with the events, as in --set data.path=wikipedia.csv.gz",
        )?;
        self.data_fault(self.config.data.validate())
    }

    fn split(&self) -> Check {
        self.data_fault(self.config.split.validate())?;
        self.file_exists(self.config.split.new_node_file.as_deref(), "split.new_node_file")
    }

    fn model(&self) -> Check {
        self.keys_of_other_models()?;
        let model = &self.config.model;
        let valid = match model.name {
            ModelName::Tgn => model.tgn.validate(),
            ModelName::Tgat => model.tgn.validate_widths(),
            ModelName::Jodie | ModelName::Dyrep => model.recurrent.validate(&model.tgn),
            ModelName::Apan => model.apan.validate(&model.tgn),
            ModelName::Edgebank => model.edgebank.validate(),
        };
        let Err(error) = valid else {
            return Ok(());
        };
        let tidemill_models::Error::InvalidConfig { key, value, reason, mend } = error else {
            return self.refuse(true, "model.name", error.to_string(), "change the [model] table");
        };
        let beside = MODEL_WIDTHS.to_vec();
        Err(Invalid { key: format!("model.{key}"), beside, value, problem: reason, mend })
    }

    /// A key without meaning for the model must hold what it holds when nobody sets it.
    fn keys_of_other_models(&self) -> Check {
        let name = self.config.model.name;
        let usual = self.config.preset.config_for(name).table();
        for (key, models) in OWN_KEYS {
            let (own, usual) = (find(&self.table, key), find(&usual, key));
            let owners: Vec<&str> = models.iter().map(|model| model.name()).collect();
            self.refuse_beside(
                !models.contains(&name) && own != usual,
                key,
                &["model.name"],
                format!("the model {} has no such key, it is one of {}", name.name(), owners.join(", ")),
                "leave it out",
            )?;
        }
        Ok(())
    }

    fn sampler(&self) -> Check {
        let (sampler, layers) = (&self.config.sampler, self.config.model.tgn.layers);
        let usual = sampler.neighbors.first().copied().unwrap_or(10);
        self.refuse_beside(
            sampler.neighbors.len() != layers,
            "sampler.neighbors",
            &["model.layers"],
            format!("it has {} numbers for model.layers = {layers}", sampler.neighbors.len()),
            format!("give one number per layer, the top layer's first, as in {:?}", vec![usual; layers]),
        )?;
        self.refuse(
            sampler.neighbors.iter().any(|&k| k == 0 || k > usize::from(u16::MAX)),
            "sampler.neighbors",
            "a root has from 1 to 65535 neighbors",
            "set numbers in that range (10 is usual)",
        )
    }

    fn train(&self) -> Check {
        let train = &self.config.train;
        self.at_least_one(train.epochs as usize, "train.epochs", "the number of epochs")?;
        self.refuse(
            train.batch_size == 0 || train.batch_size > u32::MAX as usize / 4,
            "train.batch_size",
            "a batch holds at least one event and at most a quarter of 2^32",
            "set 1 or more (200 is usual)",
        )?;
        self.not_negative(train.max_seconds, "train.max_seconds")?;
        self.at_least_one(train.keep_checkpoints, "train.keep_checkpoints", "the number of checkpoints kept")?;
        self.refuse(
            matches!(train.negatives, CandidateRule::StreamDestinations),
            "train.negatives",
            "destinations of the whole stream would show training what comes later",
            "set \"train_destinations\", \"id_range\" or \"all_nodes\"",
        )?;
        self.refuse(
            matches!(train.negatives, CandidateRule::File(_)),
            "train.negatives",
            "a file's candidates are for evaluation",
            "set \"train_destinations\", \"id_range\" or \"all_nodes\"",
        )
    }

    fn optimizer(&self) -> Check {
        let train = &self.config.train;
        self.not_negative(train.lr, "train.lr")?;
        self.not_negative(train.weight_decay, "train.weight_decay")?;
        self.refuse(
            train.clip_norm.is_some_and(|norm| norm.is_nan() || norm <= 0.0),
            "train.clip_norm",
            "a gradient can not be cut to that length",
            "set a number above 0, or leave it out to clip nothing",
        )
    }

    fn eval(&self) -> Check {
        let eval = &self.config.eval;
        let ranked = eval.negatives == NegativeKind::Tgb;
        self.at_least_one(eval.candidates_per_event, "eval.candidates_per_event", "the number of candidates")?;
        let sets =
            matches!(&eval.candidates, CandidateRule::File(path) if path.extension().is_some_and(|e| e == "npz"));
        self.refuse_beside(
            sets && !ranked,
            "eval.candidates",
            &["eval.negatives"],
            "an npz file holds sets to rank within",
            "set eval.negatives = \"tgb\", or name a list of nodes",
        )?;
        self.refuse_beside(
            eval.mrr_events > 0 && !ranked,
            "eval.mrr_events",
            &["eval.negatives"],
            "only one-vs-many evaluation ranks",
            "set eval.negatives = \"tgb\", or 0",
        )?;
        match &eval.candidates {
            CandidateRule::File(path) => self.file_exists(Some(path), "eval.candidates"),
            _ => Ok(()),
        }
    }

    /// More threads than this help nobody, and a slip of the keyboard can ask for enough to stall the host.
    fn threads(&self) -> Check {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let most = (4 * cores).max(64);
        let (problem, mend) =
            (format!("this host has {cores} cores"), format!("write {cores} or less; 0 shares them among the ranks"));
        self.refuse(self.config.threads > most, "threads", &problem, &mend)?;
        self.refuse(self.config.pipeline.intra_op > most, "pipeline.intra_op", problem, mend)
    }

    fn pipeline(&self) -> Check {
        let pipeline = &self.config.pipeline;
        self.refuse(
            pipeline.queue_max == 0 || pipeline.queue_max > LONGEST_QUEUE,
            "pipeline.queue_max",
            "a queue holds at least one batch and at most 65536",
            "write 1 or more; 16 is usual",
        )?;
        self.refuse_beside(
            pipeline.queue_min == 0 || pipeline.queue_min > pipeline.queue_max,
            "pipeline.queue_min",
            &["pipeline.queue_max"],
            format!("it is the least of a queue that holds at most pipeline.queue_max = {}", pipeline.queue_max),
            "write 1 or more, and not more than pipeline.queue_max",
        )?;
        self.not_negative(pipeline.adapt_every_s, "pipeline.adapt_every_s")?;
        self.refuse(
            self.config.pipeline.staleness > MOST_STALE,
            "pipeline.staleness",
            "a batch that is so far behind learns from another state than it scores",
            "write 16 or less; 0 is exact",
        )
    }

    fn partition(&self) -> Check {
        let partition = &self.config.partition;
        self.at_least_one(partition.window_events, "partition.window_events", "the number of events of a window")?;
        self.refuse(
            partition.rebalance_above.is_nan() || partition.rebalance_above < 1.0,
            "partition.rebalance_above",
            "the busiest rank never has less than the mean",
            "set 1.0 or more (1.2 is usual); inf moves nothing",
        )
    }

    fn comm(&self) -> Check {
        let comm = &self.config.comm;
        self.refuse(
            !(0.5..=86_400.0).contains(&comm.timeout_s),
            "comm.timeout_s",
            "a rank is alive if it gives signs of life ten times in that many seconds",
            "set a number from 0.5 to 86400; 60 is usual",
        )?;
        self.refuse(
            comm.bucket_bytes.0 != 0 && !(1 << 10..=1 << 30).contains(&comm.bucket_bytes.0),
            "comm.bucket_bytes",
            "a message of that size is no use",
            "set a size from \"1KiB\" to \"1GiB\", or 0 for one message; \"1MiB\" is usual",
        )
    }

    fn gradient(&self) -> Check {
        let gradient = &self.config.gradient;
        self.at_least_one(gradient.period as usize, "gradient.period", "the number of batches of an exchange")?;
        self.refuse_beside(
            gradient.period > gradient.max_staleness.max(1),
            "gradient.period",
            &["gradient.max_staleness"],
            format!("the first batch of an exchange would be older than {}", gradient.max_staleness),
            format!("set {} or less, or a larger gradient.max_staleness", gradient.max_staleness.max(1)),
        )?;
        self.refuse(
            gradient.divergence_bound.is_nan() || gradient.divergence_bound <= 0.0,
            "gradient.divergence_bound",
            "ranks that step apart are never at no distance from their mean",
            "set a number above 0 (0.02 is usual); inf forces nothing",
        )
    }

    fn dependency(&self) -> Check {
        let dependency = &self.config.dependency;
        self.refuse(
            matches!(dependency.tau_cache, Auto::Value(tau) if !(0.0..=1.0).contains(&tau)),
            "dependency.tau_cache",
            "it is a share of a row's cost",
            "set a number from 0 (fetch all) to 1 (replay all), or \"auto\"",
        )?;
        self.not_negative(dependency.alpha, "dependency.alpha")?;
        self.not_negative(dependency.beta, "dependency.beta")?;
        self.refuse(
            dependency.alpha + dependency.beta == 0.0,
            "dependency.alpha",
            "with dependency.beta = 0 too nothing costs anything",
            "set one of them above 0",
        )
    }

    fn boundary(&self) -> Check {
        let sync = &self.config.sync;
        if let Auto::Value(eps) = sync.eps_grad {
            self.not_negative(eps, "sync.eps_grad")?;
        }
        let interval = sync.relaxed_interval as usize;
        self.at_least_one(interval, "sync.relaxed_interval", "the number of batches between two refreshes")?;
        self.refuse(
            !(sync.drift_budget > 0.0 && sync.drift_budget.is_finite()),
            "sync.drift_budget",
            "it is a distance between a copy and its owner's row, above 0 and finite",
            "set 0.05, which is usual",
        )
    }

    fn replay(&self) -> Check {
        self.not_negative(self.config.replay.delta, "replay.delta")
    }

    fn calibration(&self) -> Check {
        let calibration = &self.config.calibration;
        self.not_negative(calibration.latency_s, "calibration.latency_s")?;
        self.not_negative(calibration.bytes_per_s, "calibration.bytes_per_s")?;
        self.not_negative(calibration.update_s, "calibration.update_s")
    }
}

/// Batches of staleness above which a value is a slip of the keyboard.
const MOST_STALE: u32 = 16;

/// A queue longer than this is one too.
const LONGEST_QUEUE: usize = 1 << 16;
