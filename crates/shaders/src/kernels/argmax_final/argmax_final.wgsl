// Second half of greedy sampling: finds the largest logit of all partial results and moves the
// session on, or ends it when a logit was not finite or all are equal.
// One workgroup; its first invocation combines what all 64 found and alone touches the state.

struct Params {
    groups: u32,
    n_generated: u32,
    least_spread: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> state: State;
@group(0) @binding(2) var<storage, read> partials: array<u32>;
@group(0) @binding(3) var<storage, read_write> tokens: array<u32>;
@group(0) @binding(4) var<storage, read_write> generated: array<u32>;

// Key of the largest logit, its token id, key of the smallest, number of unusable ones.
var<workgroup> found: array<vec4u, 64>;

fn combined(a: vec4u, b: vec4u) -> vec4u {
    let b_wins = b.x > a.x || (b.x == a.x && b.y < a.y);
    return vec4u(select(a.xy, b.xy, b_wins), min(a.z, b.z), a.w + b.w);
}

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lane: u32) {
    var best = vec4u(0u, 0xffffffffu, 0xffffffffu, 0u);
    for (var i = lane; i < params.groups; i += 64u) {
        let at = i * 4u;
        let row = vec4u(partials[at], partials[at + 1u], partials[at + 2u], partials[at + 3u]);
        best = combined(best, row);
    }
    found[lane] = best;
    workgroupBarrier();
    if (lane != 0u || state.n_tokens == 0u) {
        return;
    }
    for (var i = 1u; i < 64u; i += 1u) {
        best = combined(best, found[i]);
    }
    // Halves, because the difference of two finite floats need not be finite.
    let half_spread = 0.5 * key_value(best.x) - 0.5 * key_value(best.z);
    if (best.w > 0u || half_spread < 0.5 * params.least_spread) {
        refuse();
        return;
    }
    let token = best.y;
    generated[state.step % params.n_generated] = token;
    tokens[0] = token;
    advance(token);
}
