//! What the ways between ranks can do: latency, bandwidth, and how fast small messages follow each other.
//!
//! Rank 0 plays ping-pong with each of the others in turn while the rest wait; the figures are means over them, and every rank
//! gets the same, so that what is decided by them is decided alike.

use super::communicator::Communicator;
use super::tag::{Purpose, Tag};
use crate::error::Result;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Figures of messages between two ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// From a send to the end of its receive, of a message of a few bytes; in seconds.
    pub latency_s: f64,
    /// Bytes a second of messages of 1 MiB in one direction.
    pub bytes_per_s: f64,
    /// Messages of 64 bytes a second in one direction.
    pub messages_per_s: f64,
}

const ROUNDS: usize = 100;
const LONG: (usize, usize) = (16, 1 << 20);
const SHORT: (usize, usize) = (2000, 64);

impl Communicator {
    /// Measures; nothing else should be sent meanwhile. Uses the tag (control, `sequence`) and the broadcast of `sequence`.
    /// `None` alone. All ranks call it.
    ///
    /// # Errors
    /// A rank is lost.
    pub fn measure(&self, sequence: u64) -> Result<Option<Rates>> {
        if self.world() == 1 {
            return Ok(None);
        }
        let tag = Tag { purpose: Purpose::Control, sequence };
        let mut sum = Rates::default();
        for peer in 1..self.world() {
            if self.rank() == 0 {
                let rates = self.lead(peer, tag)?;
                sum.latency_s += rates.latency_s;
                sum.bytes_per_s += rates.bytes_per_s;
                sum.messages_per_s += rates.messages_per_s;
            } else if self.rank() == peer {
                self.follow(tag)?;
            }
        }
        let peers = (self.world() - 1) as f64;
        let means = [sum.latency_s / peers, sum.bytes_per_s / peers, sum.messages_per_s / peers];
        let mut bytes = bytemuck::cast_slice(&means).to_vec();
        self.broadcast(0, sequence, &mut bytes)?;
        let means: Vec<f64> = bytes.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect();
        Ok(Some(Rates { latency_s: means[0], bytes_per_s: means[1], messages_per_s: means[2] }))
    }

    /// Rank 0's part towards one peer.
    fn lead(&self, peer: usize, tag: Tag) -> Result<Rates> {
        let mut rounds = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let start = Instant::now();
            self.send(peer, tag, vec![0; 8])?;
            self.receive(peer, tag)?;
            rounds.push(start.elapsed());
        }
        rounds.sort_unstable();
        let latency = rounds[ROUNDS / 2] / 2;
        let flow = |(count, length): (usize, usize)| -> Result<Duration> {
            let start = Instant::now();
            (0..count).try_for_each(|_| self.send(peer, tag, vec![1; length]))?;
            self.receive(peer, tag)?;
            Ok(start.elapsed().saturating_sub(latency).max(Duration::from_nanos(1)))
        };
        let (long, short) = (flow(LONG)?, flow(SHORT)?);
        Ok(Rates {
            latency_s: latency.as_secs_f64(),
            bytes_per_s: (LONG.0 * LONG.1) as f64 / long.as_secs_f64(),
            messages_per_s: SHORT.0 as f64 / short.as_secs_f64(),
        })
    }

    /// The peer's part: answers each ping, and each flow once it is complete.
    fn follow(&self, tag: Tag) -> Result<()> {
        for _ in 0..ROUNDS {
            let ping = self.receive(0, tag)?;
            self.send(0, tag, ping.bytes)?;
        }
        for (count, _) in [LONG, SHORT] {
            for _ in 0..count {
                self.receive(0, tag)?;
            }
            self.send(0, tag, Vec::new())?;
        }
        Ok(())
    }
}
