//! `summary.json`: what a run was and what came out, in one typed document.
//!
//! Names are part of the interface: more may be added, none renamed or dropped. What a run did not do is zero, an empty list
//! or `null`, never left out, but for the optional parts that say so; what an older program did not write reads as such.

use super::distance::Distance;
use super::node_task::NodeClassification;
use crate::eval::SplitMetrics;
use serde::{Deserialize, Serialize};

/// A run's summary.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Summary {
    /// The program's version.
    pub version: String,
    /// The preset with what was overridden, such as `tgn-2020+train.batch_size=600`.
    pub preset: String,
    /// The seed.
    pub seed: u64,
    /// Number of ranks.
    pub ranks: u32,
    /// Threads of each rank, stages included.
    pub threads: u32,
    /// The device, such as `cpu` or `cuda:0`.
    pub device: String,
    /// The event stream.
    pub dataset: Dataset,
    /// Events in each split.
    pub splits: Splits,
    /// Validation figures of the best epoch; `null` without any.
    pub val: Option<SplitMetrics>,
    /// Test figures; `null` without any.
    pub test: Option<SplitMetrics>,
    /// Node classification by the best embeddings; left out until `tidemill eval` has done it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_classification: Option<NodeClassification>,
    /// Each epoch, in order.
    pub epochs: Vec<Epoch>,
    /// Training events per second of training, evaluation left out, over all epochs.
    pub train_events_per_s: f64,
    /// Evaluated events per second of evaluation.
    pub eval_events_per_s: f64,
    /// Highest resident memory, maximum over ranks, in bytes.
    pub peak_rss_bytes: u64,
    /// State hash after the last epoch's last training batch.
    pub state_hash: String,
    /// Hash of all samples of training batches.
    pub sample_hash: String,
    /// Communication.
    pub comm: Comm,
    /// Where remote rows came from.
    pub dependency: Dependency,
    /// Gated boundary synchronisation.
    pub sync: Sync,
    /// Replay of cached nodes' events.
    pub replay: Replay,
    /// Partition of the nodes.
    pub partition: Partition,
    /// Gradient exchange.
    pub gradient: Gradient,
    /// Queues between stages.
    pub queues: Vec<Queue>,
    /// Stages of the pipeline.
    pub stages: Vec<Stage>,
    /// How far behind training batches read.
    pub staleness: Staleness,
    /// The GPU; left out without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,
    /// How far the run is from its baseline; left out without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distance: Option<Distance>,
}

/// The event stream of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dataset {
    /// Its name.
    pub name: String,
    /// Number of events.
    pub events: u64,
    /// Number of nodes.
    pub nodes: u64,
    /// Whether it was generated.
    pub synthetic: bool,
    /// sha256 over its columns.
    pub hash: String,
}

/// Events in each split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Splits {
    /// Training events, after any new-node mask.
    pub train: u64,
    /// Validation events.
    pub val: u64,
    /// Test events.
    pub test: u64,
}

/// One epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Epoch {
    /// Mean of its batches' losses; `null` if it had none.
    pub loss: Option<f64>,
    /// Validation average precision after it; `null` if it was not evaluated.
    pub val_ap: Option<f64>,
    /// Seconds of training, evaluation left out.
    pub seconds: f64,
    /// Training events per second.
    pub train_events_per_s: f64,
}

/// Communication of a run; seconds are means over ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Comm {
    /// Time that workers waited for communication, less the time until the peer had posted its send.
    pub seconds: f64,
    /// The same of the rank with the most.
    pub seconds_max: f64,
    /// `seconds` as a share of the training seconds.
    pub share: f64,
    /// Time that workers waited until the peer posted its send.
    pub imbalance_seconds: f64,
    /// Bytes sent, all purposes and ranks.
    pub bytes_total: u64,
    /// Bytes of fetched rows.
    pub bytes_fetch: u64,
    /// Bytes of delegated embeddings and their gradients.
    pub bytes_delegate: u64,
    /// Bytes of s(peer) for commits.
    pub bytes_commit: u64,
    /// Bytes of boundary synchronisation.
    pub bytes_sync: u64,
    /// Bytes of edge features.
    pub bytes_feature: u64,
    /// Bytes of gradient exchange.
    pub bytes_gradient: u64,
    /// Bytes of migrated state.
    pub bytes_migration: u64,
    /// Rows fetched.
    pub rows_fetched: u64,
    /// Messages sent.
    pub messages: u64,
    /// The part of the above that training took, without evaluation.
    pub training: CommTraining,
}

/// Communication of training alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CommTraining {
    /// Pushed rows, corrections and memory for commits.
    pub bytes_state: u64,
    /// Embeddings of delegated roots, and their gradients.
    pub bytes_delegate: u64,
    /// Event features.
    pub bytes_feature: u64,
    /// Gradients.
    pub bytes_gradient: u64,
    /// State that moved with its nodes.
    pub bytes_migration: u64,
    /// Messages.
    pub messages: u64,
    /// Waits for all but gradients, over the training seconds.
    pub share_without_gradients: f64,
}

/// Where remote rows came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dependency {
    /// Remote rows that were needed.
    pub remote: u64,
    /// Served by replayed replicas.
    pub cached: u64,
    /// Served by the owner's push.
    pub fetched: u64,
    /// Roots embedded by their owner.
    pub delegated: u64,
    /// Needs met by a copy that was there.
    pub cache_hits: u64,
    /// Bytes of copies and replicas, at most at any time.
    pub cache_bytes: u64,
    /// Mean threshold of the windows.
    pub tau: f64,
    /// What the plan and the costs say of training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted: Option<Predicted>,
}

/// Traffic of training as planned, to be held against `comm.training`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Predicted {
    /// Rows pushed as soon as they are needed, and memory for commits.
    pub bytes_state: u64,
    /// Embeddings of delegated roots, and their gradients.
    pub bytes_delegate: u64,
    /// Seconds a rank sends, by the calibration; 0 without one.
    pub communication_s: f64,
    /// Seconds a rank replays, by the calibration; 0 without one.
    pub replay_s: f64,
}

/// Gated boundary synchronisation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sync {
    /// Batches that refreshed the copies they read, where a gate decides.
    pub done: u64,
    /// Batches that did not.
    pub skipped: u64,
    /// Batches that found the gate open.
    pub open: u64,
    /// Batches that found it closed, refreshing or not.
    pub closed: u64,
    /// Copies refreshed or corrected.
    pub rows: u64,
    /// Copies read in an older version than their owner's.
    pub rows_skipped: u64,
    /// Mean of the relative drift found at refreshes and corrections.
    pub drift_mean: f64,
    /// Maximum of it.
    pub drift_max: f64,
    /// Copies by drift: below 1e-4, 1e-3, 1e-2, 1e-1, 1, and the rest.
    pub drift_histogram: Vec<u64>,
    /// How many of these copies had been read, or replayed, behind their owner's row for k batches, by k; up to 64, older ones too.
    pub staleness_histogram: Vec<u64>,
}

/// Replay of cached nodes' events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Replay {
    /// Rows brought forward by replay, each once a batch.
    pub events: u64,
    /// Pruned without effect.
    pub pruned_lossless: u64,
    /// Pruned by expected effect.
    pub pruned_lossy: u64,
}

/// Partition of the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Partition {
    /// Share of events whose endpoints have two owners.
    pub cut_share: f64,
    /// The fullest rank's load over the mean; 0 without ranks to balance.
    pub balance: f64,
    /// Windows at which nodes moved.
    pub migrations: u64,
    /// Rows that moved.
    pub rows_migrated: u64,
}

/// Gradient exchange.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gradient {
    /// `allreduce` or `racom`.
    pub mode: String,
    /// Exchanges made.
    pub exchanges: u64,
    /// Of them full synchronisations forced by a bound.
    pub forced: u64,
    /// Largest relative distance of a rank's parameters from the mean.
    pub divergence_max: f64,
    /// Oldest contribution applied, in batches.
    pub staleness_max: u64,
}

/// A queue between stages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// Shortest length seen.
    pub min: u64,
    /// Longest length seen.
    pub max: u64,
    /// Mean length.
    pub mean: f64,
    /// Items that went through.
    pub sent: u64,
    /// Seconds that the sender waited for room.
    pub full_s: f64,
    /// Seconds that the receiver waited for an item.
    pub empty_s: f64,
    /// How often its capacity changed.
    pub resized: u64,
    /// Its capacity at the end.
    pub limit: u64,
}

/// A stage of the pipeline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stage {
    /// Its name.
    pub name: String,
    /// Seconds at work.
    pub busy_s: f64,
    /// Seconds waiting.
    pub wait_s: f64,
    /// Of these, while the queue behind it was full.
    pub full_s: f64,
    /// While the queue before it was empty.
    pub empty_s: f64,
    /// While a commit that it must see had not happened.
    pub hazard_s: f64,
    /// While a message from another rank was not there.
    pub network_s: f64,
}

/// How many training batches read something k batches older than in order, by k.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Staleness {
    /// State commits not seen.
    pub state: Vec<u64>,
    /// Parameter commits not seen.
    pub parameters: Vec<u64>,
}

/// The GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gpu {
    /// Share of the time with a kernel running.
    pub utilisation: f64,
    /// Highest memory in use, in bytes.
    pub memory_peak_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::{LinkMetrics, Mrr, SubsetMetrics};
    use serde_json::{Value, json};

    /// The names of the interface.
    const NAMES: &str = "
        version, preset, seed, ranks, threads, device, dataset{name, events, nodes, synthetic, hash},
        splits{train, val, test}, val{ap, auc, ap_batch_mean, auc_batch_mean},
        test{ap, auc, ap_batch_mean, auc_batch_mean, new_node{ap, auc, ap_batch_mean, auc_batch_mean}, mrr},
        epochs[{loss, val_ap, seconds, train_events_per_s}], train_events_per_s, eval_events_per_s, peak_rss_bytes,
        state_hash, sample_hash,
        comm{seconds, seconds_max, share, imbalance_seconds, bytes_total, bytes_fetch, bytes_delegate, bytes_commit,
             bytes_sync, bytes_feature, bytes_gradient, bytes_migration, rows_fetched, messages,
             training{bytes_state, bytes_delegate, bytes_feature, bytes_gradient, bytes_migration, messages, share_without_gradients}},
        dependency{remote, cached, fetched, delegated, cache_hits, cache_bytes, tau, predicted{bytes_state, bytes_delegate, communication_s, replay_s}},
        sync{done, skipped, open, closed, rows, rows_skipped, drift_mean, drift_max, drift_histogram, staleness_histogram},
        replay{events, pruned_lossless, pruned_lossy}, partition{cut_share, balance, migrations, rows_migrated},
        gradient{mode, exchanges, forced, divergence_max, staleness_max}, queues[{name, min, max, mean, resized}],
        stages[{name, busy_s, wait_s, full_s, empty_s, hazard_s, network_s}], staleness{state, parameters}, gpu{utilisation, memory_peak_bytes},
        distance{val_ap, test_ap, loss, bytes_total, seconds}";

    fn full() -> Summary {
        let links = LinkMetrics { ap: 0.1 + 0.2, auc: 0.9, ap_batch_mean: 0.8, auc_batch_mean: 0.7 };
        let new_node = Some(SubsetMetrics { links, mrr: None });
        let mrr = Some(Mrr { mrr: 0.5, mrr_standard_error: 0.1, mrr_events: 9 });
        let split = SplitMetrics { links, new_node, mrr, ..SplitMetrics::default() };
        Summary {
            val: Some(split.clone()),
            test: Some(split),
            epochs: vec![Epoch { loss: Some(1.0 / 3.0), ..Epoch::default() }],
            queues: vec![Queue::default()],
            stages: vec![Stage::default()],
            dependency: Dependency { predicted: Some(Predicted::default()), ..Dependency::default() },
            gpu: Some(Gpu::default()),
            distance: Some(Distance::default()),
            ..Summary::default()
        }
    }

    /// Refuses a document that lacks a name of the interface; others may be there.
    fn check_names(at: &str, written: &Value, named: &Value) {
        match named {
            Value::Object(fields) => fields.iter().for_each(|(name, inner)| {
                let found = written.get(name).unwrap_or_else(|| panic!("no `{name}` in `{at}`"));
                check_names(name, found, inner);
            }),
            Value::Array(items) => check_names(at, &written[0], &items[0]),
            _ => {}
        }
    }

    /// The interface's notation as a JSON document with those keys.
    fn document(notation: &str) -> Value {
        let mut json = String::new();
        let mut word = String::new();
        for c in format!("{{{notation}}}").chars().filter(|c| !c.is_whitespace()) {
            match c {
                '{' | '[' | ',' | '}' | ']' => {
                    if !word.is_empty() {
                        json += &format!("{:?}:{}", std::mem::take(&mut word), if "{[".contains(c) { "" } else { "0" });
                    }
                    json.push(c);
                }
                _ => word.push(c),
            }
        }
        serde_json::from_str(&json).expect("the notation is JSON")
    }

    #[test]
    fn has_the_names_of_the_interface() {
        let written = serde_json::to_value(full()).expect("json");
        check_names("summary", &written, &document(NAMES));
    }

    #[test]
    fn what_was_not_done_is_zero_empty_or_null() {
        let written = serde_json::to_value(Summary::default()).expect("json");
        assert_eq!(written["comm"]["bytes_total"], json!(0));
        assert_eq!((&written["val"], &written["queues"]), (&Value::Null, &json!([])));
        assert!(written.get("gpu").is_none() && written.get("distance").is_none());
    }

    #[test]
    fn comes_back_and_older_ones_can_be_read() {
        let text = serde_json::to_string(&full()).expect("json");
        let back: Summary = serde_json::from_str(&text).expect("read");
        assert_eq!(serde_json::to_string(&back).expect("json"), text);
        let old: Summary =
            serde_json::from_value(json!({"version": "0.0.1", "comm": {"seconds": 2.5}, "later": 1})).expect("read");
        assert_eq!((old.version.as_str(), old.comm.seconds, old.comm.messages), ("0.0.1", 2.5, 0));
    }
}
