// A nibble is four weights of +1 or -1, and a scale is shared by four words of them.
const WEIGHTS_PER_NIBBLE = 4u;
const WORDS_PER_SCALE = 4u;

fn square_of_inputs(k: u32) -> f32 {
    let a = input(k / 4u);
    return dot(a, a);
}

// The sums that the nibbles 0 to 15 stand for, in order, for the columns from k on.
fn nibble_sums(k: u32) -> mat4x4f {
    let a = input(k / 4u) * gain(k / 4u);
    let low = vec4f(-a.x - a.y, a.x - a.y, a.y - a.x, a.x + a.y);
    let high = vec4f(-a.z - a.w, a.z - a.w, a.w - a.z, a.z + a.w);
    return mat4x4f(low + high.x, low + high.y, low + high.z, low + high.w);
}
