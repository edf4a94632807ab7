//! Cosine of `f32` phases `dt * w` on the CPU, for time codes: phases of 1e5 rad and more are the rule there, and general
//! libraries take their slowest path for them.
//!
//! Product (and sum with `b`) are rounded to `f32` first, elementwise, like the tensor operations they stand for. The phase is
//! then reduced by multiples of pi in `f64`, where three parts of pi make every product exact, and a Taylor polynomial in `f64`
//! leaves an error below one unit in the last place. Plain multiplications and additions in fixed order: the same bits with any
//! vector width.

/// Largest magnitude of a phase that the three-part reduction holds for.
const LARGEST: f32 = 1.0e9;

/// Pi in three parts; the first two have at most 24 significant bits, so their products with integers below 2^29 are exact.
const PI_PARTS: [f64; 3] = [3.141_592_502_593_994, 1.509_957_883_172_319_3e-7, 1.078_060_571_631_623_8e-14];

/// `out[e, t] = cos(dt[e] * w[t] + b[t])`.
///
/// * `dt`: `[E]`; `w`, `b`: `[T]`; `out`: `[E, T]` row-major.
pub(crate) fn encode(dt: &[f32], w: &[f32], b: &[f32], out: &mut [f32]) {
    assert!(w.len() == b.len() && out.len() == dt.len() * w.len(), "out: [E, T]");
    if !within_range(dt, w, b) {
        return encode_rows(dt, w, b, out, |x| x.cos());
    }
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has AVX2.
        return unsafe { encode_avx2(dt, w, b, out) };
    }
    encode_rows(dt, w, b, out, reduced_cos);
}

/// Adds the gradients of `sum(g * cos(dt * w + b))` to `dw` and `db`, in row order.
///
/// * `g`: `[E, T]`; `dw`, `db`: `[T]`.
pub(crate) fn differentiate(dt: &[f32], w: &[f32], b: &[f32], g: &[f32], dw: &mut [f64], db: &mut [f64]) {
    assert!(
        w.len() == b.len() && g.len() == dt.len() * w.len() && dw.len() == w.len() && db.len() == w.len(),
        "g: [E, T]"
    );
    if !within_range(dt, w, b) {
        return differentiate_rows(dt, w, b, g, dw, db, |x| x.sin());
    }
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has AVX2.
        return unsafe { differentiate_avx2(dt, w, b, g, dw, db) };
    }
    differentiate_rows(dt, w, b, g, dw, db, reduced_sin);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn encode_avx2(dt: &[f32], w: &[f32], b: &[f32], out: &mut [f32]) {
    encode_rows(dt, w, b, out, reduced_cos);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn differentiate_avx2(dt: &[f32], w: &[f32], b: &[f32], g: &[f32], dw: &mut [f64], db: &mut [f64]) {
    differentiate_rows(dt, w, b, g, dw, db, reduced_sin);
}

fn within_range(dt: &[f32], w: &[f32], b: &[f32]) -> bool {
    let largest = |values: &[f32]| values.iter().fold(0f32, |m, x| if x.abs() > m || x.is_nan() { x.abs() } else { m });
    largest(dt) * largest(w) + largest(b) < LARGEST
}

#[inline(always)]
fn encode_rows(dt: &[f32], w: &[f32], b: &[f32], out: &mut [f32], cos: impl Fn(f64) -> f64) {
    for (dt, row) in dt.iter().zip(out.chunks_exact_mut(w.len())) {
        for ((out, w), b) in row.iter_mut().zip(w).zip(b) {
            *out = cos(f64::from(dt * w + b)) as f32;
        }
    }
}

#[inline(always)]
fn differentiate_rows(
    dt: &[f32],
    w: &[f32],
    b: &[f32],
    g: &[f32],
    dw: &mut [f64],
    db: &mut [f64],
    sin: impl Fn(f64) -> f64,
) {
    for (dt, row) in dt.iter().zip(g.chunks_exact(w.len())) {
        for ((((g, w), b), dw), db) in row.iter().zip(w).zip(b).zip(&mut *dw).zip(&mut *db) {
            let slope = -sin(f64::from(dt * w + b)) * f64::from(*g);
            *dw += slope * f64::from(*dt);
            *db += slope;
        }
    }
}

/// `(r, sign)` with `x = k pi + r`, `|r| <= pi / 2`, `sign = (-1)^k`.
#[inline(always)]
fn reduce(x: f64) -> (f64, f64) {
    const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52: adding it rounds to an integer, whose parity is the last bit
    let shifted = x * std::f64::consts::FRAC_1_PI + ROUND;
    let k = shifted - ROUND;
    let r = ((x - k * PI_PARTS[0]) - k * PI_PARTS[1]) - k * PI_PARTS[2];
    (r, f64::from_bits(1f64.to_bits() ^ (shifted.to_bits() << 63)))
}

#[inline(always)]
fn reduced_cos(x: f64) -> f64 {
    const C: [f64; 8] = [
        1.0,
        -1.0 / 2.0,
        1.0 / 24.0,
        -1.0 / 720.0,
        1.0 / 40_320.0,
        -1.0 / 3_628_800.0,
        1.0 / 479_001_600.0,
        -1.0 / 87_178_291_200.0,
    ];
    let (r, sign) = reduce(x);
    sign * polynomial(&C, r * r)
}

#[inline(always)]
fn reduced_sin(x: f64) -> f64 {
    const C: [f64; 8] = [
        1.0,
        -1.0 / 6.0,
        1.0 / 120.0,
        -1.0 / 5_040.0,
        1.0 / 362_880.0,
        -1.0 / 39_916_800.0,
        1.0 / 6_227_020_800.0,
        -1.0 / 1_307_674_368_000.0,
    ];
    let (r, sign) = reduce(x);
    sign * r * polynomial(&C, r * r)
}

#[inline(always)]
fn polynomial(c: &[f64; 8], y: f64) -> f64 {
    c[..7].iter().rev().fold(c[7], |sum, c| sum * y + c)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Phases up to the reduction's limit and beyond it, where the library's functions take over.
    const SECONDS: [f32; 9] = [0.0, 0.3, -1.5, 17.25, 1234.5, 86_400.0, 2.6e6, 9.9e8, 3.0e9];

    #[test]
    fn parts_sum_to_pi_and_multiply_exactly() {
        assert_eq!(PI_PARTS[0] + (PI_PARTS[1] + PI_PARTS[2]), std::f64::consts::PI);
        for part in &PI_PARTS[..2] {
            assert_eq!(part.to_bits() & ((1 << 29) - 1), 0, "{part} has at most 24 significant bits");
        }
    }

    #[test]
    fn codes_are_the_librarys_to_one_unit() {
        let w: Vec<f32> = (0..23).map(|i| 10f32.powf(-0.4 * i as f32)).collect();
        let b: Vec<f32> = (0..23).map(|i| 0.1 * i as f32).collect();
        for dts in [&SECONDS[..8], &SECONDS] {
            let mut out = vec![0.0; dts.len() * w.len()];
            encode(dts, &w, &b, &mut out);
            for (e, dt) in dts.iter().enumerate() {
                for t in 0..w.len() {
                    let want = f64::from(dt * w[t] + b[t]).cos();
                    let got = f64::from(out[e * w.len() + t]);
                    assert!((got - want).abs() <= 6e-8, "cos({dt} * {} + {}): {got} for {want}", w[t], b[t]);
                }
            }
        }
    }

    #[test]
    fn gradients_are_those_of_the_formula() {
        let w: Vec<f32> = (0..5).map(|i| 10f32.powi(-i)).collect();
        let b = [0.5f32, 0.25, 0.0, -1.0, 2.0];
        for dts in [&SECONDS[..8], &SECONDS] {
            let g: Vec<f32> = (0..dts.len() * 5).map(|i| (i as f32 * 0.7).sin()).collect();
            let (mut dw, mut db) = ([0.0; 5], [0.0; 5]);
            differentiate(dts, &w, &b, &g, &mut dw, &mut db);
            for t in 0..5 {
                let slope = |e: usize| -f64::from(g[e * 5 + t]) * f64::from(dts[e] * w[t] + b[t]).sin();
                let want_b: f64 = (0..dts.len()).map(slope).sum();
                let want_w: f64 = (0..dts.len()).map(|e| slope(e) * f64::from(dts[e])).sum();
                assert!((db[t] - want_b).abs() < 1e-9, "{} for {want_b}", db[t]);
                assert!((dw[t] - want_w).abs() < 1e-9 * 4e9, "{} for {want_w}", dw[t]);
            }
        }
    }

    #[test]
    fn nan_stays_nan() {
        let mut out = [0.0; 2];
        encode(&[f32::NAN, 1.0], &[1.0], &[0.0], &mut out);
        assert!(out[0].is_nan() && !out[1].is_nan());
    }
}
