// A nibble is two weights of -1 to 2. WORDS_PER_SCALE is defined where the files are joined.
const WEIGHTS_PER_NIBBLE = 2u;

fn two_inputs(k: u32) -> vec2f {
    let a = input(k / 4u);
    return select(a.xy, a.zw, (k & 2u) != 0u);
}

fn square_of_inputs(k: u32) -> f32 {
    let a = two_inputs(k);
    return dot(a, a);
}

// The sums that the nibbles 0 to 15 stand for, in order, for the columns from k on.
fn nibble_sums(k: u32) -> mat4x4f {
    let gains = gain(k / 4u);
    let a = two_inputs(k) * select(gains.xy, gains.zw, (k & 2u) != 0u);
    let low = vec4f(-a.x, 0.0, a.x, 2.0 * a.x);
    return mat4x4f(low - a.y, low, low + a.y, low + 2.0 * a.y);
}
