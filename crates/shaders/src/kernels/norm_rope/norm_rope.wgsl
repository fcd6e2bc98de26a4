// Per-head RMS norm, then rotary position embedding with split-half pairs:
//     n[i]     = x[i] * weight[i] / sqrt(mean_i(x[i]^2) + eps)
//     out[i]   = n[i] * cos(a) - n[i + P] * sin(a),   out[i + P] = n[i] * sin(a) + n[i + P] * cos(a)
// for the P = n_rot / 2 pairs; dimensions from n_rot on are only normed. Row p of `rope` holds the
// P cosines and then the P sines of position p.
// One workgroup per (token, head); its 64 invocations stride over the pairs and the other dimensions.

struct Params {
    rows: u32,
    // Positions from here on have no angles, or no row in the cache.
    context: u32,
    heads: u32,
    head_dim: u32,
    stride: u32,
    n_rot: u32,
    eps: f32,
    at_position: u32,
    // The first column of x that counts, and the length of its rows.
    first: u32,
    x_cols: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> weight: array<f32>;
@group(0) @binding(4) var<storage, read> rope: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = linear_workgroup(id, count);
    let token = index / params.heads;
    let head = index % params.heads;
    let position = state.position + token;
    if (token >= min(state.n_tokens, params.rows) || position >= params.context) {
        return;
    }
    let source = token * params.x_cols + params.first + head * params.stride;
    let dest_row = select(token, position, params.at_position != 0u);
    let dest = (dest_row * params.heads + head) * params.head_dim;

    var sum = 0.0;
    for (var i = lane; i < params.head_dim; i += 64u) {
        let v = x[source + i];
        sum += v * v;
    }
    let total = workgroup_sum(lane, sum);
    let scale = 1.0 / sqrt(total / f32(params.head_dim) + params.eps);

    let n_pairs = params.n_rot / 2u;
    let angles = position * params.n_rot;
    for (var i = lane; i < n_pairs; i += 64u) {
        let a = x[source + i] * scale * weight[i];
        let b = x[source + n_pairs + i] * scale * weight[n_pairs + i];
        let c = rope[angles + i];
        let s = rope[angles + n_pairs + i];
        out[dest + i] = a * c - b * s;
        out[dest + n_pairs + i] = a * s + b * c;
    }
    for (var i = params.n_rot + lane; i < params.head_dim; i += 64u) {
        out[dest + i] = x[source + i] * scale * weight[i];
    }
}
