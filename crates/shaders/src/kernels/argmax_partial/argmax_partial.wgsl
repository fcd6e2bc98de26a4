// First half of greedy sampling. Row g of `partials` sums up the logits i < n_valid with
// i / 64 % groups = g: key of the largest, its index (the smallest of equals), key of the smallest,
// number of those that are not finite, which are left out of the comparison.
// One workgroup per row; its first invocation combines what all 64 found.

struct Params {
    n_valid: u32,
    groups: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> logits: array<f32>;
@group(0) @binding(3) var<storage, read_write> partials: array<u32>;

var<workgroup> found: array<vec4u, 64>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let group = linear_workgroup(id, count);
    if (group >= params.groups || state.n_tokens == 0u) {
        return;
    }
    var top = 0u;
    var top_index = 0xffffffffu;
    var bottom = 0xffffffffu;
    var n_unusable = 0u;
    for (var i = group * 64u + lane; i < params.n_valid; i += params.groups * 64u) {
        let bits = bitcast<u32>(logits[i]);
        if (is_finite(bits)) {
            let key = order_key(bits);
            // Indices ascend, so the first of equals stays.
            if (key > top) {
                top = key;
                top_index = i;
            }
            bottom = min(bottom, key);
        } else {
            n_unusable += 1u;
        }
    }
    found[lane] = vec4u(top, top_index, bottom, n_unusable);
    workgroupBarrier();
    if (lane != 0u) {
        return;
    }
    for (var i = 1u; i < 64u; i += 1u) {
        let other = found[i];
        if (other.x > top || (other.x == top && other.y < top_index)) {
            top = other.x;
            top_index = other.y;
        }
        bottom = min(bottom, other.z);
        n_unusable += other.w;
    }
    partials[group * 4u] = top;
    partials[group * 4u + 1u] = top_index;
    partials[group * 4u + 2u] = bottom;
    partials[group * 4u + 3u] = n_unusable;
}
