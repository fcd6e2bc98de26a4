// Q4_K: four bits per weight, code c is (d s) c - (m t), where s and t are 6-bit numbers per 32
// weights, d and m halves per 256. Words of `scales` per 256 weights: d and m, then the 12 bytes
// that hold s and t of the eight parts: parts 0 to 3 have them in the low 6 bits of bytes 0 to 3
// and 4 to 7, parts 4 to 7 have the low 4 bits in bytes 8 to 11 and the rest above the former.
fn unpack8(row: u32, k: u32) -> Unpacked {
    let at = row * params.scales_per_row + (k / 256u) * 4u;
    let part = (k / 32u) & 7u;
    let shift = 8u * (part & 3u);
    let first = scales[at + 1u] >> shift;
    let second = scales[at + 2u] >> shift;
    let third = scales[at + 3u] >> shift;
    let late = part >= 4u;
    let s = select(first & 63u, (third & 15u) | ((first >> 2u) & 48u), late);
    let t = select(second & 63u, ((third >> 4u) & 15u) | ((second >> 2u) & 48u), late);
    let d = half_to_f32(scales[at] & 0xffffu) * f32(s);
    let m = half_to_f32(scales[at] >> 16u) * f32(t);
    let bits = vec4u(quants[row * params.quants_per_row + k / 8u]);
    return Unpacked(
        vec4f((bits >> vec4u(0u, 4u, 8u, 12u)) & vec4u(15u)) * d - m,
        vec4f((bits >> vec4u(16u, 20u, 24u, 28u)) & vec4u(15u)) * d - m,
    );
}
