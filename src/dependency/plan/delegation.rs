//! Who embeds a root: the rank whose event asks for it, or the root's owner ("delegated"), whichever makes fewer bytes move, given
//! what the batch needs on that rank already.

use super::reach::{Reach, Reached};
use super::{GlobalBatch, Planner};
use crate::dependency::copies::Found;
use crate::partition::Rank;
use crate::sampler::{Sample, SampleScratch};
use crate::setting::Auto;
use std::collections::{BTreeMap, HashSet};
use tidemill_data::id::{EventId, NodeId};

/// What a rank needs for the roots it has taken on.
#[derive(Clone, Default)]
struct Needs {
    rows: HashSet<NodeId>,
    features: HashSet<EventId>,
}

impl Planner {
    /// The rank that embeds each logical root.
    pub(super) fn embedders(
        &self,
        batch: &GlobalBatch<'_>,
        primary: &[Rank],
        scratch: &mut SampleScratch,
    ) -> Vec<Rank> {
        let asks = |logical: usize| primary[batch.event_of(logical)];
        match self.delegate {
            Auto::Value(false) => (0..batch.roots.len()).map(asks).collect(),
            Auto::Value(true) => batch.roots.iter().map(|root| self.owner(root.node)).collect(),
            Auto::Auto => {
                let all: Vec<u32> = (0..batch.roots.len() as u32).collect();
                let whole = batch.sample(&all, scratch);
                self.cheaper(batch, &whole, asks)
            }
        }
    }

    /// For each root the rank where it moves fewer bytes, its own rank's first: what a batch needs anyway costs nothing more.
    fn cheaper(&self, batch: &GlobalBatch<'_>, whole: &Sample, asks: impl Fn(usize) -> Rank) -> Vec<Rank> {
        let reach = Reach::of(whole);
        let mut needs: Vec<Needs> = vec![Needs::default(); self.copies.len()];
        let mut embedder = vec![self.me; batch.roots.len()];
        let mut remote = Vec::new();
        for (logical, root) in batch.roots.iter().enumerate() {
            let asking = asks(logical);
            if self.owner(root.node) == asking {
                embedder[logical] = asking;
                self.take_on(&mut needs, asking, reach.of_root(whole.root_of[logical]));
            } else {
                remote.push(logical);
            }
        }
        let travel = self.weights.embedding * if self.pass.training { 2 } else { 1 };
        let mut decided: BTreeMap<(Rank, u32), Rank> = BTreeMap::new();
        for logical in remote {
            let (asking, root) = (asks(logical), whole.root_of[logical]);
            let owner = self.owner(batch.roots[logical].node);
            embedder[logical] = *decided.entry((asking, root)).or_insert_with(|| {
                let reached = reach.of_root(root);
                let delegated = travel + self.more_bytes(&needs, owner, reached);
                let chosen = if delegated < self.more_bytes(&needs, asking, reached) { owner } else { asking };
                self.take_on(&mut needs, chosen, reached);
                chosen
            });
        }
        embedder
    }

    /// Bytes that must move so that `rank` can embed a root, on top of what it needs already.
    fn more_bytes(&self, needs: &[Needs], rank: Rank, reached: &Reached) -> u64 {
        let have = &needs[rank.index()];
        let moves = |node: &&NodeId| {
            let version = self.written[node.index()];
            self.owner(**node) != rank
                && version > 0
                && !have.rows.contains(*node)
                && !self.replicates(rank, **node)
                && self.copies[rank.index()].find(**node, version) != Found::Fresh
        };
        let rows = reached.rows.iter().filter(moves).count() as u64;
        let foreign = |event: &&EventId| {
            !self.holds_features(rank, **event)
                && !have.features.contains(*event)
                && self.features[rank.index()].find(**event, 0) != Found::Fresh
        };
        let features = match self.weights.feature {
            0 => 0,
            bytes => bytes * reached.events.iter().filter(foreign).count() as u64,
        };
        rows * self.weights.row + features
    }

    fn take_on(&self, needs: &mut [Needs], rank: Rank, reached: &Reached) {
        let needs = &mut needs[rank.index()];
        needs.rows.extend(&reached.rows);
        if self.weights.feature > 0 {
            needs.features.extend(&reached.events);
        }
    }
}
