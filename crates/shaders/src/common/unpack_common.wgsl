// Reading matrices in the layout of weights.rs. The kernel declares `quants` and `scales`
// (array<u32>) and a uniform `params` with `quants_per_row` and `scales_per_row`; one of the
// other unpack files defines `unpack8(row, k)`: the weights of columns k to k + 7, k % 8 == 0.

struct Unpacked {
    lo: vec4f,
    hi: vec4f,
}

// The i-th half of a row of `scales`.
fn row_scale(row: u32, i: u32) -> f32 {
    let word = scales[row * params.scales_per_row + i / 2u];
    return half_to_f32((word >> (16u * (i & 1u))) & 0xffffu);
}
