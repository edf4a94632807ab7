//! Distinct draws: which k of n, by counter, without a list of n.

use crate::philox::Key;
use std::collections::HashMap;

/// `size` distinct numbers below `n` in random order, all subsets alike: the first steps of a Fisher-Yates shuffle whose
/// moved entries alone are kept. All of them if there are not more.
pub(super) fn distinct(key: Key, size: usize, n: u64) -> Vec<u64> {
    let mut moved: HashMap<u64, u64> = HashMap::new();
    let step = |i: u64| {
        let j = i + key.below_u64(i, n - i);
        let drawn = moved.get(&j).copied().unwrap_or(j);
        let displaced = moved.get(&i).copied().unwrap_or(i);
        moved.insert(j, displaced);
        drawn
    };
    (0..n.min(size as u64)).map(step).collect()
}

/// The `rank`-th of the numbers from `first` on that are not among `excluded`.
///
/// * `excluded`: ascending, distinct, none below `first`.
pub(super) fn skip(rank: u64, first: u64, excluded: &[u64]) -> u64 {
    let (mut low, mut high) = (0, excluded.len());
    while low < high {
        let middle = (low + high) / 2;
        // numbers that stay and are less than excluded[middle]
        if excluded[middle] - first - middle as u64 <= rank { low = middle + 1 } else { high = middle }
    }
    first + rank + low as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::philox::Purpose;
    use proptest::prelude::*;

    #[test]
    fn subsets_are_flat() {
        let mut seen = std::collections::BTreeMap::<Vec<u64>, u32>::new();
        for draw in 0..20_000 {
            let key = Key::new(3, Purpose::EvalNegative).narrow([draw, 0, 0, 0]);
            *seen.entry(distinct(key, 2, 5)).or_default() += 1;
        }
        // 20 ordered pairs of 1,000 expected each; chi-square with 19 degrees of freedom: 43.8 once in a thousand
        let chi: f64 = seen.values().map(|&n| (f64::from(n) - 1_000.0).powi(2) / 1_000.0).sum();
        assert!(seen.len() == 20 && chi < 43.8, "{seen:?}: {chi}");
    }

    proptest! {
        #[test]
        fn draws_are_distinct_and_in_range(size in 0usize..40, n in 0u64..60, seed in any::<u64>()) {
            let mut drawn = distinct(Key::new(seed, Purpose::EvalNegative), size, n);
            prop_assert_eq!(drawn.len() as u64, n.min(size as u64));
            drawn.sort_unstable();
            drawn.dedup();
            prop_assert_eq!(drawn.len() as u64, n.min(size as u64));
            prop_assert!(drawn.iter().all(|&x| x < n));
        }

        #[test]
        fn skipping_equals_a_list(
            first in 0u64..9, excluded in proptest::collection::btree_set(0u64..30, 0..20), rank in 0u64..40,
        ) {
            let excluded: Vec<u64> = excluded.into_iter().map(|x| x + first).collect();
            let wanted = (first..).filter(|x| !excluded.contains(x)).nth(rank as usize).unwrap();
            prop_assert_eq!(skip(rank, first, &excluded), wanted);
        }
    }
}
