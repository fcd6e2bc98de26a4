// Per-head RMS norm, then a SiLU gate:
//     out[i] = o[i] * weight[i] / sqrt(mean_i(o[i]^2) + eps) * SiLU(z[i])
// One workgroup per (token, head); its 64 invocations stride over the head.

struct Params {
    rows: u32,
    num_heads: u32,
    head_dim: u32,
    eps: f32,
    // The first column of z that counts, and the length of its rows.
    z_first: u32,
    z_stride: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> o: array<f32>;
@group(0) @binding(3) var<storage, read> z: array<f32>;
@group(0) @binding(4) var<storage, read> weight: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = linear_workgroup(id, count);
    if (index / params.num_heads >= min(state.n_tokens, params.rows)) {
        return;
    }
    let base = index * params.head_dim;
    let gates = index / params.num_heads * params.z_stride + params.z_first
        + index % params.num_heads * params.head_dim;
    var sum = 0.0;
    for (var i = lane; i < params.head_dim; i += 64u) {
        let v = o[base + i];
        sum += v * v;
    }
    let total = workgroup_sum(lane, sum);
    let scale = 1.0 / sqrt(total / f32(params.head_dim) + params.eps);
    for (var i = lane; i < params.head_dim; i += 64u) {
        let gate = z[gates + i];
        out[base + i] = o[base + i] * scale * weight[i] * (gate * sigmoid(gate));
    }
}
