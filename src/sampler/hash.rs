//! `sample_hash`: 128 bits that tell whether two runs sampled the same neighbors for the same reasons.
//!
//! It is the wrapping sum, over all *logical* roots (an event's source, its destination, each negative draw) and over all edges
//! sampled for them at every hop, of a hash of (event, role, hop, slot path, node, event id). A sum does not mind the order, so
//! threads and ranks add up their shares in any way; an edge in another slot, or for another root, changes it. The slot path is
//! the slot taken at each hop above, or "the root itself". A deduplicated root counts once for each logical root that it stands
//! for, so the sum does not depend on how roots were merged, delegated or cached. Each logical root also adds a term of its own,
//! (event, role, node), lest one without neighbors could go missing unseen.
//!
//! The hash is made for speed, a few nanoseconds an edge, against accidents and not against adversaries. Times are not in it:
//! the event id fixes the time.

use super::block::Sample;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::ops::{Add, AddAssign};
use std::str::FromStr;
use tidemill_data::id::EventId;

/// What a logical root is to its event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The event's source.
    Source,
    /// The event's destination.
    Destination,
    /// The negative destination of this draw, from 0.
    Negative(u32),
}

impl Role {
    /// Which event of a batch, by its place, a logical root belongs to, and as what. The order of logical roots: all sources, all
    /// destinations, then the negatives, event after event.
    ///
    /// * `events`: in the batch. * `per_event`: negatives of each.
    pub fn of(logical: usize, events: usize, per_event: usize) -> (usize, Role) {
        match logical / events {
            0 => (logical, Role::Source),
            1 => (logical - events, Role::Destination),
            _ => {
                let negative = logical - 2 * events;
                (negative / per_event, Role::Negative((negative % per_event) as u32))
            }
        }
    }

    fn code(self) -> u64 {
        match self {
            Role::Source => 0,
            Role::Destination => 1,
            Role::Negative(draw) => 2 + u64::from(draw),
        }
    }
}

/// The order-free hash of samples. Shares are combined by `+`; the empty one is the default. Shown as 32 hex digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SampleHash(pub u128);

impl SampleHash {
    /// Adds logical root `i` of a sample: the `role` of `event`, and all edges sampled for it.
    pub fn add_root(&mut self, sample: &Sample, i: usize, event: EventId, role: Role) {
        let top = sample.root_of[i] as usize;
        let prefix = Prefix::new(event, role);
        *self += SampleHash(prefix.digest(u64::from(sample.hops[0].roots[top].node.0)));
        self.add_edges(sample, 0, top, prefix.below(0));
    }

    /// Adds the edges of root `r` of hop `h` and of all below it.
    fn add_edges(&mut self, sample: &Sample, h: usize, r: usize, prefix: Prefix) {
        let hop = &sample.hops[h];
        let deeper = h + 1 < sample.hops.len();
        if deeper {
            self.add_edges(sample, h + 1, hop.below_root[r] as usize, prefix.below(0));
        }
        for (slot, at) in (1..).zip(hop.slots(r)) {
            let prefix = prefix.below(slot);
            let edge = u64::from(hop.event[at].0) << 32 | u64::from(hop.neighbor[at].0);
            *self += SampleHash(prefix.digest(edge));
            if deeper {
                self.add_edges(sample, h + 1, hop.below_neighbor[at] as usize, prefix);
            }
        }
    }
}

/// The reason for an edge, hashed: event and role of the logical root, then a step per hop. Two independent words.
#[derive(Clone, Copy)]
struct Prefix(u64, u64);

impl Prefix {
    fn new(event: EventId, role: Role) -> Prefix {
        let word = mix(u64::from(event.0)).wrapping_add(role.code());
        Prefix(mix(word ^ 0x243F_6A88_85A3_08D3), mix(word.wrapping_add(0x1319_8A2E_0370_7344)))
    }

    /// One step down: through a slot (from 1), or to the root itself (0).
    #[inline]
    fn below(self, step: u64) -> Prefix {
        Prefix(
            mix(self.0 ^ (step + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)),
            mix(self.1.wrapping_add((step + 1).wrapping_mul(0xC2B2_AE3D_27D4_EB4F))),
        )
    }

    #[inline]
    fn digest(self, word: u64) -> u128 {
        u128::from(mix(self.0 ^ word)) << 64 | u128::from(mix(self.1.wrapping_add(word)))
    }
}

/// A bijection that spreads every bit over all: the finalizer of SplitMix64 (Steele et al., OOPSLA 2014).
#[inline]
fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}

impl Add for SampleHash {
    type Output = SampleHash;

    fn add(self, other: SampleHash) -> SampleHash {
        SampleHash(self.0.wrapping_add(other.0))
    }
}

impl AddAssign for SampleHash {
    fn add_assign(&mut self, other: SampleHash) {
        *self = *self + other;
    }
}

impl fmt::Display for SampleHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A text that is no sample hash.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no sample hash: 32 hex digits are")]
pub struct ParseSampleHashError {
    /// What was written.
    pub text: String,
}

impl FromStr for SampleHash {
    type Err = ParseSampleHashError;

    fn from_str(text: &str) -> Result<SampleHash, ParseSampleHashError> {
        let hex = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let value = if hex { u128::from_str_radix(text, 16).ok() } else { None };
        value.map(SampleHash).ok_or_else(|| ParseSampleHashError { text: text.to_owned() })
    }
}

impl Serialize for SampleHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SampleHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SampleHash, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}
