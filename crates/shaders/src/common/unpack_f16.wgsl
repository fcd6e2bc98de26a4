// F16: two weights per word, the first one in the low half.
fn two_halves(word: u32) -> vec2f {
    return vec2f(half_to_f32(word & 0xffffu), half_to_f32(word >> 16u));
}

fn unpack8(row: u32, k: u32) -> Unpacked {
    let at = row * params.quants_per_row + k / 2u;
    return Unpacked(
        vec4f(two_halves(quants[at]), two_halves(quants[at + 1u])),
        vec4f(two_halves(quants[at + 2u]), two_halves(quants[at + 3u])),
    );
}
