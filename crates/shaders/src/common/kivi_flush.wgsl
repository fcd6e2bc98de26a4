// The half nearest to x, ties to even, for |x| <= 65504: `pack2x16float` may round either way.
fn half_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits >> 16u) & 0x8000u;
    let magnitude = bits & 0x7fffffffu;
    if (magnitude < 0x38800000u) {
        // Subnormal halves are the multiples of 2^-24.
        return sign | u32(round(abs(x) * 16777216.0));
    }
    return sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13u) & 1u)) >> 13u);
}

// Scale and minimum of a group with these extremes.
fn group_scale(lowest: f32, highest: f32) -> u32 {
    var scale = 0u;
    if (highest != lowest) {
        // Never below the smallest normal half.
        scale = half_bits(clamp((highest - lowest) / 15.0, 6.103515625e-5, 65504.0));
    }
    return scale | (half_bits(clamp(lowest, -65504.0, 65504.0)) << 16u);
}

fn code_of(x: f32, packed: u32) -> u32 {
    let scale = half_to_f32(packed & 0xffffu);
    var inverse = 0.0;
    if (scale != 0.0) {
        inverse = 1.0 / scale;
    }
    return u32(clamp(floor((x - half_to_f32(packed >> 16u)) * inverse + 0.5), 0.0, 15.0));
}

// Quantises the full window of one KV head into rows row..row+128, by all invocations of a workgroup.
fn flush_window(head: u32, row: u32, lane: u32) {
    let dim = params.cache.head_dim;
    let keys = exact_index(KEYS, head, SINK);
    let values = exact_index(VALUES, head, SINK);
    for (var i = lane; i < WINDOW / GROUP * dim; i += LANES) {
        let slot = i / dim * GROUP;
        let c = i % dim;
        var lowest = exact[keys + slot * dim + c];
        var highest = lowest;
        for (var j = 1u; j < GROUP; j += 1u) {
            let x = exact[keys + (slot + j) * dim + c];
            lowest = min(lowest, x);
            highest = max(highest, x);
        }
        scales[key_scale_index(head, row + slot, c)] = group_scale(lowest, highest);
    }
    for (var i = lane; i < WINDOW * dim / GROUP; i += LANES) {
        let first = i * GROUP;
        var lowest = exact[values + first];
        var highest = lowest;
        for (var j = 1u; j < GROUP; j += 1u) {
            let x = exact[values + first + j];
            lowest = min(lowest, x);
            highest = max(highest, x);
        }
        scales[value_scale_index(head, row + first / dim, first % dim)] = group_scale(lowest, highest);
    }
    storageBarrier();
    for (var i = lane; i < WINDOW * dim / 8u; i += LANES) {
        let slot = i * 8u / dim;
        let c = i * 8u % dim;
        let key_scales = key_scale_index(head, row + slot, c);
        let value_scale = scales[value_scale_index(head, row + slot, c)];
        var key_word = 0u;
        var value_word = 0u;
        for (var j = 0u; j < 8u; j += 1u) {
            key_word |= code_of(exact[keys + i * 8u + j], scales[key_scales + j]) << (4u * j);
            value_word |= code_of(exact[values + i * 8u + j], value_scale) << (4u * j);
        }
        codes[code_index(KEYS, head, row + slot, c)] = key_word;
        codes[code_index(VALUES, head, row + slot, c)] = value_word;
    }
    storageBarrier();
}
