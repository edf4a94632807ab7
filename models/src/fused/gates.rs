//! The elementwise part of a GRU, forward and backward, in one pass each over one buffer of gates.
//!
//! A row of the buffer is `[r | z | n | h_n]`, D_m wide each. Before the forward pass it holds the sums that the gates are functions
//! of (for n, the message's share), after it the gates themselves, after the backward pass the gradients of the sums.
//! `n = tanh(n + r h_n)`, `row = (1 - z) n + z own`.

use rayon::prelude::*;

use super::real::Real;
use super::simd::{Elementwise, Kernel, LANES, map, run};

/// Rows a task.
const ROWS: usize = 64;

/// From sums to gates, and the new rows.
///
/// * `gates`: `[M, 4 D_m]`, `own`, `row`: `[M, D_m]`.
pub(crate) fn forward<T: Real>(gates: &mut [T], own: &[T], row: &mut [T], dim: usize) {
    (gates.par_chunks_mut(ROWS * 4 * dim).zip(own.par_chunks(ROWS * dim)).zip(row.par_chunks_mut(ROWS * dim)))
        .for_each(|((gates, own), row)| run(Forward { gates, own, row, dim }));
}

/// From gates and the gradient of the new rows to the gradients of the sums.
///
/// * `gates`: `[M, 4 D_m]`, `own`, `grad`: `[M, D_m]`.
pub(crate) fn backward<T: Real>(gates: &mut [T], own: &[T], grad: &[T], dim: usize) {
    (gates.par_chunks_mut(ROWS * 4 * dim).zip(own.par_chunks(ROWS * dim)).zip(grad.par_chunks(ROWS * dim)))
        .for_each(|((gates, own), grad)| run(Backward { gates, own, grad, dim }));
}

#[inline(always)]
fn parts<T>(gates: &mut [T], dim: usize) -> [&mut [T]; 4] {
    let (rz, n) = gates.split_at_mut(2 * dim);
    let ((r, z), (n, h)) = (rz.split_at_mut(dim), n.split_at_mut(dim));
    [r, z, n, h]
}

struct Forward<'a, T> {
    gates: &'a mut [T],
    own: &'a [T],
    row: &'a mut [T],
    dim: usize,
}

impl<T: Real> Kernel for Forward<'_, T> {
    #[inline(always)]
    fn compute(self) {
        let dim = self.dim;
        let rows = self.gates.chunks_exact_mut(4 * dim).zip(self.own.chunks_exact(dim));
        for ((gates, own), row) in rows.zip(self.row.chunks_exact_mut(dim)) {
            let [r, z, n, h] = parts(gates, dim);
            map::<Self, T, 2, 4>([&*h, own], [r, z, n, row]);
        }
    }
}

impl<T: Real> Elementwise<T, 2, 4> for Forward<'_, T> {
    #[inline(always)]
    fn apply([h, own]: [[T; LANES]; 2], [r, z, n, row]: &mut [[T; LANES]; 4]) {
        for i in 0..LANES {
            r[i] = r[i].sigmoid();
            z[i] = z[i].sigmoid();
            n[i] = (n[i] + r[i] * h[i]).tanh();
            row[i] = n[i] + z[i] * (own[i] - n[i]);
        }
    }
}

struct Backward<'a, T> {
    gates: &'a mut [T],
    own: &'a [T],
    grad: &'a [T],
    dim: usize,
}

impl<T: Real> Kernel for Backward<'_, T> {
    #[inline(always)]
    fn compute(self) {
        let dim = self.dim;
        let rows = self.gates.chunks_exact_mut(4 * dim).zip(self.own.chunks_exact(dim));
        for ((gates, own), grad) in rows.zip(self.grad.chunks_exact(dim)) {
            let [r, z, n, h] = parts(gates, dim);
            map::<Self, T, 2, 4>([own, grad], [r, z, n, h]);
        }
    }
}

impl<T: Real> Elementwise<T, 2, 4> for Backward<'_, T> {
    #[inline(always)]
    fn apply([own, grad]: [[T; LANES]; 2], [r, z, n, h]: &mut [[T; LANES]; 4]) {
        for i in 0..LANES {
            let at_n = grad[i] * (T::ONE - z[i]) * (T::ONE - n[i] * n[i]);
            z[i] = grad[i] * (own[i] - n[i]) * z[i] * (T::ONE - z[i]);
            let at_r = at_n * h[i] * r[i] * (T::ONE - r[i]);
            (r[i], n[i], h[i]) = (at_r, at_n, at_n * r[i]);
        }
    }
}
