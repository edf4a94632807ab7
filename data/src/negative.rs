//! Negative destinations: whom an event's source might have met instead.
//!
//! A draw is a pure function of (seed, purpose, epoch, event, draw): every rank finds the same negative. With
//! `avoid_positive` it is uniform over the candidates without the true destination, exactly: the true one's position is
//! skipped, nothing is drawn twice.
//!
//! [`EdgeSampler`] draws whole edges (historical and inductive negatives), [`CandidateSets`] gives the many that one event is
//! ranked against.

mod candidate;
mod choice;
mod edge;

pub use candidate::CandidateSets;
pub use edge::{EdgeRule, EdgeSampler, Pair};

use crate::error::{Error, Result};
use crate::id::{EventId, NodeId};
use crate::node_set::NodeSet;
use crate::philox::Key;
use crate::split::{Split, read_nodes};
use crate::stream::EventStream;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::path::PathBuf;

/// Which nodes may be negatives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CandidateRule {
    /// Distinct destinations of the training events (after the mask).
    #[default]
    TrainDestinations,
    /// Distinct destinations of the whole stream.
    StreamDestinations,
    /// All dense ids from the least to the greatest destination of the split that is trained or scored.
    IdRange,
    /// All nodes, sources included.
    AllNodes,
    /// The nodes listed in a file, one a line: `ID`, `src:ID`, `dst:ID` or `dense:NUMBER`.
    File(PathBuf),
}

const RULES: [(&str, CandidateRule); 4] = [
    ("train_destinations", CandidateRule::TrainDestinations),
    ("stream_destinations", CandidateRule::StreamDestinations),
    ("id_range", CandidateRule::IdRange),
    ("all_nodes", CandidateRule::AllNodes),
];

impl Serialize for CandidateRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match (self, RULES.iter().find(|(_, rule)| rule == self)) {
            (CandidateRule::File(path), _) => path.serialize(serializer),
            (_, Some((name, _))) => name.serialize(serializer),
            (_, None) => unreachable!("every rule but a file has a name"),
        }
    }
}

impl<'de> Deserialize<'de> for CandidateRule {
    /// One of the names, or the path of a file: whatever holds a `.` or a `/`.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<CandidateRule, D::Error> {
        let text = String::deserialize(deserializer)?;
        if let Some((_, rule)) = RULES.iter().find(|(name, _)| *name == text) {
            return Ok(rule.clone());
        }
        if text.contains(['.', '/']) {
            return Ok(CandidateRule::File(text.into()));
        }
        Err(serde::de::Error::custom(format!(
            "`{text}` is neither train_destinations, stream_destinations, id_range, all_nodes nor a file (as ./ids.txt)"
        )))
    }
}

/// The split whose events get negatives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scored {
    /// Training.
    Train,
    /// Validation.
    Val,
    /// Test.
    Test,
}

#[derive(Clone, Debug)]
enum Candidates {
    List(Box<[NodeId]>),
    Range { first: u32, len: u32 },
}

/// Draws negative destinations. `Send + Sync`; holds no state.
#[derive(Clone, Debug)]
pub struct NegativeSampler {
    candidates: Candidates,
    avoid_positive: bool,
    key: Key,
}

impl NegativeSampler {
    /// Gathers the candidates.
    ///
    /// * `scored`: the split whose events get negatives; `id_range` is taken from it.
    /// * `key`: of the run's seed and purpose.
    ///
    /// # Errors
    /// If there is no candidate, or a listed one is no node of the stream.
    pub fn new(
        stream: &EventStream,
        split: &Split,
        rule: &CandidateRule,
        scored: Scored,
        avoid_positive: bool,
        key: Key,
    ) -> Result<NegativeSampler> {
        let all = || (0..stream.len() as u32).map(EventId);
        let candidates = match rule {
            CandidateRule::TrainDestinations => distinct(stream, split.train.iter().copied()),
            CandidateRule::StreamDestinations => distinct(stream, all()),
            CandidateRule::IdRange => match scored {
                Scored::Train => id_range(stream, split.train.iter().copied()),
                Scored::Val => id_range(stream, split.val.clone().map(EventId)),
                Scored::Test => id_range(stream, split.test.clone().map(EventId)),
            },
            CandidateRule::AllNodes => Candidates::Range { first: 0, len: stream.nodes() },
            CandidateRule::File(path) => Candidates::List(read_nodes(stream, path)?.iter().collect()),
        };
        if candidates.len() == 0 {
            let mend = format!("no node can be a negative of the {scored:?} events; choose other candidates");
            return Err(Error::setting("negatives", format!("{rule:?}"), mend));
        }
        Ok(NegativeSampler { candidates, avoid_positive, key })
    }

    /// Negative number `draw` of an event.
    ///
    /// * `epoch`: 0 in evaluation, so that every evaluation meets the same negatives.
    /// * `positive`: the true destination; drawn only if it is the sole candidate, under `avoid_positive`.
    #[inline]
    pub fn draw(&self, epoch: u32, event: EventId, positive: NodeId, draw: u32) -> NodeId {
        let n = self.candidates.len();
        let skipped = if self.avoid_positive && n > 1 { self.candidates.position(positive) } else { None };
        let index = self.key.narrow([epoch, event.0, draw, 0]).below(0, n - u32::from(skipped.is_some()));
        self.candidates.get(index + u32::from(skipped.is_some_and(|s| index >= s)))
    }

    /// Number of candidates.
    pub fn candidates(&self) -> usize {
        self.candidates.len() as usize
    }

    /// The candidates, ascending.
    pub fn iter(&self) -> impl Iterator<Item = NodeId> + '_ {
        (0..self.candidates.len()).map(|i| self.candidates.get(i))
    }
}

impl Candidates {
    fn len(&self) -> u32 {
        match self {
            Candidates::List(nodes) => nodes.len() as u32,
            Candidates::Range { len, .. } => *len,
        }
    }

    fn get(&self, at: u32) -> NodeId {
        match self {
            Candidates::List(nodes) => nodes[at as usize],
            Candidates::Range { first, .. } => NodeId(first + at),
        }
    }

    fn position(&self, node: NodeId) -> Option<u32> {
        match self {
            Candidates::List(nodes) => nodes.binary_search(&node).ok().map(|i| i as u32),
            Candidates::Range { first, len } => node.0.checked_sub(*first).filter(|i| i < len),
        }
    }
}

fn distinct(stream: &EventStream, events: impl Iterator<Item = EventId>) -> Candidates {
    let mut seen = NodeSet::new(stream.nodes());
    events.for_each(|e| {
        seen.insert(stream.destination(e));
    });
    Candidates::List(seen.iter().collect())
}

fn id_range(stream: &EventStream, events: impl Iterator<Item = EventId>) -> Candidates {
    let bounds = events.map(|e| stream.destination(e).0).fold(None, |bounds, node| match bounds {
        None => Some((node, node)),
        Some((low, high)) => Some((node.min(low), node.max(high))),
    });
    bounds.map_or(Candidates::Range { first: 0, len: 0 }, |(low, high)| Candidates::Range {
        first: low,
        len: high - low + 1,
    })
}

/// `size` distinct ones of `events` in their order, drawn by counter; all if there are not more.
pub fn sample_events(events: &[EventId], size: usize, key: Key) -> Vec<EventId> {
    let mut places = choice::distinct(key, size, events.len() as u64);
    places.sort_unstable();
    places.into_iter().map(|at| events[at as usize]).collect()
}

#[cfg(test)]
mod tests;
