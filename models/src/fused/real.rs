//! The two kinds of float that the kernels compute in, and their exponential.
//!
//! `e^x = 2^n (1 + p)` with `n` the integer nearest to `x log2(e)` and `p = e^r - 1` a Taylor polynomial of the rest `r`, at most
//! `ln(2) / 2` in magnitude: a few units in the last place, without a branch or a call. `sigmoid` and `tanh` keep `2^n` and `p`
//! apart, so that `tanh` keeps its relative accuracy near zero. NaN stays NaN.

use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub};

use tch::Kind;

use crate::cosine;

/// `f32` or `f64`.
pub(crate) trait Real:
    Copy
    + Default
    + PartialOrd
    + Send
    + Sync
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + MulAssign
    + Sum
    + 'static
{
    /// The tensors' kind.
    const KIND: Kind;
    /// 1
    const ONE: Self;
    /// The smallest finite number.
    const LOWEST: Self;

    /// Rounded to this kind.
    fn of(x: f64) -> Self;

    /// Exact.
    fn wide(self) -> f64;

    /// `(2^n, e^r - 1)`, where `x` is first brought into the range in which `2^n` is a normal number.
    fn exp_parts(self) -> (Self, Self);

    /// `out[e, t] = cos(dt[e] w[t] + b[t])`.
    fn encode(dt: &[Self], w: &[Self], b: &[Self], out: &mut [Self]);

    /// Adds the gradients of `sum(g cos(dt w + b))` to `dw` and `db`.
    fn differentiate(dt: &[Self], w: &[Self], b: &[Self], g: &[Self], dw: &mut [f64], db: &mut [f64]);

    /// `e^x`.
    #[inline(always)]
    fn exp(self) -> Self {
        let (scale, p) = self.exp_parts();
        scale + scale * p
    }

    /// `1 / (1 + e^-x)`.
    #[inline(always)]
    fn sigmoid(self) -> Self {
        Self::ONE / (Self::ONE + (-self).exp())
    }

    /// `(e^2x - 1) / (e^2x + 1)`.
    #[inline(always)]
    fn tanh(self) -> Self {
        let two = Self::ONE + Self::ONE;
        let (scale, p) = (self + self).clamp(-Self::of(40.0), Self::of(40.0)).exp_parts();
        let less_one = scale * p + (scale - Self::ONE);
        less_one / (less_one + two)
    }

    /// Brought between two bounds; NaN stays NaN.
    fn clamp(self, low: Self, high: Self) -> Self;
}

impl Real for f32 {
    const KIND: Kind = Kind::Float;
    const ONE: f32 = 1.0;
    const LOWEST: f32 = f32::MIN;

    #[inline(always)]
    fn of(x: f64) -> f32 {
        x as f32
    }

    #[inline(always)]
    fn wide(self) -> f64 {
        f64::from(self)
    }

    #[inline(always)]
    fn exp_parts(self) -> (f32, f32) {
        const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: the sum's low bits are the integer
        const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
        const C: [f32; 7] = [1.0, 1.0 / 2.0, 1.0 / 6.0, 1.0 / 24.0, 1.0 / 120.0, 1.0 / 720.0, 1.0 / 5_040.0];
        let x = f32::clamp(self, -87.0, 88.0);
        let shifted = x * std::f32::consts::LOG2_E + ROUND;
        let n = shifted - ROUND;
        let r = (x - n * LN_2[0]) - n * LN_2[1];
        let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1f32.to_bits()));
        let mut p = C[6];
        for i in (0..6).rev() {
            p = p * r + C[i];
        }
        (scale, r * p)
    }

    #[inline(always)]
    fn encode(dt: &[f32], w: &[f32], b: &[f32], out: &mut [f32]) {
        cosine::encode(dt, w, b, out);
    }

    #[inline(always)]
    fn differentiate(dt: &[f32], w: &[f32], b: &[f32], g: &[f32], dw: &mut [f64], db: &mut [f64]) {
        cosine::differentiate(dt, w, b, g, dw, db);
    }

    #[inline(always)]
    fn clamp(self, low: f32, high: f32) -> f32 {
        f32::clamp(self, low, high)
    }
}

impl Real for f64 {
    const KIND: Kind = Kind::Double;
    const ONE: f64 = 1.0;
    const LOWEST: f64 = f64::MIN;

    #[inline(always)]
    fn of(x: f64) -> f64 {
        x
    }

    #[inline(always)]
    fn wide(self) -> f64 {
        self
    }

    #[inline(always)]
    fn exp_parts(self) -> (f64, f64) {
        const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52
        const LN_2: [f64; 2] = [0.693_145_751_953_125, 1.428_606_820_309_417_3e-6];
        const INVERSE: [f64; 13] = [
            1.0 / 14.0,
            1.0 / 13.0,
            1.0 / 12.0,
            1.0 / 11.0,
            1.0 / 10.0,
            1.0 / 9.0,
            1.0 / 8.0,
            1.0 / 7.0,
            1.0 / 6.0,
            1.0 / 5.0,
            1.0 / 4.0,
            1.0 / 3.0,
            1.0 / 2.0,
        ];
        let x = f64::clamp(self, -708.0, 709.0);
        let shifted = x * std::f64::consts::LOG2_E + ROUND;
        let n = shifted - ROUND;
        let r = (x - n * LN_2[0]) - n * LN_2[1];
        let scale = f64::from_bits((shifted.to_bits() << 52).wrapping_add(1f64.to_bits()));
        // e^r - 1 = r (1 + r / 2 (1 + r / 3 (1 + ..)))
        let mut p = 1.0;
        for inverse in INVERSE {
            p = 1.0 + p * r * inverse;
        }
        (scale, r * p)
    }

    fn encode(dt: &[f64], w: &[f64], b: &[f64], out: &mut [f64]) {
        for (dt, row) in dt.iter().zip(out.chunks_exact_mut(w.len())) {
            for ((out, w), b) in row.iter_mut().zip(w).zip(b) {
                *out = (dt * w + b).cos();
            }
        }
    }

    fn differentiate(dt: &[f64], w: &[f64], b: &[f64], g: &[f64], dw: &mut [f64], db: &mut [f64]) {
        for (dt, row) in dt.iter().zip(g.chunks_exact(w.len())) {
            for ((((g, w), b), dw), db) in row.iter().zip(w).zip(b).zip(&mut *dw).zip(&mut *db) {
                let slope = -(dt * w + b).sin() * g;
                *dw += slope * dt;
                *db += slope;
            }
        }
    }

    #[inline(always)]
    fn clamp(self, low: f64, high: f64) -> f64 {
        f64::clamp(self, low, high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points() -> impl Iterator<Item = f64> {
        (-4000..=4000).map(|i| f64::from(i) * 0.02).chain([1e-4, -1e-4, 1e-8, -3e-7])
    }

    fn check<T: Real>(unit: f64) {
        for x in points() {
            let x = T::of(x);
            let near = |got: T, want: f64, units: f64| (got.wide() - want).abs() <= units * unit * want.abs();
            assert!(near(x.exp(), x.wide().exp(), 3.0), "exp {}", x.wide());
            assert!(near(x.tanh(), x.wide().tanh(), 4.0), "tanh {}", x.wide());
            assert!(near(x.sigmoid(), 1.0 / (1.0 + (-x.wide()).exp()), 4.0), "sigmoid {}", x.wide());
        }
    }

    #[test]
    fn functions_are_accurate_to_a_few_units() {
        check::<f32>(f64::from(f32::EPSILON));
        check::<f64>(f64::EPSILON);
    }

    #[test]
    fn extremes_saturate_and_nan_stays() {
        for x in [1e3f32, 1e30, f32::INFINITY] {
            assert_eq!((Real::tanh(x), Real::tanh(-x), x.sigmoid()), (1.0, -1.0, 1.0));
            assert!((-x).sigmoid() < 1e-37);
        }
        assert!(Real::tanh(f32::NAN).is_nan() && f32::NAN.sigmoid().is_nan() && Real::tanh(f64::NAN).is_nan());
    }
}
