//! What the ranks of a run tell each other outside of batches: owners, scores, hashes, states.

use super::stored_state::StoredState;
use super::{Summary, Trainer, peak_rss, state_hash, summary};
use crate::boundary::Drift;
use crate::comms::{Ledger, Purpose};
use crate::dependency::{Costs, Counts, Traffic};
use crate::error::Result;
use crate::eval::SplitScores;
use crate::partition::{PartitionTable, Rank};
use crate::pipeline::event::Pass;
use crate::pipeline::replay::ReplayCounts;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

impl Trainer {
    /// The number of the next collective; all ranks make the same ones in the same order.
    pub(super) fn next_collective(&mut self) -> u64 {
        self.collectives += 1;
        self.collectives
    }

    /// Whether this rank writes what is written once.
    pub(super) fn is_first(&self) -> bool {
        self.comm.rank() == 0
    }

    /// An evaluation pass among the ranks; nodes stay with their owners unless that leaves one with too many events.
    pub(super) fn among_owners(&mut self, pass: &Pass) -> Pass {
        if self.comm.world() == 1 {
            return pass.clone();
        }
        let before = self.owners.as_deref();
        let pass = pass.clone().partitioned(&self.stream, self.comm.world(), &self.config.partition, before);
        self.owners = pass.owners_after(pass.batches());
        pass
    }

    /// All ranks' scores, in event order; the same on each.
    pub(super) fn gather_scores(&mut self, own: SplitScores) -> Result<SplitScores> {
        if self.comm.world() == 1 {
            return Ok(own);
        }
        let sequence = self.next_collective();
        let parts = self.comm.all_gather(sequence, own.to_bytes())?;
        Ok(SplitScores::merged(parts.iter().map(|bytes| SplitScores::from_bytes(bytes)).collect()))
    }

    /// Hash of parameters, optimizer and all ranks' node states.
    pub(super) fn state_hash(&mut self) -> Result<String> {
        let mut digests = state_hash::digests(&self.pipeline.memory());
        if self.comm.world() > 1 {
            let sequence = self.next_collective();
            digests = state_hash::joined(self.comm.all_gather(sequence, state_hash::digest_bytes(&digests))?);
        }
        Ok(state_hash::of(self.model.parameters(), self.sync.stage().optimizer(), &digests))
    }

    /// Replaces the node state by a stored one, in whatever parts it comes; `owners` own it from now on.
    pub(super) fn put_state(&mut self, parts: &[&StoredState], owners: Option<Arc<PartitionTable>>) -> Result<()> {
        self.pipeline.stop();
        let mut memory = self.pipeline.memory();
        match &owners {
            Some(table) => memory.own_afresh(table.nodes_of(Rank(self.comm.rank() as u16))),
            None => memory.reset(),
        }
        parts.iter().try_for_each(|part| part.restore(&mut memory))?;
        drop(memory);
        self.owners = owners;
        Ok(())
    }

    /// Sums up the ranks' hashes of samples: on the first rank is the whole, on the others nothing.
    pub(super) fn join_sample_hash(&mut self) -> Result<()> {
        if self.comm.world() == 1 {
            return Ok(());
        }
        let sequence = self.next_collective();
        let own = std::mem::take(&mut self.history.sample_hash);
        let parts = self.comm.gather(0, sequence, serde_json::to_vec(&own).expect("a hash has a JSON form"))?;
        for part in parts {
            self.history.sample_hash += serde_json::from_slice(&part).expect("a hash that a rank wrote");
        }
        Ok(())
    }

    /// Writes the summary, on the first rank.
    pub(super) fn write_summary(&mut self, summary: &Summary) -> Result<()> {
        if let Some(run) = &mut self.run
            && let Some(metrics) = &mut run.metrics
        {
            metrics.flush()?;
            run.folder.write_summary(summary)?;
        }
        Ok(())
    }

    /// What all ranks counted, on each.
    pub(super) fn gather_accounts(&mut self) -> Result<Vec<Account>> {
        let own = Account::of(self);
        let sequence = self.next_collective();
        let parts = self.comm.all_gather(sequence, serde_json::to_vec(&own).expect("an account has a JSON form"))?;
        Ok(parts.iter().map(|part| serde_json::from_slice(part).expect("an account that a rank wrote")).collect())
    }
}

/// What one rank counted for the summary.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Account {
    /// Bytes and messages.
    sent: BTreeMap<Purpose, (u64, u64)>,
    /// For messages under way.
    waited_s: f64,
    /// Before the peer had posted its send.
    imbalance_s: f64,
    counts: Counts,
    copied_bytes: u64,
    rss_bytes: u64,
    /// Of training alone, by purpose.
    training: Ledger,
    replay: ReplayCounts,
    drift: Drift,
    rows_skipped: u64,
    /// Batches that found the gate open, closed, and that refreshed; alike on all ranks.
    gate: (u64, u64, u64),
    /// Sum of the windows' thresholds, and how many; alike on all ranks.
    tau: (f64, u64),
    /// What all ranks sent in training, as planned; alike on all.
    planned: Traffic,
}

impl Account {
    fn of(trainer: &Trainer) -> Account {
        let (ledger, crossed) = (trainer.comm.ledger().since(&trainer.set_up), trainer.pipeline.crossed());
        let sum = |of: fn(&crate::comms::Account) -> std::time::Duration| -> f64 {
            Purpose::OF_BATCHES.iter().map(|&purpose| of(&trainer.trained.of(purpose)).as_secs_f64()).sum()
        };
        let sent = |purpose: Purpose| {
            let account = ledger.of(purpose);
            (purpose, (account.sent_bytes, account.sent_messages))
        };
        Account {
            sent: Purpose::ALL.into_iter().map(sent).collect(),
            waited_s: sum(|account| account.waited),
            imbalance_s: sum(|account| account.imbalance),
            counts: trainer.pipeline.counts(),
            copied_bytes: trainer.pipeline.most_copied_bytes(),
            training: trainer.trained,
            replay: trainer.pipeline.replayed(),
            rows_skipped: crossed.skipped,
            gate: (crossed.open, crossed.closed, crossed.refreshed),
            tau: crossed.tau,
            planned: crossed.planned,
            drift: crossed.drift,
            rss_bytes: peak_rss::peak_rss_bytes().unwrap_or(0),
        }
    }

    /// Highest resident memory of a rank.
    pub(super) fn most_rss(accounts: &[Account]) -> u64 {
        accounts.iter().map(|account| account.rss_bytes).max().unwrap_or(0)
    }

    /// The summary's part on communication; `train_seconds`: of training.
    pub(super) fn comm(accounts: &[Account], train_seconds: f64) -> summary::Comm {
        let bytes = |purposes: &[Purpose]| -> u64 {
            accounts.iter().flat_map(|account| purposes.iter().map(|purpose| account.sent[purpose].0)).sum()
        };
        let mean = |of: &dyn Fn(&Account) -> f64| accounts.iter().map(of).sum::<f64>() / accounts.len().max(1) as f64;
        let seconds = mean(&|account| account.waited_s);
        summary::Comm {
            seconds,
            seconds_max: accounts.iter().map(|account| account.waited_s).fold(0.0, f64::max),
            share: seconds / train_seconds.max(1e-9),
            imbalance_seconds: mean(&|account| account.imbalance_s),
            bytes_total: bytes(&Purpose::ALL),
            bytes_fetch: bytes(&[Purpose::Fetch]),
            bytes_delegate: bytes(&[Purpose::Delegate, Purpose::DelegateGradient]),
            bytes_commit: bytes(&[Purpose::Commit]),
            bytes_sync: bytes(&[Purpose::Sync]),
            bytes_feature: bytes(&[Purpose::Feature]),
            bytes_gradient: bytes(&[Purpose::Gradient]),
            bytes_migration: bytes(&[Purpose::Migration]),
            rows_fetched: accounts.iter().map(|account| account.counts.fetched).sum(),
            messages: accounts.iter().flat_map(|account| account.sent.values().map(|sent| sent.1)).sum(),
            training: Account::training(accounts, train_seconds),
        }
    }

    /// The summary's part on remote rows.
    pub(super) fn dependency(accounts: &[Account], costs: Option<&Costs>) -> summary::Dependency {
        let sum = |of: fn(&Counts) -> u64| accounts.iter().map(|account| of(&account.counts)).sum();
        summary::Dependency {
            remote: sum(|counts| counts.remote),
            cached: sum(|counts| counts.cached),
            fetched: sum(|counts| counts.fetched),
            delegated: sum(|counts| counts.delegated),
            cache_hits: sum(|counts| counts.hits),
            cache_bytes: accounts.iter().map(|account| account.copied_bytes).max().unwrap_or(0),
            tau: accounts.first().map_or(0.0, |account| account.tau.0 / account.tau.1.max(1) as f64),
            predicted: accounts.first().map(|account| Account::predicted(&account.planned, costs, accounts.len())),
        }
    }

    fn predicted(planned: &Traffic, costs: Option<&Costs>, ranks: usize) -> summary::Predicted {
        let Some(costs) = costs else { return summary::Predicted::default() };
        let bytes = planned.rows * costs.row + planned.memories * costs.memory;
        let embeddings = 2 * planned.embeddings * costs.embedding;
        let rates = &costs.rates;
        let sent = (bytes + embeddings) as f64 / rates.bytes_per_s + planned.messages as f64 * rates.latency_s;
        let known = |seconds: f64| if rates.is_complete() { seconds / ranks as f64 } else { 0.0 };
        summary::Predicted {
            bytes_state: bytes,
            bytes_delegate: embeddings,
            communication_s: known(sent),
            replay_s: known(planned.updates as f64 * rates.update_s),
        }
    }

    fn training(accounts: &[Account], train_seconds: f64) -> summary::CommTraining {
        let bytes = |purposes: &[Purpose]| -> u64 {
            let of = |account: &Account| purposes.iter().map(|&p| account.training.of(p).sent_bytes).sum::<u64>();
            accounts.iter().map(of).sum()
        };
        let waited = |account: &Account| {
            let of = |&purpose: &Purpose| account.training.of(purpose).waited.as_secs_f64();
            Purpose::OF_BATCHES.iter().filter(|&&purpose| purpose != Purpose::Gradient).map(of).sum::<f64>()
        };
        let seconds = accounts.iter().map(waited).sum::<f64>() / accounts.len().max(1) as f64;
        summary::CommTraining {
            bytes_state: bytes(&[Purpose::Fetch, Purpose::Sync, Purpose::Commit]),
            bytes_delegate: bytes(&[Purpose::Delegate, Purpose::DelegateGradient]),
            bytes_feature: bytes(&[Purpose::Feature]),
            bytes_gradient: bytes(&[Purpose::Gradient]),
            bytes_migration: bytes(&[Purpose::Migration]),
            messages: accounts.iter().map(|account| account.training.total().sent_messages).sum(),
            share_without_gradients: seconds / train_seconds.max(1e-9),
        }
    }

    /// The summary's part on refreshes.
    pub(super) fn sync(accounts: &[Account]) -> summary::Sync {
        let mut drift = Drift::default();
        accounts.iter().for_each(|account| drift.add(&account.drift));
        let (open, closed, refreshed) = accounts.first().map_or((0, 0, 0), |account| account.gate);
        summary::Sync {
            done: refreshed,
            skipped: open + closed - refreshed,
            open,
            closed,
            rows: drift.rows,
            rows_skipped: accounts.iter().map(|account| account.rows_skipped).sum(),
            drift_mean: drift.sum / drift.rows.max(1) as f64,
            drift_max: drift.max,
            drift_histogram: drift.by_drift.to_vec(),
            staleness_histogram: drift.by_age,
        }
    }

    /// The summary's part on replay.
    pub(super) fn replay(accounts: &[Account]) -> summary::Replay {
        let sum = |of: fn(&ReplayCounts) -> u64| accounts.iter().map(|account| of(&account.replay)).sum();
        summary::Replay {
            events: sum(|counts| counts.rows),
            pruned_lossless: sum(|counts| counts.lossless),
            pruned_lossy: sum(|counts| counts.lossy),
        }
    }
}
