//! Vector code without intrinsics: loops of fixed width that the compiler turns into the widest instructions the CPU has.
//!
//! A kernel is a struct of its arguments; [`run`] compiles its body for AVX-512, for AVX2 and for the target's baseline, and
//! picks one at run time. Multiplications and additions are never contracted and sums have a fixed number of lanes, so all
//! three give the same bits.

use super::real::Real;

/// A computation on slices. Its body and all that it calls are `#[inline(always)]`.
pub(crate) trait Kernel {
    /// Does it.
    fn compute(self);
}

/// Runs a kernel with the widest instructions there are.
pub(crate) fn run(kernel: impl Kernel) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl") {
            // SAFETY: the CPU has AVX-512 F and VL.
            return unsafe { run_avx512(kernel) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the CPU has AVX2.
            return unsafe { run_avx2(kernel) };
        }
    }
    kernel.compute();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl")]
fn run_avx512(kernel: impl Kernel) {
    kernel.compute();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn run_avx2(kernel: impl Kernel) {
    kernel.compute();
}

/// Numbers that are worked on at once.
pub(crate) const LANES: usize = 16;

/// A sum of products in 16 lanes, with lanes apart for what is left over of each slice.
pub(crate) struct DotProduct<T> {
    lanes: [T; LANES],
    eight: [T; 8],
    four: [T; 4],
    rest: T,
}

impl<T: Real> DotProduct<T> {
    /// Zero.
    #[inline(always)]
    pub(crate) fn zero() -> DotProduct<T> {
        let zero = T::default();
        DotProduct { lanes: [zero; LANES], eight: [zero; 8], four: [zero; 4], rest: zero }
    }

    /// Adds `sum_i a_i b_i`. What is left over is taken in straight line: a loop here would be turned into gathers.
    #[inline(always)]
    pub(crate) fn add(&mut self, a: &[T], b: &[T]) {
        let ((a, rest_a), (b, rest_b)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
        for (a, b) in a.iter().zip(b) {
            multiply_add(&mut self.lanes, a, b);
        }
        let (mut a, mut b) = (rest_a, rest_b);
        if let (Some((x, rest_a)), Some((y, rest_b))) = (a.split_first_chunk(), b.split_first_chunk()) {
            multiply_add::<T, 8>(&mut self.eight, x, y);
            (a, b) = (rest_a, rest_b);
        }
        if let (Some((x, rest_a)), Some((y, rest_b))) = (a.split_first_chunk(), b.split_first_chunk()) {
            multiply_add::<T, 4>(&mut self.four, x, y);
            (a, b) = (rest_a, rest_b);
        }
        for (a, b) in a.iter().zip(b) {
            self.rest += *a * *b;
        }
    }

    /// The sum over all lanes.
    #[inline(always)]
    pub(crate) fn sum(mut self) -> T {
        for i in 0..8 {
            self.eight[i] += self.lanes[i] + self.lanes[i + 8];
        }
        for i in 0..4 {
            self.four[i] += self.eight[i] + self.eight[i + 4];
        }
        ((self.four[0] + self.four[2]) + (self.four[1] + self.four[3])) + self.rest
    }
}

#[inline(always)]
fn multiply_add<T: Real, const N: usize>(sum: &mut [T; N], a: &[T; N], b: &[T; N]) {
    for i in 0..N {
        sum[i] += a[i] * b[i];
    }
}

/// `sum_i a_i b_i`.
#[inline(always)]
pub(crate) fn dot<T: Real>(a: &[T], b: &[T]) -> T {
    let mut product = DotProduct::zero();
    product.add(a, b);
    product.sum()
}

/// `y += a x`.
#[inline(always)]
pub(crate) fn add_scaled<T: Real>(y: &mut [T], a: T, x: &[T]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += a * *x;
    }
}

/// A function of equally long slices, element by element. (A trait, since closures can not be told to be inlined.)
pub(crate) trait Elementwise<T, const I: usize, const O: usize> {
    /// What becomes of the outputs' elements, given those of the inputs.
    fn apply(inputs: [[T; LANES]; I], outputs: &mut [[T; LANES]; O]);
}

/// Applies a function to every vector of the slices, the last one filled up with zeros.
#[inline(always)]
pub(crate) fn map<F: Elementwise<T, I, O>, T: Real, const I: usize, const O: usize>(
    inputs: [&[T]; I],
    outputs: [&mut [T]; O],
) {
    let mut outputs = outputs;
    let len = outputs[0].len();
    let full = len - len % LANES;
    let (mut x, mut y) = ([[T::default(); LANES]; I], [[T::default(); LANES]; O]);
    let mut from = 0;
    while from < full {
        for (x, input) in x.iter_mut().zip(&inputs) {
            x.copy_from_slice(&input[from..from + LANES]);
        }
        for (y, output) in y.iter_mut().zip(&outputs) {
            y.copy_from_slice(&output[from..from + LANES]);
        }
        F::apply(x, &mut y);
        for (y, output) in y.iter().zip(&mut outputs) {
            output[from..from + LANES].copy_from_slice(y);
        }
        from += LANES;
    }
    if full == len {
        return;
    }
    for (x, input) in x.iter_mut().zip(&inputs) {
        x[..len - full].copy_from_slice(&input[full..len]);
    }
    for (y, output) in y.iter_mut().zip(&outputs) {
        y[..len - full].copy_from_slice(&output[full..len]);
    }
    F::apply(x, &mut y);
    for (y, output) in y.iter().zip(&mut outputs) {
        output[full..len].copy_from_slice(&y[..len - full]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Dot<'a>(&'a [f32], &'a [f32], &'a mut f32);

    impl Kernel for Dot<'_> {
        #[inline(always)]
        fn compute(self) {
            *self.2 = dot(self.0, self.1);
        }
    }

    #[test]
    fn any_width_gives_the_same_bits() {
        for len in [0, 1, 15, 16, 17, 100, 372] {
            let a: Vec<f32> = (0..len).map(|i| (i as f32 * 0.37).sin()).collect();
            let b: Vec<f32> = (0..len).map(|i| (i as f32 * 0.11).cos()).collect();
            let (mut wide, mut plain) = (0.0, 0.0);
            run(Dot(&a, &b, &mut wide));
            Dot(&a, &b, &mut plain).compute();
            assert_eq!(wide.to_bits(), plain.to_bits());
            let want: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            assert!((f64::from(wide) - want).abs() < 1e-5);
        }
    }
}
