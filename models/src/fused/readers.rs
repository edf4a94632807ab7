//! Gradients of rows from all that read them: roots and neighbors.
//!
//! Who reads a row is sorted once, by counting, in the order neighbors (by root, slot), then roots; each row's sum is then taken in that
//! order by one thread. A neighbor's share is made here from the gradients at its scores and at its root's sums:
//! `sum_h at_score_h u_h + weight_h at_sum_h`.

use rayon::prelude::*;

use super::hood::Hood;
use super::real::Real;
use super::simd::{Kernel, add_scaled, run};

/// Rows a task.
const ROWS: usize = 32;

/// Readers of each row.
pub(crate) struct Readers {
    /// `[N + 1]`: where each row's readers start.
    start: Vec<u32>,
    /// A slot of `[R, K]`, or `R K +` a root.
    reader: Vec<u32>,
}

impl Readers {
    /// Sorts the readers of `rows` rows; a slot without a neighbor reads nothing.
    pub(crate) fn new(rows: usize, neighbor: &[i64], valid: &[bool], root: &[i64]) -> Readers {
        let slots = neighbor.len() as u32;
        let neighbors = neighbor.iter().zip(valid).zip(0..slots).filter(|((_, valid), _)| **valid);
        let reads = || neighbors.clone().map(|((row, _), at)| (*row, at)).chain(root.iter().copied().zip(slots..));
        let mut start = vec![0; rows + 1];
        reads().for_each(|(row, _)| start[row as usize + 1] += 1);
        for i in 0..rows {
            start[i + 1] += start[i];
        }
        let (mut reader, mut next) = (vec![0; start[rows] as usize], start.clone());
        for (row, at) in reads() {
            let next = &mut next[row as usize];
            reader[*next as usize] = at;
            *next += 1;
        }
        Readers { start, reader }
    }

    fn of(&self, row: usize) -> &[u32] {
        &self.reader[self.start[row] as usize..self.start[row + 1] as usize]
    }
}

/// The gradients that reach rows and time codes.
#[derive(Clone, Copy)]
pub(crate) struct Shares<'a, T> {
    pub(crate) hood: &'a Hood<'a, T>,
    /// `[R, H, D]`
    pub(crate) u: &'a [T],
    /// `[R, H, D]`
    pub(crate) at_sum: &'a [T],
    /// `[R, H, K]`, see [`super::hood::Gradients`].
    pub(crate) at_score: &'a [T],
    /// `[R, H, K]`
    pub(crate) dropped: &'a [T],
    /// `[R, d]`: what reaches roots as such.
    pub(crate) at_root: &'a [T],
}

impl<T: Real> Shares<'_, T> {
    /// Gradients of the rows, `[N, d]`.
    pub(crate) fn rows(self, readers: &Readers, out: &mut [T]) {
        out.par_chunks_mut(ROWS * self.hood.dims[0]).enumerate().for_each(|(i, out)| {
            run(Rows { shares: self, readers, first: i * ROWS, out });
        });
    }

    /// Adds a neighbor's share of columns `from..from + out.len()`.
    #[inline(always)]
    fn add(&self, slot: usize, from: usize, out: &mut [T]) {
        let (h, k, width) = (self.hood.heads, self.hood.fanout, self.hood.width());
        let (root, j) = (slot / k, slot % k);
        for head in root * h..(root + 1) * h {
            let columns = head * width + from..head * width + from + out.len();
            add_scaled(out, self.at_score[head * k + j], &self.u[columns.clone()]);
            add_scaled(out, self.dropped[head * k + j], &self.at_sum[columns]);
        }
    }

    /// Adds the gradients of a learned encoder's frequencies that reach it through the neighbors' codes: summed over fixed runs
    /// of roots, then over the runs in order.
    ///
    /// * `dt`: `[R, K]`; `w`, `b`, `dw`, `db`: `[D_t]`.
    pub(crate) fn frequencies(self, dt: &[T], w: &[T], b: &[T], dw: &mut [f64], db: &mut [f64]) {
        let roots: Vec<usize> = (0..dt.len() / self.hood.fanout.max(1)).collect();
        let runs: Vec<_> = roots.par_chunks(ROWS).map(|roots| self.frequencies_of(roots, dt, w, b)).collect();
        for (run_w, run_b) in runs {
            dw.iter_mut().zip(run_w).for_each(|(sum, x)| *sum += x);
            db.iter_mut().zip(run_b).for_each(|(sum, x)| *sum += x);
        }
    }

    fn frequencies_of(self, roots: &[usize], dt: &[T], w: &[T], b: &[T]) -> (Vec<f64>, Vec<f64>) {
        let (k, [d, edge, time]) = (self.hood.fanout, self.hood.dims);
        let (mut dw, mut db, mut at_code) = (vec![0.0; time], vec![0.0; time], vec![T::default(); k * time]);
        for &root in roots {
            run(Codes { shares: self, root, from: d + edge, out: &mut at_code });
            T::differentiate(&dt[root * k..(root + 1) * k], w, b, &at_code, &mut dw, &mut db);
        }
        (dw, db)
    }
}

struct Rows<'a, T> {
    shares: Shares<'a, T>,
    readers: &'a Readers,
    first: usize,
    out: &'a mut [T],
}

impl<T: Real> Kernel for Rows<'_, T> {
    #[inline(always)]
    fn compute(self) {
        let (d, slots) = (self.shares.hood.dims[0], self.shares.hood.neighbor.len());
        for (i, out) in self.out.chunks_exact_mut(d).enumerate() {
            out.fill(T::default());
            for &reader in self.readers.of(self.first + i) {
                match (reader as usize).checked_sub(slots) {
                    None => self.shares.add(reader as usize, 0, out),
                    Some(root) => add_scaled(out, T::ONE, &self.shares.at_root[root * d..(root + 1) * d]),
                }
            }
        }
    }
}

struct Codes<'a, T> {
    shares: Shares<'a, T>,
    root: usize,
    from: usize,
    out: &'a mut [T],
}

impl<T: Real> Kernel for Codes<'_, T> {
    #[inline(always)]
    fn compute(self) {
        let hood = self.shares.hood;
        self.out.fill(T::default());
        for j in hood.present(self.root) {
            let out = &mut self.out[j * hood.dims[2]..(j + 1) * hood.dims[2]];
            self.shares.add(self.root * hood.fanout + j, self.from, out);
        }
    }
}
