// F32: a word per weight.
fn unpack8(row: u32, k: u32) -> Unpacked {
    let at = row * params.quants_per_row + k;
    return Unpacked(
        bitcast<vec4f>(vec4u(quants[at], quants[at + 1u], quants[at + 2u], quants[at + 3u])),
        bitcast<vec4f>(vec4u(quants[at + 4u], quants[at + 5u], quants[at + 6u], quants[at + 7u])),
    );
}
