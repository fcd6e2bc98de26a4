// A head of `qkv` after its RMS norm and rotary position embedding with split-half pairs:
//     n[i]   = x[i] * weight[i] * scale,   scale = 1 / sqrt(mean_i(x[i]^2) + eps)
//     out[i] = n[i] * cos(a) - n[i + P] * sin(a),   out[i + P] = n[i] * sin(a) + n[i + P] * cos(a)
// for the P = n_rot / 2 pairs; dimensions from n_rot on are only normed. The kernel declares `qkv`,
// `q_norm`, `k_norm`, `rope` and a uniform `params` with `n_rot`.

fn normed(head: u32, i: u32, is_key: bool, scale: f32) -> f32 {
    return qkv[head + i] * scale * select(q_norm[i], k_norm[i], is_key);
}

// Element i of the head that begins at `head`; `angles` is where the position's cosines and then
// its sines begin.
fn norm_rope(head: u32, i: u32, is_key: bool, scale: f32, angles: u32) -> f32 {
    let own = normed(head, i, is_key, scale);
    if (i >= params.n_rot) {
        return own;
    }
    let n_pairs = params.n_rot / 2u;
    let pair = i % n_pairs;
    let c = rope[angles + pair];
    let s = rope[angles + n_pairs + pair];
    if (i < n_pairs) {
        return own * c - normed(head, i + n_pairs, is_key, scale) * s;
    }
    return normed(head, pair, is_key, scale) * s + own * c;
}
