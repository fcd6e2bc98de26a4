// The half-precision number in the low 16 bits, exactly. `unpack2x16float` may flush subnormal
// halves to zero, and models do have scales as small as 2^-24.
fn half_to_f32(bits: u32) -> f32 {
    let magnitude = bits & 0x7fffu;
    let normal = bitcast<f32>((magnitude << 13u) + 0x38000000u);
    let subnormal = f32(magnitude) * 5.9604644775390625e-8;
    let value = select(normal, subnormal, magnitude < 0x400u);
    return select(value, -value, (bits & 0x8000u) != 0u);
}
