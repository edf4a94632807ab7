//! Average precision and ROC AUC of link scores, as scikit-learn's `average_precision_score` and `roc_auc_score`.
//!
//! With the scores in descending order and equal scores forming one threshold, `AP = sum over thresholds of
//! (recall_n - recall_(n-1)) * precision_n` (no interpolation), and AUC is the chance that a positive outranks a negative,
//! a tie counting half.
//!
//! Invariants: results do not depend on the order in which scores are given; sums are f64, the AUC's pair counts are exact
//! integers; a score that is NaN or infinite is an error, as in scikit-learn.
//!
//! One class only, also as scikit-learn: AP is 1 without negatives and 0 without positives, AUC is NaN either way (`null`
//! in JSON).
//!
//! Absent: the mean reciprocal rank, which needs each positive's own candidates: see [`super::ranking`].

use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

/// A score that can not be ranked.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[error("{class} score {index} is {value}: scores must be finite, so the model's parameters or its state are broken")]
pub struct NonFiniteScore {
    /// Which scores it was found among.
    pub class: Class,
    /// Its index in the slice given.
    pub index: usize,
    /// NaN or an infinity.
    pub value: f64,
}

/// The two classes of a link prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Events that happened.
    Positive,
    /// Candidates that were drawn.
    Negative,
}

impl std::fmt::Display for Class {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Class::Positive => "positive",
            Class::Negative => "negative",
        })
    }
}

/// Scores are f32 or f64; both are ranked as f64, which keeps the order and the ties of f32.
pub trait Score: Copy + Into<f64> {}
impl Score for f32 {}
impl Score for f64 {}

/// Average precision and area under the ROC curve of one set of scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranking {
    /// Average precision, `0..=1`.
    pub ap: f64,
    /// Area under the ROC curve, `0..=1`; NaN if a class is empty.
    pub auc: f64,
}

/// Ranks positives against negatives, in any number of each.
///
/// # Errors
/// [`NonFiniteScore`] if any score is NaN or infinite.
pub fn rank<S: Score>(positives: &[S], negatives: &[S]) -> Result<Ranking, NonFiniteScore> {
    let mut positive = Vec::new();
    let mut negative = Vec::new();
    append_keys(&mut positive, positives, Class::Positive)?;
    append_keys(&mut negative, negatives, Class::Negative)?;
    Ok(rank_keys(&mut positive, &mut negative))
}

/// Metrics of a split: pooled over all scores, and as the unweighted mean over batches.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkMetrics {
    /// Average precision of the whole split's scores together.
    #[serde(deserialize_with = "null_is_nan")]
    pub ap: f64,
    /// ROC AUC of the whole split's scores together.
    #[serde(deserialize_with = "null_is_nan")]
    pub auc: f64,
    /// Mean of each batch's average precision.
    #[serde(deserialize_with = "null_is_nan")]
    pub ap_batch_mean: f64,
    /// Mean of each batch's ROC AUC.
    #[serde(deserialize_with = "null_is_nan")]
    pub auc_batch_mean: f64,
}

impl Default for LinkMetrics {
    /// Nothing measured: every figure is NaN.
    fn default() -> Self {
        LinkMetrics { ap: f64::NAN, auc: f64::NAN, ap_batch_mean: f64::NAN, auc_batch_mean: f64::NAN }
    }
}

/// serde_json writes NaN as `null`; reading gives it back.
fn null_is_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// Collects a split's scores, one global batch at a time.
///
/// Takes 8 bytes a score. A batch without any score is no batch: it does not enter the means.
#[derive(Clone, Debug, Default)]
pub struct LinkScores {
    positive: Vec<u64>,
    negative: Vec<u64>,
    batches: usize,
    ap_sum: f64,
    auc_sum: f64,
}

impl LinkScores {
    /// No scores yet.
    pub fn new() -> Self {
        LinkScores::default()
    }

    /// Adds a batch and returns its own figures.
    ///
    /// # Errors
    /// [`NonFiniteScore`], with indices within this batch; nothing of the batch is kept then.
    pub fn push<S: Score>(&mut self, positives: &[S], negatives: &[S]) -> Result<Ranking, NonFiniteScore> {
        let (first_positive, first_negative) = (self.positive.len(), self.negative.len());
        let appended = append_keys(&mut self.positive, positives, Class::Positive)
            .and_then(|()| append_keys(&mut self.negative, negatives, Class::Negative));
        if let Err(error) = appended {
            self.positive.truncate(first_positive);
            self.negative.truncate(first_negative);
            return Err(error);
        }
        // Sorting the batch's own part in place leaves the pooled multiset as it is.
        let ranking = rank_keys(&mut self.positive[first_positive..], &mut self.negative[first_negative..]);
        if !positives.is_empty() || !negatives.is_empty() {
            self.batches += 1;
            self.ap_sum += ranking.ap;
            self.auc_sum += ranking.auc;
        }
        Ok(ranking)
    }

    /// Positives collected so far.
    pub fn positives(&self) -> usize {
        self.positive.len()
    }

    /// Negatives collected so far.
    pub fn negatives(&self) -> usize {
        self.negative.len()
    }

    /// The split's metrics; all NaN if nothing was scored.
    pub fn finish(mut self) -> LinkMetrics {
        if self.batches == 0 {
            return LinkMetrics::default();
        }
        let pooled = rank_keys(&mut self.positive, &mut self.negative);
        let batches = self.batches as f64;
        LinkMetrics {
            ap: pooled.ap,
            auc: pooled.auc,
            ap_batch_mean: self.ap_sum / batches,
            auc_batch_mean: self.auc_sum / batches,
        }
    }
}

impl LinkMetrics {
    /// Metrics of a split given as batches of (positives, negatives).
    ///
    /// # Errors
    /// [`NonFiniteScore`], with indices within its batch.
    pub fn of_batches<'a, S: Score + 'a>(
        batches: impl IntoIterator<Item = (&'a [S], &'a [S])>,
    ) -> Result<LinkMetrics, NonFiniteScore> {
        let mut scores = LinkScores::new();
        for (positives, negatives) in batches {
            scores.push(positives, negatives)?;
        }
        Ok(scores.finish())
    }
}

/// Appends each score as an integer key: keys compare as the scores do, and -0 and 0 share one.
fn append_keys<S: Score>(keys: &mut Vec<u64>, scores: &[S], class: Class) -> Result<(), NonFiniteScore> {
    const SIGN: u64 = 1 << 63;
    keys.reserve(scores.len());
    for (index, &score) in scores.iter().enumerate() {
        let value: f64 = score.into();
        if !value.is_finite() {
            return Err(NonFiniteScore { class, index, value });
        }
        let bits = (value + 0.0).to_bits();
        keys.push(if bits & SIGN == 0 { bits | SIGN } else { !bits });
    }
    Ok(())
}

/// Sorts both classes and walks them from the highest score down, one threshold at a time.
fn rank_keys(positive: &mut [u64], negative: &mut [u64]) -> Ranking {
    positive.sort_unstable();
    negative.sort_unstable();
    let (p, n) = (positive.len(), negative.len());
    let (mut above_p, mut above_n) = (0, 0); // true and false positives at the threshold before
    let mut precision_sum = 0.0;
    let mut twice_wins = 0u128; // 2 (positive beats negative) + (tie), over all pairs
    while above_p < p {
        let threshold = positive[p - 1 - above_p];
        above_n += count_top(&negative[..n - above_n], |key| key > threshold);
        let tied_p = count_top(&positive[..p - above_p], |key| key == threshold);
        let tied_n = count_top(&negative[..n - above_n], |key| key == threshold);
        let below_n = n - above_n - tied_n;
        twice_wins += tied_p as u128 * (2 * below_n + tied_n) as u128;
        above_p += tied_p;
        above_n += tied_n;
        precision_sum += tied_p as f64 * (above_p as f64 / (above_p + above_n) as f64);
    }
    Ranking {
        ap: if p == 0 { 0.0 } else { precision_sum / p as f64 },
        auc: twice_wins as f64 / (2 * p as u128 * n as u128) as f64,
    }
}

/// How many of the highest keys, in a row, satisfy `holds`.
fn count_top(keys: &[u64], holds: impl Fn(u64) -> bool) -> usize {
    keys.iter().rev().take_while(|&&key| holds(key)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Deserialize)]
    struct Golden {
        name: String,
        positives: Vec<f64>,
        negatives: Vec<f64>,
        ap: f64,
        auc: Option<f64>,
    }

    /// Rounding of two ways to add up at most some hundred f64 terms in `0..=1`.
    const TOLERANCE: f64 = 1e-14;

    fn same(a: f64, b: f64) -> bool {
        (a.is_nan() && b.is_nan()) || (a - b).abs() <= TOLERANCE
    }

    #[test]
    fn agrees_with_scikit_learn() {
        let golden: Vec<Golden> =
            serde_json::from_str(include_str!("../../tests/golden/link_metrics.json")).expect("golden file");
        assert!(golden.len() >= 6);
        for case in golden {
            let got = rank(&case.positives, &case.negatives).expect(&case.name);
            let auc = case.auc.unwrap_or(f64::NAN);
            assert!(same(got.ap, case.ap), "{}: ap {} is not {}", case.name, got.ap, case.ap);
            assert!(same(got.auc, auc), "{}: auc {} is not {auc}", case.name, got.auc);
        }
    }

    #[test]
    fn refuses_scores_that_are_not_finite() {
        let error = rank(&[1.0, f64::NAN], &[0.0]).expect_err("NaN");
        assert_eq!((error.class, error.index), (Class::Positive, 1));
        let error = rank(&[1.0f32], &[0.0, 0.5, f32::NEG_INFINITY]).expect_err("infinity");
        assert_eq!(error, NonFiniteScore { class: Class::Negative, index: 2, value: f64::NEG_INFINITY });
    }

    #[test]
    fn a_refused_batch_leaves_nothing_behind() {
        let mut scores = LinkScores::new();
        scores.push(&[1.0, 0.2], &[0.5, 0.1]).expect("finite");
        let mut other = scores.clone();
        other.push(&[9.0], &[f64::NAN]).expect_err("NaN");
        assert_eq!(other.finish(), scores.finish());
    }

    #[test]
    fn pooled_and_batch_mean_differ_as_they_should() {
        // Each batch is perfect by itself; together the second batch's negatives outrank the first's positives.
        let metrics = LinkMetrics::of_batches([(&[1.0, 0.9][..], &[0.1, 0.0][..]), (&[9.0], &[5.0]), (&[], &[])])
            .expect("finite");
        assert_eq!((metrics.ap_batch_mean, metrics.auc_batch_mean), (1.0, 1.0));
        let pooled = rank(&[1.0, 0.9, 9.0], &[0.1, 0.0, 5.0]).expect("finite");
        assert_eq!((metrics.ap, metrics.auc), (pooled.ap, pooled.auc));
        assert!(metrics.ap < 1.0);
    }

    #[test]
    fn nothing_scored_is_null_in_json_and_comes_back() {
        let text = serde_json::to_string(&LinkScores::new().finish()).expect("json");
        assert_eq!(text, r#"{"ap":null,"auc":null,"ap_batch_mean":null,"auc_batch_mean":null}"#);
        let back: LinkMetrics = serde_json::from_str(&text).expect("json");
        assert!(back.ap.is_nan() && back.auc_batch_mean.is_nan());
    }

    /// O(n^2), straight from the definitions.
    fn brute_force(positives: &[f64], negatives: &[f64]) -> Ranking {
        let at_least = |scores: &[f64], s: f64| scores.iter().filter(|&&x| x >= s).count() as f64;
        let ap = positives
            .iter()
            .map(|&s| at_least(positives, s) / (at_least(positives, s) + at_least(negatives, s)))
            .sum::<f64>()
            / positives.len() as f64;
        let mut wins = 0.0;
        for p in positives {
            for q in negatives {
                wins += if p > q { 1.0 } else { f64::from(u8::from(p == q)) * 0.5 };
            }
        }
        Ranking { ap, auc: wins / (positives.len() * negatives.len()) as f64 }
    }

    proptest! {
        #[test]
        fn equals_brute_force(
            positives in prop::collection::vec(-6i32..7, 1..60),
            negatives in prop::collection::vec(-8i32..5, 1..90),
            step in prop::sample::select(vec![1.0, 0.37, 1e-3]),
        ) {
            let scale = |v: &[i32]| v.iter().map(|&x| f64::from(x) * step).collect::<Vec<_>>();
            let (positives, negatives) = (scale(&positives), scale(&negatives));
            let expected = brute_force(&positives, &negatives);
            let got = rank(&positives, &negatives).expect("finite");
            prop_assert!(same(got.ap, expected.ap) && same(got.auc, expected.auc), "{got:?} {expected:?}");
        }

        #[test]
        fn f32_ranks_as_f64(scores in prop::collection::vec(-1e3f32..1e3, 2..80)) {
            let (positives, negatives) = scores.split_at(scores.len() / 2);
            let widen = |v: &[f32]| v.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
            prop_assert_eq!(rank(positives, negatives), rank(&widen(positives), &widen(negatives)));
        }
    }
}
