//! Small collectives over plain messages: broadcast, gather, barrier, agreement.
//!
//! All ranks call them under the same `sequence`, unique for the operation. They count as control traffic.

use super::communicator::Communicator;
use super::tag::{Key, Lane, Purpose, Tag};
use crate::error::{Error, Result};
use std::sync::atomic::Ordering;

fn key(lane: Lane, part: u32, sequence: u64) -> Key {
    Key { lane, part, tag: Tag { purpose: Purpose::Control, sequence } }
}

impl Communicator {
    /// Replaces every rank's `bytes` by the root's.
    ///
    /// # Errors
    /// A rank is lost.
    pub fn broadcast(&self, root: usize, sequence: u64, bytes: &mut Vec<u8>) -> Result<()> {
        let key = key(Lane::Broadcast, 0, sequence);
        if self.rank() != root {
            *bytes = self.take(root, key)?;
            return Ok(());
        }
        self.peers().try_for_each(|peer| self.post(peer, key, bytes.clone()))
    }

    /// Every rank's bytes, by rank, on the root; nothing on the others.
    ///
    /// # Errors
    /// A rank is lost.
    pub fn gather(&self, root: usize, sequence: u64, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        let key = key(Lane::Gather, 0, sequence);
        self.post(root, key, bytes)?;
        let sources = if self.rank() == root { 0..self.world() } else { 0..0 };
        sources.map(|rank| self.take(rank, key)).collect()
    }

    /// Every rank's bytes, by rank, on all.
    ///
    /// # Errors
    /// A rank is lost.
    pub fn all_gather(&self, sequence: u64, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        self.exchange_all(key(Lane::AllGather, 0, sequence), bytes)
    }

    /// Returns once every rank has called it.
    ///
    /// # Errors
    /// A rank is lost.
    pub fn barrier(&self, sequence: u64) -> Result<()> {
        let (own, world) = (self.rank(), self.world());
        // Dissemination: after round k a rank has heard, at second hand, of the 2^(k+1) - 1 ranks before it.
        for round in (0..usize::BITS).take_while(|&round| 1 << round < world) {
            let (key, step) = (key(Lane::Barrier, round, sequence), 1 << round);
            self.post((own + step) % world, key, Vec::new())?;
            self.take((own + world - step) % world, key)?;
        }
        Ok(())
    }

    /// Makes sure that all ranks hold the same of `what` (as in "configuration"), known by its digest. All ranks make the same
    /// agreements in the same order.
    ///
    /// # Errors
    /// On every rank alike: the first rank that differs from rank 0 is named. Or a rank is lost.
    pub fn agree(&self, what: &str, digest: &[u8]) -> Result<()> {
        let sequence = self.member.agreements.fetch_add(1, Ordering::Relaxed);
        let digests = self.exchange_all(key(Lane::Agree, 0, sequence), digest.to_vec())?;
        let Some(rank) = digests.iter().position(|digest| *digest != digests[0]) else {
            return Ok(());
        };
        Err(Error::Usage {
            problem: format!("rank {rank} was started with another {what} than rank 0"),
            mend: "start the same program with the same configuration and data on every host".to_owned(),
        })
    }

    fn exchange_all(&self, key: Key, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        self.peers().try_for_each(|peer| self.post(peer, key, bytes.clone()))?;
        self.post(self.rank(), key, bytes)?;
        (0..self.world()).map(|rank| self.take(rank, key)).collect()
    }

    pub(super) fn take(&self, from: usize, key: Key) -> Result<Vec<u8>> {
        let (message, _) = self.member.desk.take(from, key)?;
        Ok(message.bytes)
    }

    pub(super) fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.rank();
        (0..self.world()).filter(move |&rank| rank != own)
    }
}
