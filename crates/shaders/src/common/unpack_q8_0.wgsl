// Q8_0: a signed byte c per weight, which is c d, a scale d per 32 weights.
fn signed_bytes(word: u32) -> vec4f {
    return vec4f(bitcast<vec4i>(vec4u(word) << vec4u(24u, 16u, 8u, 0u)) >> vec4u(24u));
}

fn unpack8(row: u32, k: u32) -> Unpacked {
    let d = row_scale(row, k / 32u);
    let at = row * params.quants_per_row + k / 4u;
    return Unpacked(signed_bytes(quants[at]) * d, signed_bytes(quants[at + 1u]) * d);
}
