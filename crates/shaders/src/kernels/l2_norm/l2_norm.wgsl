// L2 norm of the query and key heads at the start of each row, in place:
//     q[i] = q[i] / sqrt(sum_i(q[i]^2) + eps) / sqrt(head_dim),   k[i] = k[i] / sqrt(sum_i(k[i]^2) + eps)
// One workgroup per (token, head), queries first; its 64 invocations stride over the head, and
// each replaces only elements it has read itself.

struct Params {
    cols: u32,
    rows: u32,
    key_heads: u32,
    head_dim: u32,
    eps: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = linear_workgroup(id, count);
    let token = index / (2u * params.key_heads);
    let head = index % (2u * params.key_heads);
    if (token >= min(state.n_tokens, params.rows)) {
        return;
    }
    let base = token * params.cols + head * params.head_dim;
    var sum = 0.0;
    for (var i = lane; i < params.head_dim; i += 64u) {
        let v = y[base + i];
        sum += v * v;
    }
    let norm = sqrt(workgroup_sum(lane, sum) + params.eps);
    let divisor = select(norm, norm * sqrt(f32(params.head_dim)), head < params.key_heads);
    for (var i = lane; i < params.head_dim; i += 64u) {
        y[base + i] = y[base + i] / divisor;
    }
}
