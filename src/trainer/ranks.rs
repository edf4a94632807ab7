//! What the ranks of a run tell each other outside of batches: owners, scores, hashes, states.

use super::stored_state::StoredState;
use super::{Summary, Trainer, state_hash};
use crate::error::Result;
use crate::eval::SplitScores;
use crate::partition::{PartitionTable, Rank};
use crate::pipeline::event::Pass;
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
        if let Some(run) = self.run.as_mut().filter(|_| self.comm.rank() == 0) {
            run.metrics.flush()?;
            run.folder.write_summary(summary)?;
        }
        Ok(())
    }
}
