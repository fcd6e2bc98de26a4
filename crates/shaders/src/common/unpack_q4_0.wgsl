// Q4_0: four bits per weight, code c is (c - 8) d, a scale d per 32 weights.
fn unpack8(row: u32, k: u32) -> Unpacked {
    let d = row_scale(row, k / 32u);
    let bits = vec4u(quants[row * params.quants_per_row + k / 8u]);
    return Unpacked(
        (vec4f((bits >> vec4u(0u, 4u, 8u, 12u)) & vec4u(15u)) - 8.0) * d,
        (vec4f((bits >> vec4u(16u, 20u, 24u, 28u)) & vec4u(15u)) - 8.0) * d,
    );
}
