//! Ranks as processes: one thread owns MPI and carries frames between it and the rank's desk.
//!
//! ```text
//!  any thread: send -> orders --+                     +--> desk -> receive: any thread
//!                               v                     |
//!                     carrier: Isend, Improbe/Imrecv, beats
//! ```
//! MPI makes progress only inside its calls, so the carrier calls again and again; between calls it sleeps an eighth of the time
//! since something last happened, which costs a message an eighth of its own waiting at most and an idle rank next to nothing.
//!
//! Invariants: frames of one sender are delivered in the order sent, beats excepted; the carrier never waits for a peer; MPI is
//! finalized if every rank says farewell, and left as it is if one is lost; once a rank is lost this process ends within the
//! timeout, whatever its other threads do.

use super::CommConfig;
use super::clock::Clock;
use super::desk::{Arrived, Desk, Lost};
use super::health::Health;
use super::mpi::{Fault, World};
use super::tag::{Key, Purpose};
use super::wire::{Frame, Kind};
use crate::error::{Error, Loss, Result};
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// How long a rank waits for the others' farewell once a rank is lost: they still have their own error to tell.
const GRACE: Duration = Duration::from_secs(5);

/// Shortest sleep, and the longest while a thread waits or a transfer is under way, and while neither is so.
const SHORTEST_SLEEP: Duration = Duration::from_micros(20);
const LONGEST_SLEEP_AWAITED: Duration = Duration::from_micros(250);
const LONGEST_SLEEP_IDLE: Duration = Duration::from_millis(1);

/// The way from one process to the others.
pub(super) struct Processes {
    orders: Arc<Orders>,
}

/// What other threads ask of the carrier.
#[derive(Default)]
struct Orders {
    queue: Mutex<Vec<Order>>,
    carrier: OnceLock<Thread>,
}

enum Order {
    Send { to: usize, key: Key, sent_ns: u64, bytes: Vec<u8> },
    Announce(Lost),
    Depart,
}

/// The carrier of this process; MPI is started once in a process's life.
static CARRIER: Mutex<Option<Running>> = Mutex::new(None);

struct Running {
    orders: Arc<Orders>,
    /// Closed when the carrier has ended.
    ended: Receiver<()>,
    patience: Duration,
}

impl Processes {
    /// Starts the carrier, and with it MPI.
    ///
    /// # Errors
    /// MPI can not be started.
    pub(super) fn start(config: &CommConfig) -> Result<(Arc<Desk>, Processes)> {
        let timeout = Duration::from_secs_f64(config.timeout_s);
        let orders = Arc::new(Orders::default());
        let (started, desk) = channel();
        let (alive, ended) = channel();
        let for_carrier = Arc::clone(&orders);
        let spawned = std::thread::Builder::new().name("comms".to_owned()).spawn(move || {
            let _alive: Sender<()> = alive;
            carry(timeout, for_carrier, &started);
        });
        let thread = spawned.map_err(|error| Error::Comms {
            problem: format!("the thread that owns MPI can not be started ({error})"),
            mend: "see to the host's limits on threads".to_owned(),
        })?;
        let desk: Arc<Desk> = desk.recv().expect("the carrier reports how MPI's start went")?;
        desk.wake_for_waiters(thread.thread().clone());
        orders.carrier.set(thread.thread().clone()).expect("set once");
        let running = Running { orders: Arc::clone(&orders), ended, patience: timeout + 2 * GRACE };
        *CARRIER.lock().unwrap_or_else(PoisonError::into_inner) = Some(running);
        Ok((desk, Processes { orders }))
    }

    pub(super) fn post(&self, to: usize, key: Key, sent_ns: u64, bytes: Vec<u8>) {
        self.orders.give(Order::Send { to, key, sent_ns, bytes });
    }

    pub(super) fn announce(&self, lost: &Lost) {
        self.orders.give(Order::Announce(lost.clone()));
    }

    pub(super) fn depart(&self) {
        self.orders.give(Order::Depart);
    }
}

impl Orders {
    fn give(&self, order: Order) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push(order);
        if let Some(carrier) = self.carrier.get() {
            carrier.unpark();
        }
    }

    fn take(&self) -> Vec<Order> {
        std::mem::take(&mut *self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Says farewell to the other ranks, waits for theirs and finalizes MPI; if a rank is lost it waits only until the others have
/// had time to tell their own error. For the end of a process; does nothing if MPI was never started or has ended.
pub fn leave() {
    let running = CARRIER.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(Running { orders, ended, patience }) = running {
        orders.give(Order::Depart);
        // An error is the carrier's end, which is what is waited for; a carrier held up inside MPI is left behind.
        let _ = ended.recv_timeout(patience);
    }
}

/// The carrier's thread from start to end.
fn carry(timeout: Duration, orders: Arc<Orders>, started: &Sender<Result<Arc<Desk>>>) {
    let world = match World::start() {
        Ok(world) => world,
        Err(error) => return started.send(Err(error)).expect("the starter waits"),
    };
    sleep_precisely();
    let desk = Arc::new(Desk::new(world.rank(), world.size(), Clock::start()));
    started.send(Ok(Arc::clone(&desk))).expect("the starter waits");
    let carrier = Carrier::new(world, Arc::clone(&desk), orders, timeout);
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| carrier.run())).is_err() {
        desk.lose(Lost { rank: desk.rank, loss: Loss::Panicked });
    }
}

/// Lets the kernel wake this thread on time: by default it may be 50 microseconds late.
fn sleep_precisely() {
    const SLACK_NS: libc::c_ulong = 1_000;
    // SAFETY: sets a property of the calling thread; a kernel that refuses leaves it as it is.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, SLACK_NS) };
}

struct Carrier {
    world: World,
    desk: Arc<Desk>,
    orders: Arc<Orders>,
    timeout: Duration,
    health: Health,
    arrivals: Arrivals,
    /// Since when a rank is known to be lost.
    lost: Option<(Lost, Instant)>,
    /// Whether this rank has announced that it sends nothing more.
    departed: bool,
    /// Whether this rank has said farewell, and which ranks have.
    farewell: bool,
    farewells: Vec<bool>,
}

/// How the carrier ends.
enum End {
    /// With all ranks.
    Finalize,
    /// Without those that are lost.
    Leave,
    /// Although other threads of this process go on.
    Abort(Lost),
}

impl Carrier {
    fn new(world: World, desk: Arc<Desk>, orders: Arc<Orders>, timeout: Duration) -> Carrier {
        let (rank, size) = (desk.rank, desk.world);
        let mut farewells = vec![false; size];
        farewells[rank] = true;
        let health = Health::new(rank, size, timeout, desk.clock.now_ns());
        let arrivals = Arrivals { next: vec![0; size], early: HashMap::new() };
        let (lost, departed, farewell) = (None, false, false);
        Carrier { world, desk, orders, timeout, health, arrivals, lost, departed, farewell, farewells }
    }

    fn run(mut self) {
        let mut active = Instant::now();
        let end = loop {
            let (happened, awaited) = (self.turn(), self.desk.is_awaited());
            if let Some(end) = self.end() {
                break end;
            }
            if happened {
                active = Instant::now();
                continue;
            }
            let longest = if awaited || self.world.is_busy() { LONGEST_SLEEP_AWAITED } else { LONGEST_SLEEP_IDLE };
            std::thread::park_timeout((active.elapsed() / 8).clamp(SHORTEST_SLEEP, longest));
        };
        match end {
            End::Finalize => self.world.finalize(),
            End::Leave => {} // MPI is left as it is
            End::Abort(lost) => {
                tracing::error!("{}; this rank did not stop within {:.1} s", lost.error(), self.timeout.as_secs_f64());
                self.world.abort(1);
            }
        }
    }

    /// One round of everything; whether anything happened.
    fn turn(&mut self) -> bool {
        let orders = self.orders.take();
        let mut happened = !orders.is_empty();
        for order in orders {
            self.obey(order);
        }
        let now_ns = self.desk.clock.now_ns();
        if self.health.is_beat_due(now_ns) && !self.farewell {
            self.each_peer(|carrier, peer| {
                let echo = carrier.health.echo(peer, now_ns);
                Frame { kind: Kind::Beat(echo), sent_ns: now_ns, payload: Vec::new() }
            });
        }
        let mut frames = Vec::new();
        match self.world.advance(&mut frames) {
            Ok(moved) => happened |= moved,
            Err(fault) => self.fail(fault),
        }
        for (from, number, bytes) in frames {
            self.arrive(from, number, bytes);
        }
        if let Some((rank, silence)) = self.health.silent(now_ns).filter(|&(rank, _)| !self.farewells[rank]) {
            self.lose(Lost { rank, loss: Loss::Silent { seconds: silence.as_secs_f64() } });
        }
        happened
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Send { to, key, sent_ns, bytes } => {
                self.send(to, Frame { kind: Kind::Message(key), sent_ns, payload: bytes });
            }
            Order::Announce(lost) => self.tell(&lost),
            Order::Depart if self.departed => {}
            Order::Depart => {
                self.departed = true;
                self.desk.depart(self.desk.rank);
                self.say(Kind::Depart);
            }
        }
    }

    /// A frame has come; those that came early wait for the ones before them, but a sign of life counts at once.
    fn arrive(&mut self, from: usize, number: u64, bytes: Vec<u8>) {
        let now_ns = self.desk.clock.now_ns();
        self.health.heard(from, now_ns);
        let Some(frame) = Frame::from_bytes(bytes) else {
            let problem = "its messages are of another version of this program".to_owned();
            return self.lose(Lost { rank: from, loss: Loss::Unreachable { problem } });
        };
        if let Kind::Beat(echo) = frame.kind {
            self.health.beat(from, frame.sent_ns, echo, now_ns);
        }
        for frame in self.arrivals.in_order(from, number, frame) {
            self.deliver(from, frame);
        }
    }

    fn deliver(&mut self, from: usize, frame: Frame) {
        match frame.kind {
            Kind::Message(key) => {
                let sent_ns = self.health.to_own_clock(from, frame.sent_ns);
                self.desk.put(from, key, Arrived { bytes: frame.payload, sent_ns });
            }
            Kind::Beat(_) => self.desk.count_received(Purpose::Control, frame.payload.len()),
            Kind::Depart => self.desk.depart(from),
            Kind::Farewell => self.farewells[from] = true,
            Kind::Lost => {
                if let Some(lost) = frame.news() {
                    self.learn(lost);
                }
            }
        }
    }

    /// Keeps the first loss; whether it was news to this process.
    fn learn(&mut self, lost: Lost) -> bool {
        let news = self.desk.lose(lost);
        if self.lost.is_none() {
            self.lost = self.desk.lost().map(|lost| (lost, Instant::now()));
        }
        news
    }

    /// Records a loss that was found here, and tells the others.
    fn lose(&mut self, lost: Lost) {
        if self.learn(lost.clone()) {
            self.tell(&lost);
        }
    }

    fn tell(&mut self, lost: &Lost) {
        self.learn(lost.clone());
        let now_ns = self.desk.clock.now_ns();
        self.each_peer(|_, _| Frame::lost(lost, now_ns));
    }

    fn fail(&mut self, fault: Fault) {
        let rank = fault.peer.unwrap_or(self.desk.rank);
        self.lose(Lost { rank, loss: Loss::Unreachable { problem: fault.problem } });
    }

    fn say(&mut self, kind: Kind) {
        let sent_ns = self.desk.clock.now_ns();
        self.each_peer(|_, _| Frame { kind, sent_ns, payload: Vec::new() });
    }

    fn each_peer(&mut self, frame: impl Fn(&Carrier, usize) -> Frame) {
        let own = self.desk.rank;
        for peer in (0..self.farewells.len()).filter(|&peer| peer != own) {
            let frame = frame(self, peer);
            if !matches!(frame.kind, Kind::Message(_)) {
                self.desk.count_sent(Purpose::Control, frame.payload.len());
            }
            self.send(peer, frame);
        }
    }

    fn send(&mut self, to: usize, frame: Frame) {
        if self.is_gone(to) {
            return;
        }
        if let Err(fault) = self.world.send(to, frame.into_bytes()) {
            self.fail(fault);
        }
    }

    /// Whether a rank is lost so that nothing reaches it.
    fn is_gone(&self, rank: usize) -> bool {
        matches!(&self.lost, Some((lost, _)) if lost.rank == rank && rank != self.desk.rank && lost.is_unreachable())
    }

    /// Whether it is time to end, and how.
    fn end(&mut self) -> Option<End> {
        let gone =
            |carrier: &Carrier| carrier.lost.as_ref().filter(|(lost, _)| lost.is_unreachable()).map(|(l, _)| l.rank);
        if !self.farewell && self.departed && self.desk.all_departed_but(gone(self)) {
            self.farewell = true;
            self.say(Kind::Farewell);
        }
        let gone = gone(self);
        let heard_all = self.farewells.iter().enumerate().all(|(rank, &said)| said || Some(rank) == gone);
        if self.farewell && heard_all && (self.world.has_sent_all() || gone.is_some()) {
            return Some(if gone.is_some() || self.world.is_busy() { End::Leave } else { End::Finalize });
        }
        let (lost, since) = self.lost.as_ref()?;
        match since.elapsed() {
            elapsed if self.departed && elapsed > GRACE => Some(End::Leave),
            elapsed if !self.departed && elapsed > self.timeout.max(GRACE) => Some(End::Abort(lost.clone())),
            _ => None,
        }
    }
}

impl Lost {
    /// Whether its process may be gone, so that no collective would end.
    fn is_unreachable(&self) -> bool {
        matches!(self.loss, Loss::Silent { .. } | Loss::Unreachable { .. })
    }
}

/// Brings frames back into the order in which each peer sent them: a long one is complete after shorter ones that followed it.
struct Arrivals {
    next: Vec<u64>,
    early: HashMap<(usize, u64), Frame>,
}

impl Arrivals {
    /// Takes the `number`th frame of a peer; the frames whose turn it is.
    fn in_order(&mut self, from: usize, number: u64, frame: Frame) -> Vec<Frame> {
        self.early.insert((from, number), frame);
        let mut due = Vec::new();
        while let Some(frame) = self.early.remove(&(from, self.next[from])) {
            self.next[from] += 1;
            due.push(frame);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_in_the_order_they_were_sent() {
        let mut arrivals = Arrivals { next: vec![0; 2], early: HashMap::new() };
        let frame = |sent_ns| Frame { kind: Kind::Depart, sent_ns, payload: Vec::new() };
        let mut take = |from, number| {
            let due = arrivals.in_order(from, number, frame(number));
            due.into_iter().map(|frame| frame.sent_ns).collect::<Vec<_>>()
        };
        assert!(take(0, 2).is_empty());
        assert_eq!(take(1, 0), [0]);
        assert!(take(0, 1).is_empty());
        assert_eq!(take(0, 0), [0, 1, 2]);
        assert_eq!(take(0, 3), [3]);
    }
}
