//! Queues that size themselves: every `pipeline.adapt_every_s` seconds the worker that fills a queue reads memory and idle
//! times and asks the queue's [`LengthController`]; and once at a pass's first item, as soon as it is known what one takes.
//! Between looks memory goes up and down with each batch's tensors, so what counts as left is what would be left at the latest
//! peak: it is noted at each state commit, where a batch's tensors are all there.
//!
//! Lengths live as long as the run and go from pass to pass and into checkpoints. Invariant: nothing but time and memory depends on
//! them: with `pipeline.staleness > 0` the clock decides which commits a batch sees, and a shorter queue of batches only makes it see
//! more. Absent on purpose: the gradients' queue, whose buffers `pipeline.staleness` counts and which are reused.

use super::PipelineConfig;
use super::queue_length::{Bounds, LengthController, Reading, Resize};
use crate::device::memory::{self, MemoryProbe, Place, Space};
use crate::queue::{self, Gauge, QueueStats, Receiver, Sender};
use crate::stats::Queue;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;
use tch::Device;

/// Lengths of the queues between stages, over all passes of a run.
#[derive(Clone)]
pub struct QueueLengths {
    every_s: f64,
    sharers: u64,
    on_gpu: bool,
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    probe: MemoryProbe,
    /// Most memory of this process at a commit since the last look at the plans' queue, and between the two looks before.
    peaks: [u64; 2],
    /// Of the plans, of the batches.
    controllers: [LengthController; 2],
    changes: Vec<Change>,
}

impl Shared {
    /// What would be left were this process at its latest peak.
    fn spaces(&self, on_gpu: bool) -> Vec<Space> {
        let mut spaces = if on_gpu { self.probe.all() } else { self.probe.host() };
        let peak = self.peaks[0].max(self.peaks[1]);
        let more = peak.saturating_sub(self.probe.anonymous_bytes());
        for space in spaces.iter_mut().filter(|space| space.place != Place::Gpu) {
            space.free_bytes = space.free_bytes.saturating_sub(more);
        }
        spaces
    }
}

/// A queue was given another length.
#[derive(Clone, Debug)]
pub struct Change {
    /// Which queue.
    pub queue: Queue,
    /// From what to what, and why.
    pub resize: Resize,
    /// What an item takes, in bytes.
    pub item_bytes: u64,
    /// Memory that was left at the latest peak before it was decided.
    pub spaces: Vec<Space>,
    /// Resident memory of this process then, in bytes.
    pub resident_bytes: u64,
    /// Shares of the time before that the consumer and the producer waited.
    pub idle: [f64; 2],
}

impl Change {
    /// For `metrics.jsonl`.
    pub fn record(&self) -> Value {
        let Resize { from, to, reason } = self.resize;
        let space = |space: &Space| json!({ "of": space.place.name(), "free_bytes": space.free_bytes, "limit_bytes": space.limit_bytes });
        json!({
            "queue": self.queue.name(), "from": from, "to": to, "cause": reason.name(), "reason": reason.to_string(),
            "item_bytes": self.item_bytes, "resident_bytes": self.resident_bytes,
            "consumer_idle": self.idle[0], "producer_idle": self.idle[1],
            "memory": self.spaces.iter().map(space).collect::<Vec<_>>(),
        })
    }
}

impl QueueLengths {
    /// Lengths to start with.
    ///
    /// * `sharers`: ranks on this host, whose queues take from the same memory.
    pub fn new(config: &PipelineConfig, device: Device, sharers: usize) -> QueueLengths {
        let bounds = |max: usize| Bounds { min: config.queue_min.min(max), max };
        let (plans, batches) = (config.queue_max, 1 + config.staleness as usize);
        let controllers = [
            match config.adapt_every_s > 0.0 {
                true => LengthController::new(bounds(plans)),
                false => LengthController::at(bounds(plans), plans),
            },
            LengthController::at(bounds(batches), batches), // the staleness that was asked for
        ];
        QueueLengths {
            every_s: config.adapt_every_s,
            sharers: sharers as u64,
            on_gpu: device.is_cuda(),
            shared: Arc::new(Mutex::new(Shared {
                probe: MemoryProbe::new(device),
                peaks: [0; 2],
                controllers,
                changes: Vec::new(),
            })),
        }
    }

    /// A queue for a pass, and what sizes it; `capacity`: items it may ever hold in this pass.
    pub fn open<T: Send>(&self, which: Queue, capacity: usize) -> (Sender<T>, Receiver<T>, Sizer<T>) {
        let length = self.lock().controllers[which as usize].length();
        let (sender, receiver) = queue::bounded_at(capacity, length);
        let sizer = Sizer {
            lengths: (self.every_s > 0.0 && capacity > 1).then(|| self.clone()),
            which,
            gauge: sender.gauge(),
            looked: Instant::now(),
            before: QueueStats::default(),
            item_bytes: [0; 2],
        };
        (sender, receiver, sizer)
    }

    /// Changes since the last call, oldest first.
    pub fn take_changes(&self) -> Vec<Change> {
        std::mem::take(&mut self.lock().changes)
    }

    /// Lengths in force, of the plans and the batches.
    pub fn in_force(&self) -> [usize; 2] {
        self.lock().controllers.each_ref().map(LengthController::length)
    }

    /// Goes on with the lengths of an earlier run, as far as the bounds allow.
    pub fn restore(&self, lengths: [usize; 2]) {
        if self.every_s > 0.0 {
            let mut shared = self.lock();
            shared.controllers.iter_mut().zip(lengths).for_each(|(controller, length)| controller.restart_at(length));
        }
    }

    /// A batch's tensors are all there.
    pub fn note_peak(&self) {
        if self.every_s > 0.0 {
            let mut shared = self.lock();
            shared.peaks[0] = shared.peaks[0].max(shared.probe.anonymous_bytes());
        }
    }

    /// Reads memory and asks a queue's controller.
    fn look(&self, which: Queue, unread: Reading<'_>) -> (Option<Resize>, Vec<Space>) {
        let on_gpu = which == Queue::Batches && self.on_gpu;
        let mut shared = self.lock();
        let mut spaces = shared.spaces(on_gpu);
        if shared.controllers[which as usize].would_shrink(&Reading { spaces: &spaces, ..unread }) {
            memory::give_back(); // the allocator may sit on what earlier batches have freed
            spaces = shared.spaces(on_gpu);
        }
        if which == Queue::Plans {
            shared.peaks = [0, shared.peaks[0]];
        }
        (shared.controllers[which as usize].look(&Reading { spaces: &spaces, ..unread }), spaces)
    }

    /// Reads memory by another probe.
    #[cfg(test)]
    pub(crate) fn read_memory_by(&self, probe: MemoryProbe) {
        self.lock().probe = probe;
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner) // each change is a whole one
    }
}

/// Sizes one queue of one pass, from the side that fills it.
pub struct Sizer<T> {
    /// None: the length stays.
    lengths: Option<QueueLengths>,
    which: Queue,
    gauge: Gauge<T>,
    looked: Instant,
    before: QueueStats,
    /// The largest item of the last stretch between looks, and of this one.
    item_bytes: [u64; 2],
}

impl<T> Sizer<T> {
    /// An item is about to be sent that takes so many bytes; a look, if one is due.
    pub fn passes(&mut self, bytes: impl FnOnce() -> u64) {
        let Some(lengths) = self.lengths.clone() else { return };
        let first = self.item_bytes == [0; 2];
        self.item_bytes[1] = self.item_bytes[1].max(bytes());
        let elapsed_s = self.looked.elapsed().as_secs_f64();
        if first || elapsed_s >= lengths.every_s {
            self.look(&lengths, elapsed_s, first);
        }
    }

    fn look(&mut self, lengths: &QueueLengths, elapsed_s: f64, first: bool) {
        let stats = self.gauge.stats();
        let share = |now: u64, before: u64| ((now - before) as f64 / 1e9 / elapsed_s.max(1e-9)).min(1.0);
        // What a consumer waits for a pass's first item says nothing of the queue's length.
        let [consumer_idle, producer_idle] = match first {
            true => [0.0; 2],
            false => [share(stats.empty_ns, self.before.empty_ns), share(stats.full_ns, self.before.full_ns)],
        };
        let item_bytes = self.item_bytes[0].max(self.item_bytes[1]);
        let (held, sharers) = (self.gauge.len(), lengths.sharers);
        let unread = Reading { item_bytes, held, spaces: &[], sharers, consumer_idle };
        let (resize, spaces) = lengths.look(self.which, unread);
        if let Some(resize) = resize {
            self.gauge.set_limit(resize.to);
            tracing::debug!(
                "queue of {}: {} -> {} items: {}",
                self.which.name(),
                resize.from,
                resize.to,
                resize.reason
            );
            let (queue, idle) = (self.which, [consumer_idle, producer_idle]);
            let resident_bytes = memory::resident_bytes().unwrap_or(0);
            lengths.lock().changes.push(Change { queue, resize, item_bytes, spaces, resident_bytes, idle });
        }
        self.looked = Instant::now();
        self.before = stats;
        self.item_bytes = [self.item_bytes[1], 0];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;
    use std::thread;
    use std::time::Duration;

    const MIB: u64 = 1 << 20;

    /// A control group of 100 MiB, `used` of them.
    fn group(folder: &Path, used: u64) -> MemoryProbe {
        for (file, bytes) in [("memory.max", 100 * MIB), ("memory.current", used * MIB)] {
            fs::write(folder.join(file), bytes.to_string()).expect("written");
        }
        fs::write(folder.join("memory.stat"), "inactive_file 0\n").expect("written");
        MemoryProbe::of_group(folder)
    }

    fn lengths(config: &PipelineConfig, probe: MemoryProbe) -> QueueLengths {
        let lengths = QueueLengths::new(config, Device::Cpu, 1);
        lengths.read_memory_by(probe);
        lengths
    }

    fn often() -> PipelineConfig {
        PipelineConfig { adapt_every_s: 1e-9, ..PipelineConfig::default() }
    }

    #[test]
    fn the_first_item_already_counts() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = PipelineConfig { adapt_every_s: 1e9, ..PipelineConfig::default() };
        let lengths = lengths(&config, group(folder.path(), 40));
        let (mut sender, _receiver, mut sizer) = lengths.open(Queue::Plans, config.queue_max);
        sizer.passes(|| 20 * MIB);
        sender.send(()).expect("room");
        let changes = lengths.take_changes();
        let [change] = &changes[..] else { panic!("{changes:?}") };
        assert_eq!((change.resize.from, change.resize.to, change.resize.reason.name()), (4, 2, "no_room"));
        assert_eq!(lengths.in_force(), [2, 1]);
        sizer.passes(|| 50 * MIB);
        assert!(lengths.take_changes().is_empty(), "no look is due");
        let record = change.record();
        assert_eq!(
            (&record["queue"], &record["cause"], &record["to"]),
            (&json!("plans"), &json!("no_room"), &json!(2))
        );
        assert!(record["reason"].as_str().is_some_and(|reason| reason.contains("60 of 100 MiB left")), "{record}");
        let (_, _, mut next) = lengths.open::<()>(Queue::Plans, config.queue_max);
        next.passes(|| MIB);
        assert_eq!(lengths.in_force(), [2, 1], "lengths go from pass to pass");
    }

    #[test]
    fn pressure_shrinks_and_a_consumer_that_waits_is_given_more() {
        let folder = tempfile::tempdir().expect("a folder");
        let (config, probe) = (often(), group(folder.path(), 50));
        let lengths = lengths(&config, probe);
        let (mut sender, mut receiver, mut sizer) = lengths.open(Queue::Plans, config.queue_max);
        let consumer = thread::spawn(move || while receiver.recv().is_some() {});
        let mut send = |count: usize| {
            for _ in 0..count {
                thread::sleep(Duration::from_millis(3)); // the consumer waits meanwhile
                sizer.passes(|| MIB);
                sender.send(()).expect("open");
            }
            lengths.in_force()[0]
        };
        assert_eq!(send(12), 16, "as long as it may be");
        group(folder.path(), 95);
        assert!(send(8) < 4);
        group(folder.path(), 50);
        assert_eq!(send(40), 16, "with room again");
        drop(sender);
        consumer.join().expect("no panic");
        let causes: Vec<_> = lengths.take_changes().iter().map(|change| change.resize.reason.name()).collect();
        assert!(causes.contains(&"idle") && causes.contains(&"short_of_memory"), "{causes:?}");
        assert!(lengths.take_changes().is_empty());
    }

    #[test]
    fn a_length_that_is_fixed_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = PipelineConfig { adapt_every_s: 0.0, queue_max: 9, ..PipelineConfig::default() };
        let lengths = lengths(&config, group(folder.path(), 99));
        let (_sender, _receiver, mut sizer) = lengths.open::<()>(Queue::Plans, config.queue_max);
        (0..10).for_each(|_| sizer.passes(|| 90 * MIB));
        lengths.restore([1, 1]);
        assert_eq!(lengths.in_force(), [9, 1]);
        let config = PipelineConfig { queue_min: 3, queue_max: 5, staleness: 4, ..often() };
        let lengths = QueueLengths::new(&config, Device::Cpu, 1);
        for (stored, expected) in [([1, 1], [3, 3]), ([4, 4], [4, 4]), ([100, 100], [5, 5])] {
            lengths.restore(stored);
            assert_eq!(lengths.in_force(), expected);
        }
    }
}
