//! How far a run is from another one, usually the exact one that it approximates: quality as a difference, cost as a ratio.

use super::run_folder::RunFolder;
use super::summary::{Splits, Summary};
use crate::config::Config;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// A run to compare with.
#[derive(Clone, Debug)]
pub struct Baseline {
    folder: PathBuf,
    config: Config,
    summary: Summary,
}

/// This run beside the baseline. Differences are this run's figure less the baseline's, ratios this run's over the baseline's;
/// `null` where either has none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Distance {
    /// The baseline's folder.
    pub baseline: String,
    /// The baseline's configuration in short.
    pub preset: String,
    /// Difference of the validation AP.
    pub val_ap: Option<f64>,
    /// Difference of the test AP.
    pub test_ap: Option<f64>,
    /// Difference of the last epoch's loss.
    pub loss: Option<f64>,
    /// Ratio of the seconds of an epoch, in the mean.
    pub seconds: Option<f64>,
    /// Ratio of all bytes sent.
    pub bytes_total: Option<f64>,
    /// Ratio of the messages sent.
    pub messages: Option<f64>,
    /// Ratio of the rows fetched.
    pub rows_fetched: Option<f64>,
    /// Ratio of the seconds that workers waited for communication.
    pub comm_seconds: Option<f64>,
    /// Ratio of the highest resident memory.
    pub peak_rss_bytes: Option<f64>,
}

impl Baseline {
    /// Reads a finished run.
    ///
    /// # Errors
    /// A folder without a run or without a summary.
    pub fn open(path: &Path) -> Result<Baseline> {
        let folder = RunFolder::open(path)?;
        let (config, summary) = (Config::from_toml(&folder.read_config()?)?, folder.read_summary()?);
        Ok(Baseline { folder: path.to_owned(), config, summary })
    }

    /// Refuses a baseline over other events or another split; of one that was scored otherwise it warns.
    ///
    /// * `hash`: of this run's stream.
    ///
    /// # Errors
    /// What differs.
    pub fn check(&self, config: &Config, hash: &str, splits: Splits) -> Result<()> {
        let refuse = |what: &str| {
            Err(Error::Usage {
                problem: format!(
                    "the baseline {} was made over {what}, so its figures say nothing of this run",
                    self.folder.display()
                ),
                mend: "name a run over the same data and split, or leave --baseline out".to_owned(),
            })
        };
        if self.summary.dataset.hash != hash {
            return refuse(&format!(
                "another dataset ({}, {} events)",
                self.summary.dataset.name, self.summary.dataset.events
            ));
        }
        if self.summary.splits != splits || self.config.split != config.split {
            return refuse("another split of the data");
        }
        if self.config.eval != config.eval {
            tracing::warn!(
                "the baseline {} was scored with another [eval]: differences of AP say little",
                self.folder.display()
            );
        }
        Ok(())
    }

    /// How far a run is from this one.
    pub fn distance_of(&self, run: &Summary) -> Distance {
        let base = &self.summary;
        let difference = |of: &dyn Fn(&Summary) -> Option<f64>| Some(of(run)? - of(base)?);
        let ratio = |of: &dyn Fn(&Summary) -> f64| (of(base) > 0.0).then(|| of(run) / of(base));
        let epoch_seconds = |summary: &Summary| {
            summary.epochs.iter().map(|epoch| epoch.seconds).sum::<f64>() / summary.epochs.len().max(1) as f64
        };
        Distance {
            baseline: self.folder.display().to_string(),
            preset: base.preset.clone(),
            val_ap: difference(&|summary| Some(summary.val.as_ref()?.links.ap)),
            test_ap: difference(&|summary| Some(summary.test.as_ref()?.links.ap)),
            loss: difference(&|summary| summary.epochs.last()?.loss),
            seconds: ratio(&epoch_seconds),
            bytes_total: ratio(&|summary| summary.comm.bytes_total as f64),
            messages: ratio(&|summary| summary.comm.messages as f64),
            rows_fetched: ratio(&|summary| summary.comm.rows_fetched as f64),
            comm_seconds: ratio(&|summary| summary.comm.seconds),
            peak_rss_bytes: ratio(&|summary| summary.peak_rss_bytes as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::SplitMetrics;
    use crate::trainer::summary::{Dataset, Epoch};

    fn summary(ap: f64, loss: f64, seconds: [f64; 2], bytes: u64) -> Summary {
        let mut metrics = SplitMetrics::default();
        metrics.links.ap = ap;
        let mut summary = Summary { val: Some(metrics.clone()), test: Some(metrics), ..Summary::default() };
        summary.epochs = seconds.map(|seconds| Epoch { loss: Some(loss), seconds, ..Epoch::default() }).to_vec();
        summary.comm.bytes_total = bytes;
        summary.dataset = Dataset { hash: "abc".to_owned(), ..Dataset::default() };
        summary
    }

    fn baseline(bytes: u64) -> Baseline {
        let summary = summary(0.75, 1.5, [1.0, 3.0], bytes);
        Baseline { folder: "runs/exact".into(), config: Config::default(), summary }
    }

    #[test]
    fn quality_is_a_difference_and_cost_a_ratio() {
        let distance = baseline(1000).distance_of(&summary(0.5, 1.75, [3.0, 3.0], 250));
        assert_eq!((distance.val_ap, distance.test_ap, distance.loss), (Some(-0.25), Some(-0.25), Some(0.25)));
        assert_eq!((distance.seconds, distance.bytes_total, distance.rows_fetched), (Some(1.5), Some(0.25), None));
        assert_eq!(baseline(0).distance_of(&summary(0.5, 1.0, [1.0, 1.0], 9)).bytes_total, None);
        assert_eq!(baseline(1).distance_of(&Summary::default()).loss, None);
    }

    #[test]
    fn other_events_and_other_splits_are_refused() {
        let (base, config) = (baseline(1), Config::default());
        base.check(&config, "abc", Splits::default()).expect("the same");
        let refused = |config: &Config, hash: &str, splits: Splits| {
            let error = base.check(config, hash, splits).expect_err("another");
            assert_eq!(error.exit_code(), 2);
            error.sentence()
        };
        assert!(refused(&config, "abd", Splits::default()).contains("another dataset"));
        assert!(refused(&config, "abc", Splits { train: 1, ..Splits::default() }).contains("another split"));
        let mut other = config.clone();
        other.split.train = 0.6;
        assert!(refused(&other, "abc", Splits::default()).contains("another split"));
        other = config;
        other.eval.negative_seed += 1;
        base.check(&other, "abc", Splits::default()).expect("scored otherwise");
    }
}
