// Q6_K: six bits per weight, code c is (d s) (c - 32), where s is a signed byte per 16 weights and
// d a half per 256. Words of `quants` per 256 weights: 32 with the low four bits of the codes,
// 16 with the high two. Words of `scales` per 256 weights: four with s, one with d.
fn unpack8(row: u32, k: u32) -> Unpacked {
    let block = k / 256u;
    let j = k & 255u;
    let scales_at = row * params.scales_per_row + block * 5u;
    let s = bitcast<i32>(scales[scales_at + j / 64u] << (24u - 8u * ((j / 16u) & 3u))) >> 24u;
    let d = half_to_f32(scales[scales_at + 4u]) * f32(s);
    let quants_at = row * params.quants_per_row + block * 48u;
    let low = vec4u(quants[quants_at + j / 8u]);
    let high = vec4u(quants[quants_at + 32u + j / 16u] >> (2u * (j & 15u)));
    let lo = ((low >> vec4u(0u, 4u, 8u, 12u)) & vec4u(15u))
        | (((high >> vec4u(0u, 2u, 4u, 6u)) & vec4u(3u)) << vec4u(4u));
    let hi = ((low >> vec4u(16u, 20u, 24u, 28u)) & vec4u(15u))
        | (((high >> vec4u(8u, 10u, 12u, 14u)) & vec4u(3u)) << vec4u(4u));
    return Unpacked((vec4f(lo) - 32.0) * d, (vec4f(hi) - 32.0) * d);
}
