//! Bounded queues between stages: one producer, one consumer, order kept, back-pressure, closed from either side.
//!
//! The hand-over itself is lock-free (Lamport's ring: each side owns one index and reads the other's). A side that finds the
//! queue full or empty sleeps on a condition variable; the other wakes it only if it sleeps. The bound in force may be lower
//! than the ring's capacity and may be changed from anywhere while both sides run.
//!
//! Invariants:
//! - Items arrive once each, in the order sent, whatever becomes of the bound. * A send returns with at most as many items in
//!   flight as a bound that was in force during it; what is in flight above a lowered bound stays and is taken as any other.
//! - A dropped sender lets the receiver drain what was sent, then end. A dropped receiver fails the next send at once, and
//!   what was in flight is dropped.
//! - Neither side can sleep through its wake-up: `tests/loom` explores every interleaving of small cases.
//!
//! Absent on purpose: several producers or consumers, timeouts, polling.

#[cfg(loom)]
use loom::cell::UnsafeCell;
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(loom)]
use loom::sync::{Arc, Condvar, Mutex};
use std::mem::MaybeUninit;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

/// std's cell under loom's interface.
#[cfg(not(loom))]
struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// What both sides share. Slot `i % capacity` belongs to the receiver if `head <= i < tail`, else to the sender.
struct Ring<T> {
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
    /// Items taken so far; only the receiver stores it.
    head: AtomicUsize,
    /// Items sent so far; only the sender stores it.
    tail: AtomicUsize,
    limit: AtomicUsize,
    closed: AtomicBool,
    /// Where the sender sleeps while the queue is full.
    full: Bed,
    /// Where the receiver sleeps while the queue is empty.
    empty: Bed,
    counts: Counts,
}

/// Where one side sleeps. It says so before it looks a last time, and holds the lock from then until it sleeps. Each side has
/// its own: the two may be on their way in and out at once.
struct Bed {
    lock: Mutex<()>,
    wake: Condvar,
    asleep: AtomicBool,
}

/// What the queue went through.
#[derive(Default)]
struct Counts {
    sent: AtomicU64,
    length_sum: AtomicU64,
    length_min: AtomicU64,
    length_max: AtomicU64,
    full_ns: AtomicU64,
    empty_ns: AtomicU64,
    resized: AtomicU64,
}

/// What a queue went through until now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Items sent.
    pub sent: u64,
    /// Sum over sends of the length just after.
    pub length_sum: u64,
    /// Shortest of these lengths; 0 before the first.
    pub length_min: u64,
    /// Longest of them.
    pub length_max: u64,
    /// Nanoseconds that the sender waited because the queue was full.
    pub full_ns: u64,
    /// Nanoseconds that the receiver waited because the queue was empty.
    pub empty_ns: u64,
    /// How often the bound was changed.
    pub resized: u64,
    /// The bound in force.
    pub limit: u64,
}

impl Counts {
    /// An item was sent; only the sender calls this.
    fn note(&self, length: u64) {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let least = if get(&self.sent) == 0 { length } else { get(&self.length_min).min(length) };
        self.length_min.store(least, Ordering::Relaxed);
        self.length_max.store(get(&self.length_max).max(length), Ordering::Relaxed);
        self.length_sum.fetch_add(length, Ordering::Relaxed);
        self.sent.fetch_add(1, Ordering::Relaxed);
    }
}

impl QueueStats {
    /// Adds what another queue of the same name went through.
    pub fn add(&mut self, other: &QueueStats) {
        self.length_min = match (self.sent, other.sent) {
            (_, 0) => self.length_min,
            (0, _) => other.length_min,
            _ => self.length_min.min(other.length_min),
        };
        self.length_max = self.length_max.max(other.length_max);
        self.sent += other.sent;
        self.length_sum += other.length_sum;
        self.full_ns += other.full_ns;
        self.empty_ns += other.empty_ns;
        self.resized += other.resized;
        self.limit = if other.limit > 0 { other.limit } else { self.limit };
    }
}

// SAFETY: a slot is touched by one side at a time, as the indices say; items move between threads, hence `T: Send`.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Ring<T> {}

/// The producing side.
pub struct Sender<T>(Arc<Ring<T>>);

/// The consuming side.
pub struct Receiver<T>(Arc<Ring<T>>);

/// A look at a queue from outside: its statistics and its bound.
pub struct Gauge<T>(Arc<Ring<T>>);

/// The other side is gone; the item comes back.
#[derive(Debug, PartialEq, Eq)]
pub struct Closed<T>(pub T);

/// A queue of at most `capacity` items.
///
/// # Panics
/// If `capacity` is 0.
pub fn bounded<T: Send>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    bounded_at(capacity, capacity)
}

/// A queue whose bound is `limit` for now and can be as much as `capacity`.
///
/// # Panics
/// If `capacity` or `limit` is 0.
pub fn bounded_at<T: Send>(capacity: usize, limit: usize) -> (Sender<T>, Receiver<T>) {
    assert!(capacity > 0 && limit > 0, "a queue holds at least one item");
    let ring = Arc::new(Ring {
        slots: (0..capacity).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect(),
        head: AtomicUsize::new(0),
        tail: AtomicUsize::new(0),
        limit: AtomicUsize::new(limit.min(capacity)),
        closed: AtomicBool::new(false),
        full: Bed::new(),
        empty: Bed::new(),
        counts: Counts::default(),
    });
    (Sender(ring.clone()), Receiver(ring))
}

impl<T> Ring<T> {
    fn len(&self) -> usize {
        let head = self.head.load(Ordering::Acquire);
        self.tail.load(Ordering::Acquire) - head
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.full.wake();
        self.empty.wake();
    }

    /// Waits until `ready` or closed.
    fn wait(&self, bed: &Bed, ready: impl Fn() -> bool, waited_ns: &AtomicU64) {
        let start = Instant::now();
        bed.sleep_until(|| ready() || self.closed.load(Ordering::Acquire));
        waited_ns.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Bed {
    fn new() -> Bed {
        Bed { lock: Mutex::new(()), wake: Condvar::new(), asleep: AtomicBool::new(false) }
    }

    fn sleep_until(&self, ready: impl Fn() -> bool) {
        let mut guard = self.lock.lock().expect("no one panics while holding it");
        loop {
            self.asleep.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst); // the announcement comes before the last look
            if ready() {
                self.asleep.store(false, Ordering::Relaxed);
                return;
            }
            guard = self.wake.wait(guard).expect("no one panics while holding it");
        }
    }

    /// Wakes the other side if it sleeps; called after the change it waits for.
    fn wake(&self) {
        fence(Ordering::SeqCst); // the change comes before the look
        if self.asleep.load(Ordering::Relaxed) {
            drop(self.lock.lock().expect("no one panics while holding it")); // it sleeps now, or has seen the change
            self.wake.notify_all();
        }
    }
}

impl<T> Sender<T> {
    /// Sends an item, waiting while the queue is full.
    ///
    /// # Errors
    /// The item, if the receiver is gone.
    pub fn send(&mut self, item: T) -> Result<(), Closed<T>> {
        let ring = &*self.0;
        let room = || ring.len() < ring.limit.load(Ordering::Relaxed).min(ring.slots.len());
        if !room() {
            ring.wait(&ring.full, room, &ring.counts.full_ns);
        }
        if ring.closed.load(Ordering::Acquire) {
            return Err(Closed(item));
        }
        let tail = ring.tail.load(Ordering::Relaxed);
        // SAFETY: there is room and only this side adds, so the slot is ours until `tail` moves on.
        ring.slots[tail % ring.slots.len()].with_mut(|slot| unsafe { (*slot).write(item) });
        ring.tail.store(tail + 1, Ordering::Release);
        ring.counts.note(ring.len() as u64);
        ring.empty.wake();
        Ok(())
    }

    /// A look at the queue that outlives both sides.
    pub fn gauge(&self) -> Gauge<T> {
        Gauge(self.0.clone())
    }
}

impl<T> Receiver<T> {
    /// The next item, waiting while the queue is empty; `None` once the sender is gone and everything was taken.
    pub fn recv(&mut self) -> Option<T> {
        let ring = &*self.0;
        let filled = || ring.len() > 0;
        if !filled() {
            ring.wait(&ring.empty, filled, &ring.counts.empty_ns);
        }
        self.try_recv() // nothing: closed, and what was sent before that has been taken
    }

    /// The next item, if there is one now.
    pub fn try_recv(&mut self) -> Option<T> {
        let ring = &*self.0;
        if ring.len() == 0 {
            return None;
        }
        let head = ring.head.load(Ordering::Relaxed);
        // SAFETY: the slot was filled before `tail` moved on, and is ours until `head` does.
        let item = ring.slots[head % ring.slots.len()].with_mut(|slot| unsafe { (*slot).assume_init_read() });
        ring.head.store(head + 1, Ordering::Release);
        ring.full.wake();
        Some(item)
    }
}

impl<T> Gauge<T> {
    /// Statistics until now.
    pub fn stats(&self) -> QueueStats {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let counts = &self.0.counts;
        QueueStats {
            sent: get(&counts.sent),
            length_sum: get(&counts.length_sum),
            length_min: get(&counts.length_min),
            length_max: get(&counts.length_max),
            full_ns: get(&counts.full_ns),
            empty_ns: get(&counts.empty_ns),
            resized: get(&counts.resized),
            limit: self.0.limit.load(Ordering::Relaxed) as u64,
        }
    }

    /// Items in flight now.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing is in flight now.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Changes the bound in force, within 1 and the queue's capacity. What is in flight above it stays.
    pub fn set_limit(&self, limit: usize) {
        let limit = limit.clamp(1, self.0.slots.len());
        if self.0.limit.swap(limit, Ordering::Relaxed) != limit {
            self.0.counts.resized.fetch_add(1, Ordering::Relaxed);
            self.0.full.wake();
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        let (head, tail) = (self.head.load(Ordering::Relaxed), self.tail.load(Ordering::Relaxed));
        for at in head..tail {
            // SAFETY: both sides are gone, and slots between the indices hold items.
            self.slots[at % self.slots.len()].with_mut(|slot| unsafe { (*slot).assume_init_drop() });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn order_and_bound_are_kept() {
        for capacity in [1, 2, 16] {
            let (mut sender, mut receiver) = bounded(capacity);
            let gauge = sender.gauge();
            let producer = thread::spawn(move || (0..10_000).for_each(|i| sender.send(i).expect("open")));
            for i in 0..10_000 {
                assert!(gauge.len() <= capacity);
                assert_eq!(receiver.recv(), Some(i));
            }
            producer.join().expect("no panic");
            assert_eq!(receiver.recv(), None);
            assert_eq!(gauge.stats().sent, 10_000);
        }
    }

    #[test]
    fn a_gone_sender_lets_the_rest_be_taken() {
        let (mut sender, mut receiver) = bounded(3);
        (0..3).for_each(|i| sender.send(i).expect("room"));
        drop(sender);
        assert_eq!(
            [receiver.recv(), receiver.recv(), receiver.recv(), receiver.recv()],
            [Some(0), Some(1), Some(2), None]
        );
    }

    #[test]
    fn a_gone_receiver_fails_a_waiting_send_and_drops_what_was_in_flight() {
        let counted = std::sync::Arc::new(());
        let (mut sender, receiver) = bounded(1);
        sender.send(counted.clone()).expect("room");
        let item = counted.clone();
        let waiting = thread::spawn(move || sender.send(item).is_err());
        thread::sleep(Duration::from_millis(20));
        drop(receiver);
        assert!(waiting.join().expect("no panic"));
        assert_eq!(std::sync::Arc::strong_count(&counted), 1);
    }

    #[test]
    fn waits_are_counted_on_the_side_that_waits() {
        let (mut sender, mut receiver) = bounded(1);
        let gauge = sender.gauge();
        let producer = thread::spawn(move || {
            thread::sleep(Duration::from_millis(30));
            (0..3).for_each(|i| sender.send(i).expect("open"));
        });
        assert_eq!(receiver.recv(), Some(0));
        thread::sleep(Duration::from_millis(30));
        assert_eq!((receiver.recv(), receiver.recv()), (Some(1), Some(2)));
        producer.join().expect("no panic");
        let stats = gauge.stats();
        assert_eq!((stats.length_min, stats.length_max, stats.sent), (1, 1, 3));
        assert!(stats.empty_ns > 10_000_000 && stats.full_ns > 10_000_000, "{stats:?}");
    }

    #[test]
    fn the_bound_can_change_while_in_use() {
        let (mut sender, mut receiver) = bounded(8);
        let gauge = sender.gauge();
        gauge.set_limit(1);
        let producer = thread::spawn(move || (0..4).for_each(|i| sender.send(i).expect("open")));
        while gauge.is_empty() {
            thread::yield_now();
        }
        thread::sleep(Duration::from_millis(10));
        assert_eq!(gauge.len(), 1);
        gauge.set_limit(100);
        producer.join().expect("four fit now");
        assert_eq!((0..4).map(|_| receiver.recv()).collect::<Option<Vec<_>>>(), Some(vec![0, 1, 2, 3]));
    }

    /// The bound goes up and down at random while both sides run: nothing is lost, doubled or out of order, and no send that
    /// began after the last change leaves more in flight than it allows.
    #[test]
    fn a_bound_that_moves_loses_nothing() {
        for capacity in [2, 5, 16] {
            let (mut sender, mut receiver) = bounded_at(capacity, 1);
            let (gauge, mover) = (sender.gauge(), sender.gauge());
            let producer = thread::spawn(move || (0..20_000u64).for_each(|i| sender.send(i).expect("open")));
            let moving = thread::spawn(move || {
                for step in 0..2_000u64 {
                    mover.set_limit(1 + (step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % capacity);
                    thread::yield_now();
                }
                mover.set_limit(2);
            });
            for i in 0..20_000 {
                assert!(gauge.len() <= capacity);
                assert_eq!(receiver.recv(), Some(i));
            }
            assert_eq!(receiver.recv(), None);
            producer.join().expect("no panic");
            moving.join().expect("no panic");
            let stats = gauge.stats();
            assert!(stats.resized > 100 && stats.length_max <= capacity as u64, "{stats:?}");
            assert_eq!((stats.sent, stats.limit), (20_000, 2));
        }
    }

    #[test]
    fn what_is_above_a_lowered_bound_is_taken_before_more_is_sent() {
        let (mut sender, mut receiver) = bounded(4);
        let gauge = sender.gauge();
        (0..4).for_each(|i| sender.send(i).expect("room"));
        gauge.set_limit(2);
        gauge.set_limit(2);
        let producer = thread::spawn(move || sender.send(4).is_ok());
        for (taken, left) in [(0, 3), (1, 2)] {
            assert_eq!(receiver.recv(), Some(taken));
            thread::sleep(Duration::from_millis(10));
            assert_eq!(gauge.len(), left, "the sender waits for the new bound");
        }
        assert_eq!(receiver.recv(), Some(2));
        assert!(producer.join().expect("no panic"));
        assert_eq!([receiver.recv(), receiver.recv(), receiver.recv()], [Some(3), Some(4), None]);
        assert_eq!(gauge.stats().resized, 1);
    }
}
