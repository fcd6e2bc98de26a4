// BF16, the upper half of an f32: two weights per word, the first one in the low half.
fn two_bf16(word: u32) -> vec2f {
    return bitcast<vec2f>(vec2u(word << 16u, word & 0xffff0000u));
}

fn unpack8(row: u32, k: u32) -> Unpacked {
    let at = row * params.quants_per_row + k / 2u;
    return Unpacked(
        vec4f(two_bf16(quants[at]), two_bf16(quants[at + 1u])),
        vec4f(two_bf16(quants[at + 2u]), two_bf16(quants[at + 3u])),
    );
}
