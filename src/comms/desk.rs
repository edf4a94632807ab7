//! What a rank's threads share: messages that have arrived and wait to be taken, who has left, what was lost, the ledger.
//!
//! Whoever carries messages (a peer's thread, the thread that owns MPI) puts them here; whoever receives sleeps here until
//! its message is there. Invariants: messages of one (sender, key) are taken in the order of their arrival; the first loss
//! stays and ends every call from then on; nobody sleeps once there is a loss.

use super::clock::Clock;
use super::ledger::Ledger;
use super::tag::{Key, Lane, Purpose};
use crate::error::{Error, Loss, Result};
use crate::stats;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// A message that has arrived.
#[derive(Debug)]
pub(super) struct Arrived {
    /// The payload.
    pub(super) bytes: Vec<u8>,
    /// When its sender posted it, by this rank's clock.
    pub(super) sent_ns: u64,
}

/// A rank that is lost, and why.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Lost {
    pub(super) rank: usize,
    pub(super) loss: Loss,
}

impl Lost {
    pub(super) fn error(&self) -> Error {
        Error::PeerLost { rank: self.rank, loss: self.loss.clone() }
    }
}

/// See the module.
pub(super) struct Desk {
    pub(super) rank: usize,
    pub(super) world: usize,
    pub(super) clock: Clock,
    state: Mutex<State>,
    changed: Condvar,
    /// Threads asleep in [`Desk::take`]; read by the thread that owns MPI to decide how long it may sleep.
    waiting: AtomicUsize,
    /// Who brings the messages, if it has to be told that one is awaited.
    carrier: OnceLock<Thread>,
}

struct State {
    messages: HashMap<(usize, Key), SmallVec<[Arrived; 1]>>,
    departed: Vec<bool>,
    lost: Option<Lost>,
    /// Messages of a lower sequence are no longer wanted.
    closed_below: u64,
    ledger: Ledger,
}

impl Desk {
    pub(super) fn new(rank: usize, world: usize, clock: Clock) -> Desk {
        let departed = vec![false; world];
        let state =
            State { messages: HashMap::new(), departed, lost: None, closed_below: 0, ledger: Ledger::default() };
        let (waiting, carrier) = (AtomicUsize::new(0), OnceLock::new());
        Desk { rank, world, clock, state: Mutex::new(state), changed: Condvar::new(), waiting, carrier }
    }

    /// A thread that panicked while it held the lock left whole messages: each change is one insertion or removal.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a message down and wakes whoever waits.
    pub(super) fn put(&self, from: usize, key: Key, message: Arrived) {
        let mut state = self.state();
        if !state.is_closed(key) {
            state.messages.entry((from, key)).or_default().push(message);
        }
        self.changed.notify_all();
    }

    /// Messages sent one by one with a sequence below `sequence` are dropped from now on; who waits for one is let go.
    pub(super) fn close_below(&self, sequence: u64) {
        let mut state = self.state();
        state.closed_below = state.closed_below.max(sequence);
        let closed_below = state.closed_below;
        state.messages.retain(|(_, key), _| !is_closed(*key, closed_below));
        self.changed.notify_all();
    }

    /// Takes a message if it is there.
    pub(super) fn try_take(&self, from: usize, key: Key) -> Result<Option<Arrived>> {
        let mut state = self.state();
        state.check()?;
        let Some(message) = state.pop(from, key) else {
            return state.check_present(from).map(|()| None);
        };
        state.ledger.count_received(key.tag.purpose, message.bytes.len());
        Ok(Some(message))
    }

    /// Whether a message is there.
    pub(super) fn holds(&self, from: usize, key: Key) -> Result<bool> {
        let state = self.state();
        state.check()?;
        if state.messages.contains_key(&(from, key)) {
            return Ok(true);
        }
        state.check_present(from).map(|()| false)
    }

    /// Takes a message, asleep until it is there; also how long that took.
    pub(super) fn take(&self, from: usize, key: Key) -> Result<(Arrived, Duration)> {
        let mut state = self.state();
        let mut asleep: Option<Sleep<'_>> = None;
        loop {
            state.check()?;
            if let Some(message) = state.pop(from, key) {
                let waited = asleep.as_ref().map_or(Duration::ZERO, |sleep| sleep.since.elapsed());
                let posted = asleep.as_ref().map_or(0, |sleep| message.sent_ns.saturating_sub(sleep.since_ns));
                state.ledger.count_received(key.tag.purpose, message.bytes.len());
                state.ledger.count_wait(key.tag.purpose, waited, Duration::from_nanos(posted).min(waited));
                if let Some(sleep) = asleep.filter(|_| Purpose::OF_BATCHES.contains(&key.tag.purpose)) {
                    stats::waited_for_message(sleep.since, waited);
                }
                return Ok((message, waited));
            }
            state.check_present(from)?;
            if state.is_closed(key) {
                return Err(Error::MessageClosed { from });
            }
            asleep.get_or_insert_with(|| Sleep::begin(self));
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A peer will send nothing more.
    pub(super) fn depart(&self, rank: usize) {
        self.state().departed[rank] = true;
        self.changed.notify_all();
    }

    /// Whether every rank, this one included, but not one that is gone, has said that it will send nothing more.
    pub(super) fn all_departed_but(&self, gone: Option<usize>) -> bool {
        self.state().departed.iter().enumerate().all(|(rank, &departed)| departed || Some(rank) == gone)
    }

    /// Has a thread unparked whenever another falls asleep until a message comes.
    pub(super) fn wake_for_waiters(&self, carrier: Thread) {
        self.carrier.set(carrier).expect("one carrier");
    }

    pub(super) fn count_received(&self, purpose: Purpose, bytes: usize) {
        self.state().ledger.count_received(purpose, bytes);
    }

    /// Sleeps until every rank has departed.
    pub(super) fn wait_for_departures(&self) -> Result<()> {
        let mut state = self.state();
        loop {
            state.check()?;
            if state.departed.iter().all(|&departed| departed) {
                return Ok(());
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Records a loss unless there is one; whether it was the first.
    pub(super) fn lose(&self, lost: Lost) -> bool {
        let mut state = self.state();
        let first = state.lost.is_none();
        state.lost.get_or_insert(lost);
        self.changed.notify_all();
        first
    }

    /// The loss, if there is one.
    pub(super) fn lost(&self) -> Option<Lost> {
        self.state().lost.clone()
    }

    /// # Errors
    /// A rank is lost.
    pub(super) fn check(&self) -> Result<()> {
        self.state().check()
    }

    pub(super) fn count_sent(&self, purpose: Purpose, bytes: usize) {
        self.state().ledger.count_sent(purpose, bytes);
    }

    pub(super) fn ledger(&self) -> Ledger {
        self.state().ledger
    }

    /// Whether a thread sleeps until a message comes.
    pub(super) fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}

impl State {
    fn check(&self) -> Result<()> {
        self.lost.as_ref().map_or(Ok(()), |lost| Err(lost.error()))
    }

    /// A departed rank sends nothing more, so waiting for it would have no end.
    fn check_present(&self, from: usize) -> Result<()> {
        if self.departed[from] { Err(Lost { rank: from, loss: Loss::Departed }.error()) } else { Ok(()) }
    }

    fn is_closed(&self, key: Key) -> bool {
        is_closed(key, self.closed_below)
    }

    fn pop(&mut self, from: usize, key: Key) -> Option<Arrived> {
        let queue = self.messages.get_mut(&(from, key))?;
        let message = queue.remove(0);
        if queue.is_empty() {
            self.messages.remove(&(from, key));
        }
        Some(message)
    }
}

fn is_closed(key: Key, below: u64) -> bool {
    key.lane == Lane::Direct && key.tag.sequence < below
}

/// A thread asleep, counted as long as this lives.
struct Sleep<'a> {
    desk: &'a Desk,
    since: Instant,
    since_ns: u64,
}

impl Sleep<'_> {
    fn begin(desk: &Desk) -> Sleep<'_> {
        desk.waiting.fetch_add(1, Ordering::Relaxed);
        if let Some(carrier) = desk.carrier.get() {
            carrier.unpark();
        }
        Sleep { desk, since: Instant::now(), since_ns: desk.clock.now_ns() }
    }
}

impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        self.desk.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
