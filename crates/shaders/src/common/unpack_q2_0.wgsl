// Q2_0: two bits per weight, code c is (c - 1) d, a scale d per GROUP weights. GROUP is 64 or 128
// and is defined where the files are joined.
fn unpack8(row: u32, k: u32) -> Unpacked {
    let d = row_scale(row, k / GROUP);
    let bits = vec4u(quants[row * params.quants_per_row + k / 16u] >> (2u * (k & 15u)));
    return Unpacked(
        (vec4f((bits >> vec4u(0u, 2u, 4u, 6u)) & vec4u(3u)) - 1.0) * d,
        (vec4f((bits >> vec4u(8u, 10u, 12u, 14u)) & vec4u(3u)) - 1.0) * d,
    );
}

// The weights of columns k to k + 15, k % 16 == 0: a word.
fn unpack16(row: u32, k: u32) -> mat4x4f {
    let d = row_scale(row, k / GROUP);
    let bits = vec4u(quants[row * params.quants_per_row + k / 16u]);
    return mat4x4f(
        (vec4f((bits >> vec4u(0u, 2u, 4u, 6u)) & vec4u(3u)) - 1.0) * d,
        (vec4f((bits >> vec4u(8u, 10u, 12u, 14u)) & vec4u(3u)) - 1.0) * d,
        (vec4f((bits >> vec4u(16u, 18u, 20u, 22u)) & vec4u(3u)) - 1.0) * d,
        (vec4f((bits >> vec4u(24u, 26u, 28u, 30u)) & vec4u(3u)) - 1.0) * d,
    );
}
