//! K uniform draws, with replacement, from a root's visible entries (TGAT, arXiv:2002.07962, section 3.3).
//!
//! Draw j of a root is word j of the root's Philox key: a pure function of (seed, epoch, batch, node, time, hop, j), the same on
//! any thread and any rank. The draws are then put in ascending order, so that slots run from the oldest event to the latest, as
//! with `recent`; equal draws are equal entries, so the order is total. A root with any visible entry has all K slots valid.

use super::block::Slots;
use crate::graph::Entry;
use tidemill_data::id::EventId;
use tidemill_data::philox::Key;

/// Fills all slots from the `visible` entries, none if there are none; returns how many.
#[inline]
pub(super) fn fill(visible: &[Entry], key: Key, slots: &mut Slots<'_>) -> usize {
    if visible.is_empty() {
        return 0;
    }
    // The event column holds the drawn places until they are replaced by the events there.
    draw(visible.len() as u32, key, slots.event);
    for slot in 0..slots.len() {
        let place = slots.event[slot].index();
        slots.put(slot, &visible[place]);
    }
    slots.len()
}

/// Places in `0..n`, ascending. Draw j is `key.below(j, n)`; a Philox block makes four.
fn draw(n: u32, key: Key, places: &mut [EventId]) {
    for (block, places) in (0..).zip(places.chunks_mut(4)) {
        let words = key.block(block);
        for (place, word) in places.iter_mut().zip(words) {
            *place = EventId((u64::from(word) * u64::from(n) >> 32) as u32);
        }
    }
    places.sort_unstable();
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_data::philox::Purpose;

    #[test]
    fn a_draw_is_the_key_s_word() {
        let root = Key::new(3, Purpose::Neighbor);
        for count in [1, 3, 4, 5, 10, 20] {
            for n in [1, 2, 7, 1000, u32::MAX] {
                let key = root.at(n, 5, 1);
                let mut drawn = vec![EventId(0); count];
                draw(n, key, &mut drawn);
                let mut want: Vec<EventId> = (0..count as u64).map(|slot| EventId(key.below(slot, n))).collect();
                want.sort_unstable();
                assert_eq!(drawn, want, "{count} of {n}");
            }
        }
    }
}
