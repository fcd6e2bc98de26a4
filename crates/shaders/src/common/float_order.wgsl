// Floats as integers of the same order, so that comparisons need not trust a compiler with numbers
// that may not be finite. argmax_partial/mod.rs has the Rust side.

// False for the infinities and for what is not a number. Looks at the bits, because compilers may
// assume that floats are finite.
fn is_finite(bits: u32) -> bool {
    return ((bits >> 23u) & 255u) != 255u;
}

// Keys compare as the finite floats do; both zeros have the same key.
fn order_key(bits: u32) -> u32 {
    if (bits == 0x80000000u) {
        return 0x80000000u;
    }
    return bits ^ select(0x80000000u, 0xffffffffu, bits >= 0x80000000u);
}

// The float of a key.
fn key_value(key: u32) -> f32 {
    return bitcast<f32>(key ^ select(0xffffffffu, 0x80000000u, key >= 0x80000000u));
}
