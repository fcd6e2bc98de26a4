//! Scalar functions that several references share.

/// `1 / (1 + e^-x)`.
pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `x * sigmoid(x)`.
pub(super) fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// `ln(1 + e^x)`, and `x` from where the difference is below f32.
pub(super) fn softplus(x: f64) -> f64 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        assert_eq!(sigmoid(0.0), 0.5);
        // 1 / (1 + 1/3) and 1 / (1 + 3).
        assert!((sigmoid(3f64.ln()) - 0.75).abs() < 1e-15);
        assert!((sigmoid(-(3f64.ln())) - 0.25).abs() < 1e-15);
        assert_eq!((sigmoid(1e4), sigmoid(-1e4)), (1.0, 0.0));
        assert!((silu(2.0) - 1.761_594_155_955_764_9).abs() < 1e-15);
        assert_eq!((silu(1e4), silu(-1e4)), (1e4, 0.0));
    }

    #[test]
    fn softplus_at_its_ends() {
        assert!((softplus(0.0) - std::f64::consts::LN_2).abs() < 1e-16);
        // ln(1 + 3) and, from the series, e^-30.
        assert!((softplus(3f64.ln()) - 4f64.ln()).abs() < 1e-15);
        assert!((softplus(-30.0) / 9.357_622_968_840_175e-14 - 1.0).abs() < 1e-12);
        assert_eq!(softplus(1e4), 1e4);
    }
}
