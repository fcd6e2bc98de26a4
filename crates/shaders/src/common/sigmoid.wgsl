// 1 / (1 + e^-x). The exponent is never positive, so that nothing overflows at either end.
fn sigmoid(x: f32) -> f32 {
    let e = exp(-abs(x));
    return select(e, 1.0, x >= 0.0) / (1.0 + e);
}
