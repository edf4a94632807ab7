//! Rank of one event within its candidates, as the Temporal Graph Benchmark (arXiv:2307.01026) counts it.
//!
//! `rank = 1 + (above + above or equal) / 2`: a tie counts as the mean of the best and the worst order. The mean of `1 / rank`
//! over events comes with its standard error, for where events are a sample.

use super::{Class, NonFiniteScore};
use serde::{Deserialize, Serialize};
use tidemill_data::id::EventId;

/// An event's rank, as its reciprocal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankedEvent {
    /// The event.
    pub event: EventId,
    /// `1 / rank`.
    pub reciprocal: f64,
}

impl RankedEvent {
    /// Ranks an event's logit among its candidates'.
    ///
    /// # Errors
    /// A logit that is not finite.
    pub fn new(event: EventId, positive: f64, candidates: &[f64]) -> Result<RankedEvent, NonFiniteScore> {
        let finite = |class, index, value: f64| match value.is_finite() {
            true => Ok(()),
            false => Err(NonFiniteScore { class, index, value }),
        };
        finite(Class::Positive, 0, positive)?;
        let (mut above, mut at_least) = (0u32, 0u32);
        for (index, &candidate) in candidates.iter().enumerate() {
            finite(Class::Negative, index, candidate)?;
            above += u32::from(candidate > positive);
            at_least += u32::from(candidate >= positive);
        }
        Ok(RankedEvent { event, reciprocal: 1.0 / (1.0 + 0.5 * (f64::from(above) + f64::from(at_least))) })
    }
}

/// Mean reciprocal rank of some events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mrr {
    /// The mean.
    pub mrr: f64,
    /// Its standard error: the reciprocal ranks' standard deviation by the root of their number.
    pub mrr_standard_error: f64,
    /// Events ranked.
    pub mrr_events: u64,
}

impl Mrr {
    /// The mean of reciprocal ranks; `None` without any.
    pub fn of(reciprocals: impl Iterator<Item = f64> + Clone) -> Option<Mrr> {
        let count = reciprocals.clone().count();
        if count == 0 {
            return None;
        }
        let mean = reciprocals.clone().sum::<f64>() / count as f64;
        let squares: f64 = reciprocals.map(|x| (x - mean).powi(2)).sum();
        let variance = squares / (count.max(2) - 1) as f64;
        Some(Mrr { mrr: mean, mrr_standard_error: (variance / count as f64).sqrt(), mrr_events: count as u64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reciprocal(positive: f64, candidates: &[f64]) -> f64 {
        RankedEvent::new(EventId(0), positive, candidates).expect("finite").reciprocal
    }

    #[test]
    fn ties_count_as_the_mean_of_best_and_worst() {
        assert_eq!(reciprocal(1.0, &[0.0, 0.5]), 1.0);
        assert_eq!(reciprocal(1.0, &[2.0, 0.5]), 0.5);
        assert_eq!(reciprocal(1.0, &[1.0, 0.5]), 1.0 / 1.5);
        assert_eq!(reciprocal(1.0, &[1.0; 9]), 1.0 / 5.5, "ranks 1 to 10");
        assert_eq!(reciprocal(1.0, &[]), 1.0);
        let error = RankedEvent::new(EventId(0), 1.0, &[0.0, f64::NAN]).expect_err("NaN");
        assert_eq!((error.class, error.index), (Class::Negative, 1));
    }

    #[test]
    fn the_mean_comes_with_its_error() {
        let mrr = Mrr::of([1.0, 0.5, 0.0].into_iter()).expect("three");
        assert_eq!((mrr.mrr, mrr.mrr_events), (0.5, 3));
        assert!((mrr.mrr_standard_error - (0.25f64 / 3.0).sqrt()).abs() < 1e-15, "{mrr:?}");
        assert_eq!(Mrr::of([0.25].into_iter()), Some(Mrr { mrr: 0.25, mrr_standard_error: 0.0, mrr_events: 1 }));
        assert_eq!(Mrr::of(std::iter::empty()), None);
    }

    proptest! {
        /// The mean of the ranks that the best and the worst order of equal scores give.
        #[test]
        fn rank_equals_sorting(positive in -3i32..4, candidates in prop::collection::vec(-3i32..4, 0..20)) {
            let scores: Vec<f64> = candidates.iter().map(|&x| f64::from(x)).collect();
            let mut sorted = candidates.clone();
            sorted.push(positive);
            sorted.sort_by(|a, b| b.cmp(a));
            let first = sorted.iter().position(|&x| x == positive).expect("there") + 1;
            let last = sorted.iter().rposition(|&x| x == positive).expect("there") + 1;
            prop_assert_eq!(reciprocal(f64::from(positive), &scores), 2.0 / (first + last) as f64);
        }
    }
}
