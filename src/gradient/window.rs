//! A window: the run of batches whose gradients a rank has summed up, and what it says with the sum.
//!
//! Invariants: a rank's windows follow each other without gap or overlap, which is how each contribution is applied exactly
//! once; what is said reads back to the bit.

/// What a rank says with the sum of its gradients of some batches.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Window {
    /// The first batch.
    pub first: usize,
    /// The batch behind the last; `first` if there is none.
    pub end: usize,
    /// The rank was asked to stop.
    pub stop: bool,
    /// The rank's time is up.
    pub out_of_time: bool,
    /// Euclidean norm of the sum.
    pub norm: f64,
    /// Sum of the drifts that the rank found in copies of rows, and of how many.
    pub drift: (f64, f64),
    /// The rank's share of each batch's loss.
    pub losses: Vec<f64>,
    /// Which parameters have a gradient in the sum.
    pub took_part: Vec<bool>,
    /// Sketch of the rank's parameters.
    pub sketch: Vec<f32>,
}

impl Window {
    /// Batches in it.
    pub fn batches(&self) -> usize {
        self.end - self.first
    }

    /// For the wire.
    pub fn to_bytes(&self) -> Vec<u8> {
        let flags = u64::from(self.stop) | u64::from(self.out_of_time) << 1;
        let head = [self.first as u64, self.end as u64, flags, self.took_part.len() as u64];
        let mut bytes: Vec<u8> = bytemuck::cast_slice(&head).to_vec();
        bytes.extend_from_slice(bytemuck::cast_slice(&[self.norm, self.drift.0, self.drift.1]));
        bytes.extend_from_slice(bytemuck::cast_slice(&self.losses));
        bytes.extend(self.took_part.iter().map(|&took_part| u8::from(took_part)));
        bytes.extend_from_slice(bytemuck::cast_slice(&self.sketch));
        bytes
    }

    /// From the wire; `None` if another program wrote it.
    pub fn from_bytes(bytes: &[u8]) -> Option<Window> {
        let (head, rest) = bytes.split_at_checked(32)?;
        let head: Vec<u64> = bytemuck::allocation::pod_collect_to_vec(head);
        let [first, end, flags, parameters] = head[..] else { return None };
        let (first, end) = (usize::try_from(first).ok()?, usize::try_from(end).ok()?);
        let (measured, rest) = rest.split_at_checked(24)?;
        let measured: Vec<f64> = bytemuck::allocation::pod_collect_to_vec(measured);
        let [norm, drift, copies] = measured[..] else { return None };
        let (losses, rest) = rest.split_at_checked(end.checked_sub(first)?.checked_mul(8)?)?;
        let (took_part, sketch) = rest.split_at_checked(usize::try_from(parameters).ok()?)?;
        if sketch.len() % 4 != 0 {
            return None;
        }
        Some(Window {
            first,
            end,
            stop: flags & 1 != 0,
            out_of_time: flags & 2 != 0,
            norm,
            drift: (drift, copies),
            losses: bytemuck::allocation::pod_collect_to_vec(losses),
            took_part: took_part.iter().map(|&took_part| took_part != 0).collect(),
            sketch: bytemuck::allocation::pod_collect_to_vec(sketch),
        })
    }
}

/// How much the ranks' sums point the same way: the mean cosine of each two of them, weighted by their lengths; 0 if there are
/// no two.
///
/// * `total`: norm of the sum over all. * `norms`: of the ranks' own sums.
pub fn agreement(total: f64, norms: impl Iterator<Item = f64>) -> f64 {
    let (sum, squares) = norms.fold((0.0, 0.0), |(sum, squares), norm| (sum + norm, squares + norm * norm));
    let pairs = sum * sum - squares; // of |g_r| |g_s|, over r != s
    if pairs <= 1e-12 * squares { 0.0 } else { ((total * total - squares) / pairs).clamp(-1.0, 1.0) }
}

/// By how much the second moment of an adaptive optimizer is too large, as a factor of its root.
///
/// The others' contributions of `batches` batches come into one step, the rest are the rank's own alone. Their mean over steps
/// is an all-reduce's gradient, but the mean of their squares is not, in so far as contributions point one way; a step divided
/// by its root would be that much shorter than an all-reduce's. With mean square `s` of the common part of a contribution and
/// `n` of the rest, `agreement` of sums of `batches` batches is `s / (s + n / batches)`. 1 if each batch is exchanged by itself.
pub fn second_moment_excess(ranks: usize, batches: f64, agreement: f64) -> f64 {
    let (ranks, agreement) = (ranks as f64, agreement.clamp(0.0, 1.0));
    let (common, rest) = (agreement, batches * (1.0 - agreement));
    let of = |contributions: f64| contributions * contributions * common + contributions * rest;
    if batches <= 1.0 {
        return 1.0;
    }
    (((batches - 1.0) * of(1.0) + of(1.0 + (ranks - 1.0) * batches)) / (batches * of(ranks))).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Contributions drawn with a common part and noise: the mean squares' ratio is what is said.
    #[test]
    fn the_second_moments_excess_is_that_of_drawn_gradients() {
        let mut word = 9u64;
        let mut uniform = || {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (word >> 11) as f64 / (1u64 << 53) as f64 - 0.5
        };
        for (ranks, batches, spread) in [(4, 8, 1.0), (2, 4, 6.0), (3, 5, 0.1)] {
            let (mut lumps, mut sums) = (0.0, 0.0);
            for _ in 0..20_000 {
                let mut draw = |count: usize| (0..count).map(|_| 1.0 + spread * uniform()).sum::<f64>();
                for batch in 0..batches {
                    let own = draw(1);
                    let others = if batch == 0 { draw((ranks - 1) * batches) } else { 0.0 };
                    lumps += (own + others).powi(2);
                    sums += draw(ranks).powi(2);
                }
            }
            let (common, rest) = (1.0, spread * spread / 12.0);
            let agreement = common / (common + rest / batches as f64);
            let said = second_moment_excess(ranks, batches as f64, agreement);
            let drawn = f64::sqrt(lumps / sums);
            assert!((said / drawn - 1.0).abs() < 0.02, "{ranks} {batches} {spread}: {said} {drawn}");
        }
        assert_eq!(second_moment_excess(4, 1.0, 0.3), 1.0);
        assert_eq!(second_moment_excess(4, 8.0, 0.0), 1.0);
    }

    #[test]
    fn what_is_said_reads_back_and_what_is_cut_does_not() {
        let window = Window {
            first: 7,
            end: 10,
            stop: true,
            out_of_time: false,
            norm: 0.1 + 0.2,
            drift: (0.25, 3.0),
            losses: vec![1.0 / 3.0, f64::MIN_POSITIVE, -0.0],
            took_part: vec![true, false, true],
            sketch: vec![1.5, -2.5],
        };
        let bytes = window.to_bytes();
        assert_eq!(Window::from_bytes(&bytes), Some(window.clone()));
        assert_eq!(window.batches(), 3);
        for length in [0, 31, 39, 55, 76, bytes.len() - 1] {
            assert_eq!(Window::from_bytes(&bytes[..length]), None, "{length}");
        }
        let empty = Window { first: 4, end: 4, out_of_time: true, ..Window::default() };
        assert_eq!(Window::from_bytes(&empty.to_bytes()), Some(empty));
    }

    #[test]
    fn agreement_is_the_mean_cosine() {
        assert_eq!(agreement(2.0, [1.0, 1.0].into_iter()), 1.0); // one way
        assert!(agreement(2f64.sqrt(), [1.0, 1.0].into_iter()).abs() < 1e-12); // at right angles
        assert_eq!(agreement(0.0, [1.0, 1.0].into_iter()), -1.0); // against each other
        assert_eq!(agreement(3.0, [3.0, 0.0].into_iter()), 0.0); // one of them said nothing
    }
}
