//! Attention of roots over their neighbors, without the linear maps, in one pass over each root's neighbors.
//!
//! For root r, head h: `score_j = scale u_h . x_j`, `a = softmax(score)` over the neighbors that are there, `w_j = a_j keep_j / (1 -
//! p)`, `s_h = sum_j w_j x_j`, where `x_j = [neighbor row | edge features | time code]` is read where it lies. A root without
//! neighbors gets zeros. Roots are independent and each is computed by one thread: the same bits for any number of threads.

use rayon::prelude::*;

use super::real::Real;
use super::simd::{DotProduct, Kernel, add_scaled, dot, run};

/// Roots a task.
const ROOTS: usize = 16;

/// What the roots of a hop attend to; a slot is one of a root's K places for a neighbor.
#[derive(Clone, Copy)]
pub(crate) struct Hood<'a, T> {
    /// `[N, d]`
    pub(crate) rows: &'a [T],
    /// `[R, K]`, rows of `rows`.
    pub(crate) neighbor: &'a [i64],
    /// `[R, K]`
    pub(crate) valid: &'a [bool],
    /// `[R, K, D_e]`, empty for none.
    pub(crate) edge: &'a [T],
    /// `[R, H, K]`, 0 or 1; empty to keep all.
    pub(crate) keep: &'a [T],
    /// `[d, D_e, D_t]`
    pub(crate) dims: [usize; 3],
    /// K, H
    pub(crate) fanout: usize,
    pub(crate) heads: usize,
    /// `1 / sqrt(Q / H)`
    pub(crate) scale: T,
    /// `1 / (1 - p)`
    pub(crate) keep_scale: T,
}

/// What the forward pass yields.
pub(crate) struct Sums<'a, T> {
    /// `[R, K, D_t]`: time codes of the neighbors; untouched where absent.
    pub(crate) code: &'a mut [T],
    /// `[R, H, K]`: softmax, before dropout.
    pub(crate) weight: &'a mut [T],
    /// `[R, H]`: sums of the weights after dropout.
    pub(crate) total: &'a mut [T],
    /// `[R, H, D]`: `s`.
    pub(crate) sum: &'a mut [T],
}

/// Elapsed times and the frequencies that encode them.
#[derive(Clone, Copy)]
pub(crate) struct Clock<'a, T> {
    /// `[R, K]`, seconds.
    pub(crate) dt: &'a [T],
    /// `[D_t]`
    pub(crate) w: &'a [T],
    /// `[D_t]`
    pub(crate) b: &'a [T],
}

/// What the backward pass is given.
#[derive(Clone, Copy)]
pub(crate) struct Given<'a, T> {
    /// `[R, K, D_t]`
    pub(crate) code: &'a [T],
    /// `[R, H, K]`
    pub(crate) weight: &'a [T],
    /// `[R, H, D]`: gradient at `sum`.
    pub(crate) at_sum: &'a [T],
    /// `[R, H]`: gradient at `total`.
    pub(crate) at_total: &'a [T],
}

/// What the backward pass yields.
pub(crate) struct Gradients<'a, T> {
    /// `[R, H, D]`: gradient at `u`.
    pub(crate) at_u: &'a mut [T],
    /// `[R, H, K]`: gradient at the unscaled scores.
    pub(crate) at_score: &'a mut [T],
    /// `[R, H, K]`: weights after dropout.
    pub(crate) dropped: &'a mut [T],
}

impl<T: Real> Hood<'_, T> {
    /// D
    pub(crate) fn width(&self) -> usize {
        self.dims.iter().sum()
    }

    /// Slots of a root that hold a neighbor.
    #[inline(always)]
    pub(crate) fn present(&self, root: usize) -> impl Iterator<Item = usize> + '_ {
        let valid = &self.valid[root * self.fanout..(root + 1) * self.fanout];
        valid.iter().enumerate().filter(|(_, valid)| **valid).map(|(j, _)| j)
    }

    #[inline(always)]
    fn blocks<'b>(&'b self, slot: usize, code: &'b [T]) -> [&'b [T]; 3] {
        let [d, edge, time] = self.dims;
        let row = self.neighbor[slot] as usize * d;
        let features = if edge == 0 { &[][..] } else { &self.edge[slot * edge..(slot + 1) * edge] };
        [&self.rows[row..row + d], features, &code[..time]]
    }

    /// `v . x` of one neighbor.
    #[inline(always)]
    fn product(&self, v: &[T], x: [&[T]; 3]) -> T {
        let (row, rest) = v.split_at(self.dims[0]);
        let (edge, time) = rest.split_at(self.dims[1]);
        let mut product = DotProduct::zero();
        product.add(row, x[0]);
        product.add(edge, x[1]);
        product.add(time, x[2]);
        product.sum()
    }

    /// `y += a x` of one neighbor.
    #[inline(always)]
    fn add(&self, y: &mut [T], a: T, x: [&[T]; 3]) {
        let (row, rest) = y.split_at_mut(self.dims[0]);
        let (edge, time) = rest.split_at_mut(self.dims[1]);
        add_scaled(row, a, x[0]);
        add_scaled(edge, a, x[1]);
        add_scaled(time, a, x[2]);
    }

    /// How much of a weight dropout leaves.
    #[inline(always)]
    fn kept(&self, at: usize) -> T {
        if self.keep.is_empty() { T::ONE } else { self.keep[at] * self.keep_scale }
    }

    /// Encodes times, scores, and sums over neighbors.
    ///
    /// * `u`: `[R, H, D]`.
    pub(crate) fn forward(&self, u: &[T], clock: Clock<T>, out: Sums<T>) {
        let (k, h, width, time) = (self.fanout, self.heads, self.width(), self.dims[2]);
        (out.code.par_chunks_mut((ROOTS * k * time).max(1)))
            .zip(out.weight.par_chunks_mut((ROOTS * h * k).max(1)))
            .zip(out.total.par_chunks_mut(ROOTS * h))
            .zip(out.sum.par_chunks_mut(ROOTS * h * width))
            .enumerate()
            .for_each(|(i, (((code, weight), total), sum))| {
                let out = Sums { code, weight, total, sum };
                run(Forward { hood: self, first: i * ROOTS, u, clock, out });
            });
    }

    /// Gradients at `u` and at the scores.
    pub(crate) fn backward(&self, given: Given<T>, out: Gradients<T>) {
        let (k, h, width) = (self.fanout, self.heads, self.width());
        (out.at_u.par_chunks_mut(ROOTS * h * width))
            .zip(out.at_score.par_chunks_mut((ROOTS * h * k).max(1)))
            .zip(out.dropped.par_chunks_mut((ROOTS * h * k).max(1)))
            .enumerate()
            .for_each(|(i, ((at_u, at_score), dropped))| {
                let out = Gradients { at_u, at_score, dropped };
                run(Backward { hood: self, first: i * ROOTS, given, out });
            });
    }
}

struct Forward<'a, T> {
    hood: &'a Hood<'a, T>,
    first: usize,
    u: &'a [T],
    clock: Clock<'a, T>,
    out: Sums<'a, T>,
}

impl<T: Real> Kernel for Forward<'_, T> {
    #[inline(always)]
    fn compute(mut self) {
        for i in 0..self.out.total.len() / self.hood.heads {
            self.root(i);
        }
    }
}

impl<T: Real> Forward<'_, T> {
    /// The i-th root of the chunk.
    #[inline(always)]
    fn root(&mut self, i: usize) {
        let (hood, root) = (self.hood, self.first + i);
        let (k, h, width, time) = (hood.fanout, hood.heads, hood.width(), hood.dims[2]);
        let code = &mut self.out.code[i * k * time..(i + 1) * k * time];
        T::encode(&self.clock.dt[root * k..(root + 1) * k], self.clock.w, self.clock.b, code);
        let weight = &mut self.out.weight[i * h * k..(i + 1) * h * k];
        let sum = &mut self.out.sum[i * h * width..(i + 1) * h * width];
        let total = &mut self.out.total[i * h..(i + 1) * h];
        let u = &self.u[root * h * width..(root + 1) * h * width];
        for j in hood.present(root) {
            let x = hood.blocks(root * k + j, &code[j * time..]);
            for (head, u) in u.chunks_exact(width).enumerate() {
                weight[head * k + j] = hood.product(u, x) * hood.scale;
            }
        }
        sum.fill(T::default());
        total.fill(T::default());
        for weight in weight.chunks_mut(k.max(1)) {
            hood.softmax(root, weight);
        }
        for j in hood.present(root) {
            let x = hood.blocks(root * k + j, &code[j * time..]);
            for (head, sum) in sum.chunks_exact_mut(width).enumerate() {
                let w = weight[head * k + j] * hood.kept((root * h + head) * k + j);
                total[head] += w;
                hood.add(sum, w, x);
            }
        }
    }
}

impl<T: Real> Hood<'_, T> {
    /// Scores of the neighbors that are there into weights; zero where absent.
    #[inline(always)]
    fn softmax(&self, root: usize, weight: &mut [T]) {
        let valid = &self.valid[root * self.fanout..(root + 1) * self.fanout];
        let mut largest = T::LOWEST;
        for (x, _) in weight.iter().zip(valid).filter(|(_, valid)| **valid) {
            largest = if *x > largest { *x } else { largest };
        }
        for (x, valid) in weight.iter_mut().zip(valid) {
            *x = if *valid { (*x - largest).exp() } else { T::default() };
        }
        let mut sum = T::default();
        for x in weight.iter() {
            sum += *x;
        }
        let inverse = T::ONE / if sum == T::default() { T::ONE } else { sum };
        for x in weight.iter_mut() {
            *x *= inverse;
        }
    }
}

struct Backward<'a, T> {
    hood: &'a Hood<'a, T>,
    first: usize,
    given: Given<'a, T>,
    out: Gradients<'a, T>,
}

impl<T: Real> Kernel for Backward<'_, T> {
    #[inline(always)]
    fn compute(mut self) {
        let root = self.hood.heads * self.hood.width();
        for i in 0..self.out.at_u.len() / root {
            self.root(i);
        }
    }
}

impl<T: Real> Backward<'_, T> {
    /// The i-th root of the chunk.
    #[inline(always)]
    fn root(&mut self, i: usize) {
        let (hood, root) = (self.hood, self.first + i);
        let (k, h, width, time) = (hood.fanout, hood.heads, hood.width(), hood.dims[2]);
        let code = &self.given.code[root * k * time..(root + 1) * k * time];
        let weight = &self.given.weight[root * h * k..(root + 1) * h * k];
        let at_sum = &self.given.at_sum[root * h * width..(root + 1) * h * width];
        let at_total = &self.given.at_total[root * h..(root + 1) * h];
        let at_u = &mut self.out.at_u[i * h * width..(i + 1) * h * width];
        let at_score = &mut self.out.at_score[i * h * k..(i + 1) * h * k];
        let dropped = &mut self.out.dropped[i * h * k..(i + 1) * h * k];
        at_score.fill(T::default());
        dropped.fill(T::default());
        for j in hood.present(root) {
            let x = hood.blocks(root * k + j, &code[j * time..]);
            for (head, at_sum) in at_sum.chunks_exact(width).enumerate() {
                let (at, kept) = (head * k + j, hood.kept((root * h + head) * k + j));
                at_score[at] = kept * (hood.product(at_sum, x) + at_total[head]);
                dropped[at] = kept * weight[at];
            }
        }
        for (at_score, weight) in at_score.chunks_mut(k.max(1)).zip(weight.chunks(k.max(1))) {
            let mean = dot(at_score, weight);
            for (g, a) in at_score.iter_mut().zip(weight) {
                *g = *a * (*g - mean) * hood.scale;
            }
        }
        at_u.fill(T::default());
        for j in hood.present(root) {
            let x = hood.blocks(root * k + j, &code[j * time..]);
            for (head, at_u) in at_u.chunks_exact_mut(width).enumerate() {
                hood.add(at_u, at_score[head * k + j], x);
            }
        }
    }
}
