//! Arithmetic over slices that compilers turn into vector instructions.
//!
//! Sums run over [`LANES`] partial sums: without that the order of additions forbids vectors. Every
//! function is branch-free per element.

/// Partial sums of a reduction.
const LANES: usize = 16;

/// `sum_i a[i] b[i]` over the shorter of the two.
#[inline]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let n = a.len().min(b.len());
    let (a, b) = (&a[..n], &b[..n]);
    let (a_lanes, a_rest) = a.as_chunks::<LANES>();
    let (b_lanes, b_rest) = b.as_chunks::<LANES>();
    let mut sums = [0.0f32; LANES];
    for (a, b) in a_lanes.iter().zip(b_lanes) {
        for i in 0..LANES {
            sums[i] += a[i] * b[i];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sum_of_lanes(sums) + rest
}

/// `sum_i a[i]`.
#[inline]
pub fn sum(a: &[f32]) -> f32 {
    let (lanes, rest) = a.as_chunks::<LANES>();
    let mut sums = [0.0f32; LANES];
    for a in lanes {
        for i in 0..LANES {
            sums[i] += a[i];
        }
    }
    sum_of_lanes(sums) + rest.iter().sum::<f32>()
}

/// The largest number; minus infinity of none, and NaNs are passed over.
#[inline]
pub fn max(a: &[f32]) -> f32 {
    let (lanes, rest) = a.as_chunks::<LANES>();
    let mut best = [f32::NEG_INFINITY; LANES];
    for a in lanes {
        for i in 0..LANES {
            best[i] = if a[i] > best[i] { a[i] } else { best[i] };
        }
    }
    best.iter().chain(rest).fold(f32::NEG_INFINITY, |m, &v| if v > m { v } else { m })
}

/// The smallest number; infinity of none, and NaNs are passed over.
#[inline]
pub fn min(a: &[f32]) -> f32 {
    let (lanes, rest) = a.as_chunks::<LANES>();
    let mut best = [f32::INFINITY; LANES];
    for a in lanes {
        for i in 0..LANES {
            best[i] = if a[i] < best[i] { a[i] } else { best[i] };
        }
    }
    best.iter().chain(rest).fold(f32::INFINITY, |m, &v| if v < m { v } else { m })
}

/// Whether no number is infinite or a NaN.
#[inline]
pub fn all_finite(a: &[f32]) -> bool {
    a.iter().fold(true, |all, v| all & v.is_finite())
}

fn sum_of_lanes(mut sums: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            sums[i] += sums[i + width];
        }
        width /= 2;
    }
    sums[0]
}

/// `y[i] += factor * x[i]`.
#[inline]
pub fn add_scaled(y: &mut [f32], factor: f32, x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += factor * x;
    }
}

/// `y[c] += sum_i x[i] m[i, c]` for a matrix with rows of the length of `y`: four rows at a time, so that `y` is
/// loaded and stored a fourth as often.
#[inline]
pub fn add_rows(y: &mut [f32], x: &[f32], m: &[f32]) {
    let cols = y.len().max(1);
    let (x_fours, x_rest) = x.as_chunks::<4>();
    let mut fours = m.chunks_exact(4 * cols);
    for (x, rows) in x_fours.iter().zip(&mut fours) {
        let (a, rows) = rows.split_at(cols);
        let (b, rows) = rows.split_at(cols);
        let (c, d) = rows.split_at(cols);
        for ((((y, a), b), c), d) in y.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            *y += (x[0] * a + x[1] * b) + (x[2] * c + x[3] * d);
        }
    }
    for (x, row) in x_rest.iter().zip(m[(x.len() - x_rest.len()) * cols..].chunks_exact(cols)) {
        add_scaled(y, *x, row);
    }
}

/// `y[i] *= factor`.
#[inline]
pub fn scale(y: &mut [f32], factor: f32) {
    for y in y {
        *y *= factor;
    }
}

/// `1 / sqrt(mean(x^2) + eps)`, the factor of RMSNorm (Zhang and Sennrich 2019).
#[inline]
pub fn rms_factor(x: &[f32], eps: f32) -> f32 {
    1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt()
}

/// `e^x` within 2 units in the last place; 0 below -87.3, and at most 2^127 times 1.4.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`, then the Taylor polynomial of `e^r` up to the seventh power, whose
/// remainder is below `r^8 / 8! = 5e-9`.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // Adding this rounds to an integer, which then is in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    let clamped = x.clamp(-87.3, 88.3);
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (clamped - n * LN_2_HIGH) - n * LN_2_LOW;
    let mut p = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + coefficient;
    }
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    if x < -87.3 { 0.0 } else { p * power }
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `x / (1 + e^-x)`.
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Rng;

    #[test]
    fn exponentials() {
        let mut rng = Rng::new(5);
        let worst = (0..200_000)
            .map(|_| rng.uniform() * 87.0)
            .map(|x| {
                let exact = f64::from(x).exp();
                ((f64::from(exp(x)) - exact) / exact).abs()
            })
            .fold(0.0, f64::max);
        assert!(worst <= 2.0 * f64::from(f32::EPSILON), "{worst}");
        assert_eq!(exp(0.0), 1.0);
        assert_eq!([-88.0, -1e30, f32::NEG_INFINITY].map(exp), [0.0; 3]);
        assert!(exp(f32::INFINITY).is_finite() && exp(f32::INFINITY) > 2e38);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn sums_of_any_length() {
        let mut rng = Rng::new(6);
        for n in [0, 1, 15, 16, 17, 100] {
            let a: Vec<f32> = (0..n).map(|_| rng.uniform()).collect();
            let b: Vec<f32> = (0..n).map(|_| rng.uniform()).collect();
            let exact: f64 = a.iter().zip(&b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
            assert!((f64::from(dot(&a, &b)) - exact).abs() <= 1e-5, "{n}");
            let exact: f64 = a.iter().map(|&a| f64::from(a)).sum();
            assert!((f64::from(sum(&a)) - exact).abs() <= 1e-5, "{n}");
            assert_eq!(max(&a), a.iter().copied().fold(f32::NEG_INFINITY, f32::max), "{n}");
            assert_eq!(min(&a), a.iter().copied().fold(f32::INFINITY, f32::min), "{n}");
        }
        assert_eq!(max(&[1.0, f32::NAN, 2.0]), 2.0);
        assert_eq!(min(&[2.0, f32::NAN, 1.0]), 1.0);
    }

    #[test]
    fn numbers_that_are_not_finite_are_seen_anywhere() {
        assert!(all_finite(&[]) && all_finite(&[f32::MAX; 37]));
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 16, 36] {
                let mut a = [1.0; 37];
                a[at] = bad;
                assert!(!all_finite(&a), "{bad} at {at}");
            }
        }
    }

    /// Every number of rows around the four that go together; integers, so that sums are exact.
    #[test]
    fn products_with_any_number_of_rows() {
        let m: Vec<f32> = (0..63).map(|i| (i * i % 17) as f32).collect();
        let x: Vec<f32> = (0..9).map(|i| (i - 4) as f32).collect();
        for n in 0..=9 {
            let mut y = [1.0; 7];
            add_rows(&mut y, &x[..n], &m);
            for (c, y) in y.iter().enumerate() {
                let exact = 1.0 + (0..n).map(|i| x[i] * m[i * 7 + c]).sum::<f32>();
                assert_eq!(*y, exact, "{n} rows, column {c}");
            }
        }
    }
}
