//! The controller under loads that are made up: a step, a ramp, a sawtooth, noise.

use super::*;
use crate::device::memory::Place;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

/// A host with a queue in it. The producer fills what the queue holds; the consumer waits while the queue is shorter than
/// `needed`.
struct Machine {
    limit: u64,
    item: u64,
    needed: usize,
    controller: LengthController,
    /// The length after each look.
    lengths: Vec<usize>,
    /// Least that was ever left.
    least_free: u64,
}

impl Machine {
    fn new(bounds: Bounds, limit: u64, item: u64, needed: usize) -> Machine {
        let controller = LengthController::new(bounds);
        Machine { limit, item, needed, controller, lengths: Vec::new(), least_free: u64::MAX }
    }

    /// A look while others use `used` bytes.
    fn look(&mut self, used: u64) -> Option<Resize> {
        let length = self.controller.length();
        let free = self.limit.saturating_sub(used + self.item * length as u64);
        self.least_free = self.least_free.min(free);
        let starved = length < self.needed;
        let resize = self.controller.look(&Reading {
            item_bytes: self.item,
            held: length,
            spaces: &[Space { place: Place::ControlGroup, limit_bytes: self.limit, free_bytes: free }],
            sharers: 1,
            consumer_idle: if starved { 0.3 } else { 0.0 },
        });
        self.lengths.push(self.controller.length());
        resize
    }

    fn run(&mut self, looks: usize, used: impl Fn(usize) -> u64) {
        (0..looks).for_each(|look| {
            self.look(used(look));
        });
    }

    fn reversals(&self) -> usize {
        reversals(&self.lengths)
    }

    /// The look at which the length changed for the last time.
    fn settled_at(&self) -> usize {
        self.lengths.windows(2).rposition(|pair| pair[0] != pair[1]).map_or(0, |look| look + 1)
    }
}

/// Changes of direction: growing after shrinking, or the reverse.
fn reversals(lengths: &[usize]) -> usize {
    let steps = lengths.windows(2).map(|pair| (pair[1] as i64 - pair[0] as i64).signum());
    let moves: Vec<i64> = steps.filter(|&step| step != 0).collect();
    moves.windows(2).filter(|pair| pair[0] != pair[1]).count()
}

const WIDE: Bounds = Bounds { min: 1, max: 64 };

#[test]
fn with_room_an_idle_consumer_gets_what_it_needs_and_no_more() {
    let mut machine = Machine::new(WIDE, 4096 * MIB, MIB, 20);
    machine.run(100, |_| 500 * MIB);
    assert_eq!(machine.lengths.last(), Some(&32), "the first doubling that is enough");
    assert_eq!((machine.reversals(), machine.settled_at() < 10), (0, true), "{:?}", machine.lengths);
    let mut insatiable = Machine::new(WIDE, 4096 * MIB, MIB, usize::MAX);
    insatiable.run(100, |_| 500 * MIB);
    assert_eq!(insatiable.lengths.last(), Some(&64), "the bound");
    let mut content = Machine::new(WIDE, 4096 * MIB, MIB, 0);
    content.run(100, |_| 500 * MIB);
    assert_eq!(content.lengths, [START; 100], "nobody waits");
}

#[test]
fn a_queue_grows_only_as_far_as_twice_the_reserve_stays() {
    let mut machine = Machine::new(WIDE, 1000 * MIB, 20 * MIB, usize::MAX);
    machine.run(100, |_| 400 * MIB);
    assert_eq!(machine.lengths.last(), Some(&20), "600 MiB less two tenths of 1000, in items of 20");
    assert_eq!((machine.reversals(), machine.least_free), (0, 200 * MIB));
}

#[test]
fn a_step_is_answered_once() {
    let mut machine = Machine::new(WIDE, 1000 * MIB, 10 * MIB, 40);
    machine.run(400, |look| if look < 50 { 200 * MIB } else { 780 * MIB });
    assert_eq!(machine.lengths[49], 60, "as far as two reserves stay");
    assert!(machine.lengths[53] <= 12, "{:?}", &machine.lengths[48..60]);
    assert_eq!(machine.reversals(), 1);
    assert!(machine.settled_at() < 60, "settled at {}", machine.settled_at());
}

#[test]
fn a_step_away_is_answered_by_growth_once() {
    let mut machine = Machine::new(WIDE, 1000 * MIB, 10 * MIB, 16);
    machine.run(400, |look| if look < 50 { 850 * MIB } else { 300 * MIB });
    assert!(machine.lengths[49] <= 5, "{:?}", &machine.lengths[..50]);
    assert_eq!(machine.lengths.last(), Some(&16));
    assert!(machine.reversals() <= 1 && machine.settled_at() < 80, "{:?}", machine.lengths);
}

#[test]
fn a_ramp_is_followed_downwards_without_a_step_up() {
    let mut machine = Machine::new(WIDE, 1000 * MIB, 10 * MIB, 64);
    machine.run(50, |_| 100 * MIB);
    let top = *machine.lengths.last().expect("looks");
    machine.lengths.clear();
    machine.run(300, |look| 100 * MIB + 750 * MIB * (look as u64).min(100) / 100);
    assert!(machine.lengths.windows(2).all(|pair| pair[1] <= pair[0]), "{:?}", machine.lengths);
    assert!(top == 64 && *machine.lengths.last().expect("looks") <= 5, "{:?}", machine.lengths);
    assert!(machine.least_free >= 90 * MIB, "never far below the reserve: {}", machine.least_free / MIB);
}

#[test]
fn a_sawtooth_is_met_by_ever_fewer_changes() {
    for period in [6, 20, 60] {
        let mut machine = Machine::new(WIDE, 1000 * MIB, 10 * MIB, 64);
        machine.run(2000, |look| 150 * MIB + 750 * MIB * (look % period) as u64 / period as u64);
        let all = machine.reversals();
        assert!(all <= 24, "period {period}: {all} reversals in {} periods", 2000 / period);
        let [early, late] = [&machine.lengths[..1000], &machine.lengths[1000..]].map(reversals);
        assert!(late <= 8 && late <= early, "period {period}: {early} reversals, then {late}");
        assert!(period < 20 || machine.least_free > 0, "period {period}: no look between room and none");
    }
}

#[test]
fn noise_within_the_two_reserves_changes_nothing() {
    let mut machine = Machine::new(WIDE, 1000 * MIB, MIB, 4);
    machine.run(500, |look| (820 + 30 * (look as u64 * 7 % 11) / 10) * MIB);
    assert!(machine.settled_at() < 20, "settled at {}", machine.settled_at());
}

#[test]
fn the_tightest_place_rules_and_is_named() {
    let spaces = [
        Space { place: Place::Host, limit_bytes: 64 << 30, free_bytes: 40 << 30 },
        Space { place: Place::ControlGroup, limit_bytes: 2000 * MIB, free_bytes: 150 * MIB },
    ];
    let reading = Reading { item_bytes: 30 * MIB, held: 3, spaces: &spaces, sharers: 1, consumer_idle: 1.0 };
    let resize = LengthController::at(WIDE, 16).look(&reading).expect("short of 50 MiB");
    assert_eq!((resize.from, resize.to, resize.reason), (16, 12, Reason::ShortOfMemory(spaces[1])));
    assert!(resize.reason.to_string().starts_with("the control group has 150 of 2000 MiB left"), "{}", resize.reason);

    let first = Reading { spaces: &[Space { free_bytes: 500 * MIB, ..spaces[1] }], held: 0, ..reading };
    let resize = LengthController::at(WIDE, 16).look(&first).expect("16 items take 480 MiB");
    assert_eq!((resize.to, resize.reason.name()), (10, "no_room"));
    let shared = Reading { sharers: 5, ..first };
    assert_eq!(LengthController::at(WIDE, 16).look(&shared).expect("five such queues").to, 2);
    assert_eq!(LengthController::at(Bounds { min: 3, max: 8 }, 8).look(&shared).expect("at its least").to, 3);
    assert_eq!(LengthController::at(Bounds { min: 3, max: 8 }, 3).look(&shared), None, "at its least");
    let unknown = Reading { spaces: &[], ..first };
    assert_eq!(LengthController::at(WIDE, 16).look(&unknown).expect("nothing is known to be short").to, 32);
}

proptest! {
    /// Whatever the readings, the length stays within its bounds, changes are told as they are, and growth leaves two reserves.
    #[test]
    fn bounds_and_reserves_are_kept(
        (min, more) in (1usize..10, 0usize..60),
        looks in prop::collection::vec((0u64..1200, 1u64..100, 0usize..70, 0.0f64..1.0), 1..80),
    ) {
        let bounds = Bounds { min, max: min + more };
        let mut controller = LengthController::new(bounds);
        for (free, item, held, consumer_idle) in looks {
            let space = Space { place: Place::Host, limit_bytes: 1000 * MIB, free_bytes: free * MIB };
            let reading = Reading { item_bytes: item * MIB, held, spaces: &[space], sharers: 1, consumer_idle };
            let from = controller.length();
            let shrinks = controller.would_shrink(&reading);
            let resize = controller.look(&reading);
            prop_assert!((bounds.min..=bounds.max).contains(&controller.length()));
            prop_assert_eq!(shrinks, controller.length() < from);
            prop_assert_eq!(resize.map(|r| (r.from, r.to)), (controller.length() != from).then(|| (from, controller.length())));
            if controller.length() > from {
                let added = item * controller.length().saturating_sub(held) as u64;
                prop_assert!(free >= 200 + added, "{} left, {} to come", free, added);
            }
        }
    }

    /// A load that stays the same is answered by a length that stays the same.
    #[test]
    fn a_steady_load_is_a_steady_length(used in 0u64..1100, item in 1u64..60, needed in 0usize..80) {
        let mut machine = Machine::new(WIDE, 1000 * MIB, item * MIB, needed);
        machine.run(200, |_| used * MIB);
        prop_assert!(machine.settled_at() < 100 && machine.reversals() <= 1, "{:?}", machine.lengths);
    }
}
