// ln(1 + e^x) = max(x, 0) + ln(1 + e), e = e^-|x|. With a = e / (2 + e), at most 1/3,
//     ln(1 + e) = 2 atanh(a) = 2 (a + a^3 / 3 + a^5 / 5 + ...)
// The first term left out is below 1e-8 of the sum. WGSL lets log be off by 2^-21 near 1, which
// would add up over the many tokens that a slow decay (small e) lasts. For x > 20 the result is x.
fn softplus(x: f32) -> f32 {
    let e = exp(-abs(x));
    let a = e / (2.0 + e);
    let z = a * a;
    let series = 1.0 + z * (1.0 / 3.0 + z * (1.0 / 5.0 + z * (1.0 / 7.0
        + z * (1.0 / 9.0 + z * (1.0 / 11.0 + z * (1.0 / 13.0 + z / 15.0))))));
    return max(x, 0.0) + 2.0 * a * series;
}
