// Q1_0: a bit per weight, 1 is +d and 0 is -d, a scale d per 128 weights.
fn unpack8(row: u32, k: u32) -> Unpacked {
    let d = row_scale(row, k / 128u);
    let bits = vec4u(quants[row * params.quants_per_row + k / 32u] >> (k & 31u));
    return Unpacked(
        select(vec4f(-d), vec4f(d), (bits & vec4u(1u, 2u, 4u, 8u)) != vec4u(0u)),
        select(vec4f(-d), vec4f(d), (bits & vec4u(16u, 32u, 64u, 128u)) != vec4u(0u)),
    );
}

// The weights of columns k to k + 15, k % 16 == 0: half a word.
fn unpack16(row: u32, k: u32) -> mat4x4f {
    let d = row_scale(row, k / 128u);
    let bits = vec4u(quants[row * params.quants_per_row + k / 32u] >> (k & 16u));
    return mat4x4f(
        select(vec4f(-d), vec4f(d), (bits & vec4u(1u, 2u, 4u, 8u)) != vec4u(0u)),
        select(vec4f(-d), vec4f(d), (bits & vec4u(16u, 32u, 64u, 128u)) != vec4u(0u)),
        select(vec4f(-d), vec4f(d), (bits & vec4u(256u, 512u, 1024u, 2048u)) != vec4u(0u)),
        select(vec4f(-d), vec4f(d), (bits & vec4u(4096u, 8192u, 16384u, 32768u)) != vec4u(0u)),
    );
}
