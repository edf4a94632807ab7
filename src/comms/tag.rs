//! What tells messages between two ranks apart.

use serde::{Deserialize, Serialize};

/// What a message is for; traffic is counted by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// Rows pushed by their owner for a batch that reads them.
    Fetch,
    /// Embeddings of delegated roots.
    Delegate,
    /// Their gradients, on the way back.
    DelegateGradient,
    /// Memory rows of peers that a state commit needs.
    Commit,
    /// Rows refreshed by the boundary's gate.
    Sync,
    /// Features of events that a rank does not hold.
    Feature,
    /// Parameter gradients, and whatever else is summed over the ranks.
    Gradient,
    /// State of nodes that change their owner.
    Migration,
    /// Scores on their way to the metrics.
    Score,
    /// Everything else: heartbeats, agreements, small collectives.
    Control,
}

impl Purpose {
    /// All purposes, in order.
    pub const ALL: [Purpose; 10] = [
        Purpose::Fetch,
        Purpose::Delegate,
        Purpose::DelegateGradient,
        Purpose::Commit,
        Purpose::Sync,
        Purpose::Feature,
        Purpose::Gradient,
        Purpose::Migration,
        Purpose::Score,
        Purpose::Control,
    ];

    /// Those of the stages, while a batch goes through them.
    pub const OF_BATCHES: [Purpose; 8] = [
        Purpose::Fetch,
        Purpose::Delegate,
        Purpose::DelegateGradient,
        Purpose::Commit,
        Purpose::Sync,
        Purpose::Feature,
        Purpose::Gradient,
        Purpose::Migration,
    ];
}

/// Names one message from one rank to another: (purpose, sequence) is unique for the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag {
    /// What it is for.
    pub purpose: Purpose,
    /// Which of its kind, such as `pass << 32 | batch`.
    pub sequence: u64,
}

/// Which operation a message belongs to, so that their tags do not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    /// `send` and `receive`.
    Direct,
    /// Contributions to a sum.
    Scatter,
    /// Finished sums.
    Collect,
    /// `broadcast`.
    Broadcast,
    /// `gather`.
    Gather,
    /// `all_gather`.
    AllGather,
    /// `barrier`.
    Barrier,
    /// `agree`.
    Agree,
}

impl Lane {
    const ALL: [Lane; 8] = [
        Lane::Direct,
        Lane::Scatter,
        Lane::Collect,
        Lane::Broadcast,
        Lane::Gather,
        Lane::AllGather,
        Lane::Barrier,
        Lane::Agree,
    ];
}

/// A tag with the operation and the part of it (a bucket, a round).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) lane: Lane,
    pub(super) part: u32,
    pub(super) tag: Tag,
}

impl Key {
    /// Of a plain message.
    pub(super) fn direct(tag: Tag) -> Key {
        Key { lane: Lane::Direct, part: 0, tag }
    }

    /// Bytes of a key on the wire.
    pub(super) const WIRE: usize = 14;

    /// For the wire.
    pub(super) fn to_wire(self) -> [u8; Key::WIRE] {
        let mut wire = [0; Key::WIRE];
        wire[0] = self.lane as u8;
        wire[1] = self.tag.purpose as u8;
        wire[2..6].copy_from_slice(&self.part.to_le_bytes());
        wire[6..].copy_from_slice(&self.tag.sequence.to_le_bytes());
        wire
    }

    /// From the wire; `None` if another program wrote it.
    pub(super) fn from_wire(wire: &[u8; Key::WIRE]) -> Option<Key> {
        let lane = *Lane::ALL.get(usize::from(wire[0]))?;
        let purpose = *Purpose::ALL.get(usize::from(wire[1]))?;
        let part = u32::from_le_bytes(wire[2..6].try_into().ok()?);
        let sequence = u64::from_le_bytes(wire[6..].try_into().ok()?);
        Some(Key { lane, part, tag: Tag { purpose, sequence } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_the_wire_and_others_are_refused() {
        for (at, &purpose) in Purpose::ALL.iter().enumerate() {
            assert_eq!(purpose as usize, at);
            for &lane in &Lane::ALL {
                let key = Key { lane, part: 7 << 20, tag: Tag { purpose, sequence: u64::MAX - at as u64 } };
                assert_eq!(Key::from_wire(&key.to_wire()), Some(key));
            }
        }
        assert_eq!(Key::from_wire(&[200; Key::WIRE]), None);
    }
}
