//! Signs of life: when to give one, which peer is silent, and by how much the peers' clocks differ from ours.
//!
//! Clocks are compared as in NTP (RFC 5905, section 8): a beat carries back the send time of the peer's last one, and the
//! exchange with the shortest round trip counts. Pure bookkeeping: times are handed in, so that tests can make them up.
//!
//! Invariant: nobody is judged by time in which this process itself did not run.

use super::wire::Echo;
use std::time::Duration;

/// Beats in a timeout.
const BEATS: u32 = 10;

/// The longest pause between beats.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How much longer than the timeout a peer may take for its first sign of life: hosts do not start at once.
const START: Duration = Duration::from_secs(5);

/// By how much the best round trip is held to be longer after each further beat: clocks drift, so estimates age.
const AGING: f64 = 1.02;

/// What is known of all peers.
#[derive(Debug)]
pub(super) struct Health {
    rank: usize,
    timeout_ns: u64,
    pause_ns: u64,
    next_beat_ns: u64,
    looked_ns: u64,
    peers: Vec<Peer>,
}

#[derive(Clone, Copy, Debug)]
struct Peer {
    heard_ns: u64,
    /// The last beat's send time by the peer's clock and its arrival by ours.
    beat: Option<(u64, u64)>,
    /// Round trip and offset (peer's clock less ours) in nanoseconds.
    offset: Option<(f64, i64)>,
}

impl Health {
    pub(super) fn new(rank: usize, world: usize, timeout: Duration, now_ns: u64) -> Health {
        let pause = (timeout / BEATS).min(LONGEST_PAUSE);
        Health {
            rank,
            timeout_ns: nanoseconds(timeout),
            pause_ns: nanoseconds(pause),
            next_beat_ns: now_ns,
            looked_ns: now_ns,
            peers: vec![Peer { heard_ns: now_ns + nanoseconds(START), beat: None, offset: None }; world],
        }
    }

    /// Whether a beat is due; if so the next one is a pause later.
    pub(super) fn is_beat_due(&mut self, now_ns: u64) -> bool {
        let due = now_ns >= self.next_beat_ns;
        if due {
            self.next_beat_ns = now_ns + self.pause_ns;
        }
        due
    }

    /// What a beat to `rank` carries back.
    pub(super) fn echo(&self, rank: usize, now_ns: u64) -> Echo {
        let beat = self.peers[rank].beat;
        beat.map_or(Echo::default(), |(sent_ns, came_ns)| Echo { sent_ns, held_ns: now_ns.saturating_sub(came_ns) })
    }

    /// Something came from a peer.
    pub(super) fn heard(&mut self, rank: usize, now_ns: u64) {
        self.peers[rank].heard_ns = now_ns;
    }

    /// A beat came from a peer, sent at `sent_ns` by its clock.
    pub(super) fn beat(&mut self, rank: usize, sent_ns: u64, echo: Echo, now_ns: u64) {
        let peer = &mut self.peers[rank];
        peer.beat = Some((sent_ns, now_ns));
        if echo.sent_ns == 0 {
            return;
        }
        let round_trip = now_ns.saturating_sub(echo.sent_ns).saturating_sub(echo.held_ns) as f64;
        let aged = peer.offset.map_or(f64::INFINITY, |(best, _)| best * AGING);
        let there = difference(sent_ns - echo.held_ns.min(sent_ns), echo.sent_ns);
        let back = difference(sent_ns, now_ns);
        peer.offset = match peer.offset {
            Some((_, offset)) if round_trip > aged => Some((aged, offset)),
            _ => Some((round_trip, there.midpoint(back))),
        };
    }

    /// A time of a peer's clock by ours.
    pub(super) fn to_own_clock(&self, rank: usize, their_ns: u64) -> u64 {
        their_ns.saturating_add_signed(self.peers[rank].offset.map_or(0, |(_, offset)| -offset))
    }

    /// The peer that has been silent longer than the timeout, the longest silent one first, and for how long. To be called often.
    pub(super) fn silent(&mut self, now_ns: u64) -> Option<(usize, Duration)> {
        // What came while this process did not run is still to be read.
        let gap = now_ns.saturating_sub(self.looked_ns);
        self.looked_ns = now_ns;
        if gap > self.pause_ns {
            self.peers.iter_mut().for_each(|peer| peer.heard_ns = (peer.heard_ns + gap).min(now_ns).max(peer.heard_ns));
        }
        let others = self.peers.iter().enumerate().filter(|&(rank, _)| rank != self.rank);
        let (rank, peer) = others.min_by_key(|(_, peer)| peer.heard_ns)?;
        let silence = now_ns.saturating_sub(peer.heard_ns);
        (silence > self.timeout_ns).then(|| (rank, Duration::from_nanos(silence)))
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn difference(a: u64, b: u64) -> i64 {
    a.wrapping_sub(b).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const BEGIN: u64 = 1_000_000 * MS;

    fn health() -> Health {
        Health::new(0, 3, Duration::from_secs(1), BEGIN)
    }

    #[test]
    fn ten_beats_a_timeout() {
        let mut health = health();
        let beats = (0..1000).filter(|ms| health.is_beat_due(BEGIN + ms * MS)).count();
        assert_eq!(beats, 10);
        let mut patient = Health::new(0, 3, Duration::from_secs(60), BEGIN);
        assert_eq!((0..10_000).filter(|ms| patient.is_beat_due(BEGIN + ms * MS)).count(), 10);
    }

    #[test]
    fn the_silent_one_is_named_after_the_timeout_and_not_before() {
        let mut health = health();
        for ms in 0..3000 {
            let now = BEGIN + ms * MS;
            if ms % 100 == 0 {
                health.heard(1, now);
            }
            if ms == 500 {
                health.heard(2, now);
            }
            match health.silent(now) {
                None => assert!(ms <= 1500, "named at last"),
                Some((rank, silence)) => {
                    assert!(rank == 2 && ms > 1500 && silence > Duration::from_secs(1), "{rank} at {ms} ms");
                }
            }
        }
    }

    #[test]
    fn hosts_need_not_start_at_once() {
        let mut health = health();
        let named = (0..20_000).step_by(10).find(|ms| health.silent(BEGIN + ms * MS).is_some());
        assert_eq!(named, Some(6010));
    }

    #[test]
    fn nobody_is_judged_by_time_in_which_we_did_not_run() {
        let mut health = health();
        [1, 2].into_iter().for_each(|rank| health.heard(rank, BEGIN));
        assert_eq!(health.silent(BEGIN + 50 * MS), None);
        // Stopped for an hour.
        let woken = BEGIN + 3_600_000 * MS;
        assert_eq!(health.silent(woken), None);
        assert_eq!(health.silent(woken + 50 * MS), None);
        health.heard(1, woken + 60 * MS);
        let named = (0..1200).find_map(|ms| health.silent(woken + (60 + ms) * MS));
        assert_eq!(named.expect("silence counts again").0, 2);
    }

    /// Rank 1's clock is 5 s ahead; one way takes 2 ms, sometimes 30 ms on the way back.
    #[test]
    fn the_offset_of_clocks_is_found_through_jitter() {
        const AHEAD: u64 = 5000 * MS;
        let (mut ours, mut theirs) = (health(), Health::new(1, 3, Duration::from_secs(1), BEGIN + AHEAD));
        for round in 0..20 {
            let sent = BEGIN + round * 100 * MS;
            let came = sent + 2 * MS + AHEAD;
            theirs.beat(0, sent, ours.echo(1, sent), came);
            let answered = came + 7 * MS;
            let back = if round % 3 == 1 { 30 } else { 2 };
            ours.beat(1, answered, theirs.echo(0, answered), answered - AHEAD + back * MS);
        }
        assert_eq!(ours.to_own_clock(1, BEGIN + AHEAD + 123), BEGIN + 123);
        let error = theirs.to_own_clock(0, BEGIN).abs_diff(BEGIN + AHEAD);
        assert!(error <= MS, "{error} ns");
        assert_eq!(ours.to_own_clock(2, BEGIN), BEGIN);
    }
}
