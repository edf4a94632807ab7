//! A rank's handle on the others: messages by tag, the ledger, and how a run ends for all.

use super::CommConfig;
use super::clock::{Clock, system_time};
use super::desk::{Arrived, Desk, Lost};
use super::launch::Launch;
use super::ledger::Ledger;
use super::local::Threads;
use super::processes::{self, Processes};
use super::tag::{Key, Purpose, Tag};
use crate::error::{Error, Loss, Result};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// A message that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// What was sent.
    pub bytes: Vec<u8>,
    /// When the peer posted it, by this host's clock.
    pub sent: SystemTime,
    /// How long the call waited for it.
    pub waited: Duration,
}

/// A cheap handle, for any thread of the rank. A rank whose last handle goes without [`Communicator::finish`], or whose
/// thread panics while it holds one, is lost to the others: their calls end with an error that names it.
pub struct Communicator {
    pub(super) member: Arc<Member>,
}

impl Clone for Communicator {
    fn clone(&self) -> Communicator {
        Communicator { member: Arc::clone(&self.member) }
    }
}

/// One rank's place in the world.
pub(super) struct Member {
    pub(super) desk: Arc<Desk>,
    way: Way,
    pub(super) bucket_bytes: usize,
    /// Agreements so far; all ranks make the same ones in the same order.
    pub(super) agreements: AtomicU64,
    ended: AtomicBool,
}

/// How messages leave.
enum Way {
    Alone,
    Threads(Threads),
    Processes(Processes),
}

impl Communicator {
    /// The only rank: sums and broadcasts change nothing, and only messages to oneself can be sent.
    pub fn alone() -> Communicator {
        let desk = Arc::new(Desk::new(0, 1, Clock::start()));
        Communicator::new(desk, Way::Alone, &CommConfig::default())
    }

    /// `world` ranks for as many threads of this process. Everything crosses as copied bytes.
    ///
    /// # Panics
    /// If `world` is 0.
    pub fn local(world: usize, config: &CommConfig) -> Vec<Communicator> {
        Communicator::threads(world, config, false)
    }

    /// As [`local`](Communicator::local), and each buffer is overwritten once its bytes were copied: shared state would show.
    ///
    /// # Panics
    /// If `world` is 0.
    pub fn local_poisoned(world: usize, config: &CommConfig) -> Vec<Communicator> {
        Communicator::threads(world, config, true)
    }

    /// The ranks that mpirun started, each a process. Starts MPI and the thread that owns it.
    ///
    /// # Errors
    /// This build has no MPI, MPI can not be started (it can be once per process), or it sees other ranks than the launcher.
    pub fn mpi(config: &CommConfig) -> Result<Communicator> {
        let launch = Launch::from_env()?;
        let (desk, processes) = Processes::start(config)?;
        let comm = Communicator::new(desk, Way::Processes(processes), config);
        if launch.world > 1 && launch.world != comm.world() {
            let error = Error::Comms {
                problem: format!("the launcher started {} ranks, but MPI sees {}", launch.world, comm.world()),
                mend: "start with the mpirun of the MPI library that tidemill was built with".to_owned(),
            };
            comm.abandon(&error);
            return Err(error);
        }
        Ok(comm)
    }

    /// The ranks that the launcher started: alone without MPI, or under mpirun with it.
    ///
    /// # Errors
    /// As [`mpi`](Communicator::mpi).
    pub fn launched(config: &CommConfig) -> Result<Communicator> {
        match Launch::from_env()? {
            Launch { world: 1, rank: 0, .. } => Ok(Communicator::alone()),
            _ => Communicator::mpi(config),
        }
    }

    fn threads(world: usize, config: &CommConfig, poison: bool) -> Vec<Communicator> {
        assert!(world > 0, "a world has at least one rank");
        let ranks = Threads::connect(world, poison).into_iter();
        ranks.map(|(desk, way)| Communicator::new(desk, Way::Threads(way), config)).collect()
    }

    fn new(desk: Arc<Desk>, way: Way, config: &CommConfig) -> Communicator {
        let bucket_bytes = usize::try_from(config.bucket_bytes.0).unwrap_or(usize::MAX);
        let (agreements, ended) = (AtomicU64::new(0), AtomicBool::new(false));
        Communicator { member: Arc::new(Member { desk, way, bucket_bytes, agreements, ended }) }
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.member.desk.rank
    }

    /// Ranks in all.
    pub fn world(&self) -> usize {
        self.member.desk.world
    }

    /// Whether long sums go in several messages.
    pub fn has_buckets(&self) -> bool {
        self.member.bucket_bytes > 0
    }

    /// Sends a message; never blocks on its receiver. A message to oneself is not traffic and is not counted.
    ///
    /// # Errors
    /// A rank is lost.
    ///
    /// # Panics
    /// If there is no rank `to`.
    pub fn send(&self, to: usize, tag: Tag, bytes: Vec<u8>) -> Result<()> {
        self.post(to, Key::direct(tag), bytes)
    }

    /// Takes a message, asleep until it is there. Messages of one sender and tag come in the order they were sent.
    ///
    /// # Errors
    /// A rank is lost, or `from` has left the run and its message is not there.
    ///
    /// # Panics
    /// If there is no rank `from`.
    pub fn receive(&self, from: usize, tag: Tag) -> Result<Received> {
        let (Arrived { bytes, sent_ns }, waited) = self.member.desk.take(from, Key::direct(tag))?;
        Ok(Received { bytes, sent: system_time(sent_ns), waited })
    }

    /// Takes a message if it is there.
    ///
    /// # Errors
    /// As [`receive`](Communicator::receive).
    ///
    /// # Panics
    /// If there is no rank `from`.
    pub fn try_receive(&self, from: usize, tag: Tag) -> Result<Option<Received>> {
        let taken = self.member.desk.try_take(from, Key::direct(tag))?;
        Ok(taken.map(|m| Received { bytes: m.bytes, sent: system_time(m.sent_ns), waited: Duration::ZERO }))
    }

    /// Fails once a rank is lost; for stretches without messages.
    ///
    /// # Errors
    /// A rank is lost.
    pub fn check(&self) -> Result<()> {
        self.member.desk.check()
    }

    /// Drops messages sent one by one with a sequence below `sequence`, those to come too; a receive of one fails at once.
    pub fn close_below(&self, sequence: u64) {
        self.member.desk.close_below(sequence);
    }

    /// Counts bytes that this rank sent by other ways than messages, as between GPUs.
    pub fn count_elsewhere(&self, purpose: Purpose, bytes: usize) {
        self.member.desk.count_sent(purpose, bytes);
    }

    /// What crossed so far, and what was waited for it.
    pub fn ledger(&self) -> Ledger {
        self.member.desk.ledger()
    }

    /// Ends a run that went well, once all ranks are that far: everything sent before has arrived.
    ///
    /// # Errors
    /// A rank is lost.
    pub fn finish(self) -> Result<()> {
        if !self.member.ended.swap(true, Ordering::AcqRel) {
            self.member.desk.depart(self.rank());
            self.member.way.depart();
        }
        self.member.desk.wait_for_departures()?;
        if matches!(self.member.way, Way::Processes(_)) {
            processes::leave();
        }
        Ok(())
    }

    /// Ends a run that failed: the others' calls end with one error that names this rank and `error`, unless they know of a
    /// lost rank already. A run stopped on request ends on all ranks alike, so nothing is told. Under mpirun the process says
    /// its error next and then calls [`leave`](crate::comms::leave).
    pub fn abandon(self, error: &Error) {
        match error {
            Error::Stopped { .. } => {}
            Error::PeerLost { rank, loss } => self.member.lose(Lost { rank: *rank, loss: loss.clone() }),
            _ => {
                self.member.lose_self(Loss::Failed { sentence: error.sentence(), exit_code: error.exit_code() });
            }
        }
        self.member.end_in_failure();
    }

    pub(super) fn post(&self, to: usize, key: Key, bytes: Vec<u8>) -> Result<()> {
        let desk = &self.member.desk;
        assert!(to < desk.world, "there is no rank {to} among {}", desk.world);
        desk.check()?;
        let sent_ns = desk.clock.now_ns();
        if to == desk.rank {
            desk.put(to, key, Arrived { bytes, sent_ns });
            return Ok(());
        }
        desk.count_sent(key.tag.purpose, bytes.len());
        self.member.way.post(to, key, sent_ns, bytes);
        Ok(())
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.member.lose_self(Loss::Panicked);
        }
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Communicator(rank {} of {})", self.rank(), self.world())
    }
}

impl Member {
    /// Tells all ranks that one is lost, unless it is known that one is, or this one has ended well.
    fn lose(&self, lost: Lost) {
        if !self.ended.load(Ordering::Acquire) && self.desk.lose(lost.clone()) {
            self.way.announce(&lost);
        }
    }

    fn lose_self(&self, loss: Loss) {
        self.lose(Lost { rank: self.desk.rank, loss });
    }

    /// Ends this rank's part. A thread departs at once, a process once it has told its error: mpirun ends all processes when
    /// the first one fails.
    fn end_in_failure(&self) {
        if !self.ended.swap(true, Ordering::AcqRel) && !matches!(self.way, Way::Processes(_)) {
            self.desk.depart(self.desk.rank);
            self.way.depart();
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.lose_self(Loss::Dropped);
        self.end_in_failure();
    }
}

impl Way {
    fn post(&self, to: usize, key: Key, sent_ns: u64, bytes: Vec<u8>) {
        match self {
            Way::Alone => unreachable!("alone there is nobody else"),
            Way::Threads(threads) => threads.post(to, key, sent_ns, bytes),
            Way::Processes(processes) => processes.post(to, key, sent_ns, bytes),
        }
    }

    fn announce(&self, lost: &Lost) {
        match self {
            Way::Alone => {}
            Way::Threads(threads) => threads.announce(lost),
            Way::Processes(processes) => processes.announce(lost),
        }
    }

    fn depart(&self) {
        match self {
            Way::Alone => {}
            Way::Threads(threads) => threads.depart(),
            Way::Processes(processes) => processes.depart(),
        }
    }
}
