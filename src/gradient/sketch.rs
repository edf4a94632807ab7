//! How far the ranks' parameters are from their mean, from a few kilobytes of each: count sketches (Charikar, Chen and
//! Farach-Colton, ICALP 2002; the squared norm's estimate is that of Alon, Matias and Szegedy, STOC 1996).
//!
//! Each number is added, with a sign, to one of [`BUCKETS`] sums; bucket and sign follow from its index by a hash, alike on all
//! ranks. The sketch is linear, so the sketches' mean is the mean's sketch, and its norm is that of what was sketched but for a
//! relative error of standard deviation `1 / sqrt(2 BUCKETS)`. Invariant: what [`divergence`] returns is above the true value
//! by four such deviations, so that a bound held against it is a bound on the true value.

/// Sums of a sketch.
pub const BUCKETS: usize = 4096;

/// Standard deviations by which an estimate is raised.
const DEVIATIONS: f64 = 4.0;

/// The sketch of some numbers in order, [`BUCKETS`] sums.
pub fn sketch(values: impl Iterator<Item = f64>) -> Vec<f32> {
    let mut sums = vec![0.0f64; BUCKETS];
    for (index, value) in values.enumerate() {
        let word = mix(index as u64);
        let sum = &mut sums[(word >> 1) as usize % BUCKETS];
        *sum += if word & 1 == 0 { value } else { -value };
    }
    sums.into_iter().map(|sum| sum as f32).collect()
}

/// `max over ranks of ||theta_r - mean|| / ||mean||`, from the ranks' sketches of their parameters: an estimate from above.
pub fn divergence<'a>(sketches: impl Iterator<Item = &'a [f32]> + Clone) -> f64 {
    let ranks = sketches.clone().count() as f64;
    let mut mean = vec![0.0; BUCKETS];
    for sketch in sketches.clone() {
        mean.iter_mut().zip(sketch).for_each(|(mean, &sum)| *mean += f64::from(sum) / ranks);
    }
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let farthest = sketches
        .map(|sketch| norm(&mut sketch.iter().zip(&mean).map(|(&sum, mean)| f64::from(sum) - mean)))
        .fold(0.0, f64::max);
    let error = DEVIATIONS / (2.0 * BUCKETS as f64).sqrt();
    farthest * (1.0 + error) / (norm(&mut mean.iter().copied()) * (1.0 - error)).max(f64::MIN_POSITIVE)
}

/// A word of 64 mixed bits (the finalizer of SplitMix64).
fn mix(index: u64) -> u64 {
    let mut word = index.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parameters of three ranks, some near each other and some not: the estimate is above the truth, by no more than a tenth.
    #[test]
    fn the_estimate_bounds_the_divergence_from_above() {
        let noise = |seed: u64, index: u64| (mix(seed << 40 | index) as f64 / u64::MAX as f64) - 0.5;
        for (seed, scale) in (0..40).map(|seed| (seed, 10f64.powi(-(seed as i32 % 5)))) {
            let count = 30_000 + 100 * seed;
            let values = |rank: u64| -> Vec<f64> {
                (0..count).map(|i| noise(seed, i) + if rank == 1 { scale * noise(99 + seed, i) } else { 0.0 }).collect()
            };
            let ranks = [values(0), values(1), values(2)];
            let mean: Vec<f64> =
                (0..count as usize).map(|i| ranks.iter().map(|rank| rank[i]).sum::<f64>() / 3.0).collect();
            let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
            let far = |rank: &Vec<f64>| norm(&mut rank.iter().zip(&mean).map(|(a, b)| a - b));
            let truth = ranks.iter().map(far).fold(0.0, f64::max) / norm(&mut mean.iter().copied());
            let sketches = ranks.each_ref().map(|rank| sketch(rank.iter().copied()));
            let estimate = divergence(sketches.iter().map(Vec::as_slice));
            assert!(truth <= estimate && estimate <= truth * 1.15 + 1e-6, "{truth:e} {estimate:e}");
        }
    }

    #[test]
    fn equal_parameters_have_none() {
        let one = sketch((0..1000).map(f64::from));
        assert_eq!(divergence([one.as_slice(), &one].into_iter()), 0.0);
        let zeros = sketch((0..1000).map(|_| 0.0));
        assert_eq!(divergence([zeros.as_slice(), &zeros].into_iter()), 0.0);
    }
}
