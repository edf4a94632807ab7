//! K uniform draws, with replacement, from a root's visible entries (TGAT, arXiv:2002.07962, section 3.3).
//!
//! Draw j of a root is word j of the root's Philox key: a pure function of (seed, epoch, batch, node, time, hop, j), the same on
//! any thread and any rank. The draws are then put in ascending order, so that slots run from the oldest event to the latest, as
//! with `recent`; equal draws are equal entries, so the order is total. A root with any visible entry has all K slots valid.

use super::block::{Slots, prefetch};
use crate::graph::Entry;
use tidemill_data::id::EventId;
use tidemill_data::philox::Key;

/// Draws all `places` from those of `visible`, none if there are none; returns how many. They ascend.
///
/// Draw j is `key.below(j, visible)`; a Philox block makes four.
#[inline]
pub(super) fn choose(visible: &[Entry], key: Key, places: &mut [EventId]) -> usize {
    if visible.is_empty() {
        return 0;
    }
    for (block, places) in (0..).zip(places.chunks_mut(4)) {
        let words = key.block(block);
        for (place, word) in places.iter_mut().zip(words) {
            *place = EventId(((u64::from(word) * visible.len() as u64) >> 32) as u32);
            prefetch(&visible[place.index()]);
        }
    }
    sort(places);
    places.len()
}

/// Fills the first `count` slots as chosen, and clears the others.
#[inline]
pub(super) fn take(row: &[Entry], count: usize, mut slots: Slots<'_>) {
    for slot in 0..count {
        let place = slots.event[slot].index();
        slots.put(slot, &row[place]);
    }
    slots.clear_from(count);
}

/// Sorts a few random numbers by Batcher's merge exchange (Knuth, The Art of Computer Programming, 5.2.2, algorithm M): which
/// pairs are compared depends on their number alone, so no branch is mispredicted.
fn sort(places: &mut [EventId]) {
    let n = places.len();
    if n > 64 {
        return places.sort_unstable();
    }
    let top = n.next_power_of_two() / 2;
    let mut p = top;
    while p > 0 {
        let (mut q, mut r, mut d) = (top, 0, p);
        loop {
            for i in (0..n - d).filter(|i| i & p == r) {
                let (a, b) = (places[i], places[i + d]);
                (places[i], places[i + d]) = (a.min(b), a.max(b));
            }
            if q == p {
                break;
            }
            (d, q, r) = (q - p, q / 2, p);
        }
        p /= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_data::philox::Purpose;

    #[test]
    fn a_draw_is_the_key_s_word() {
        let (entries, root) = (vec![Entry::default(); 70_000], Key::new(3, Purpose::Neighbor));
        for count in [1, 2, 3, 4, 5, 7, 8, 9, 10, 15, 16, 17, 20, 33, 63, 64, 65, 100] {
            for n in [1, 2, 7, 1000, 70_000] {
                let (key, mut drawn) = (root.at(n, 5, 1), vec![EventId(0); count]);
                assert_eq!(choose(&entries[..n as usize], key, &mut drawn), count);
                let mut want: Vec<EventId> = (0..count as u64).map(|slot| EventId(key.below(slot, n))).collect();
                want.sort_unstable();
                assert_eq!(drawn, want, "{count} of {n}");
            }
        }
    }

    /// A network that sorts all zeros and ones sorts everything (Knuth, 5.3.4, the zero-one principle).
    #[test]
    fn sorts_all_zeros_and_ones() {
        for n in 1..=12 {
            for bits in 0..1u32 << n {
                let mut places: Vec<EventId> = (0..n).map(|i| EventId(bits >> i & 1)).collect();
                sort(&mut places);
                assert!(places.is_sorted(), "{bits:b} of {n}");
                assert_eq!(places.iter().map(|p| p.0).sum::<u32>(), bits.count_ones());
            }
        }
    }
}
