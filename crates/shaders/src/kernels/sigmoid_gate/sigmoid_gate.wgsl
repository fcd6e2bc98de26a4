// Output gate of attention, in place: x[t, h, i] *= sigmoid(qg[t, h, head_dim + i]).
// One invocation per element of x. Head h of x starts at h * head_dim, in qg at twice that.

struct Params {
    cols: u32,
    rows: u32,
    head_dim: u32,
    // The first column of qg that counts, and the length of its rows.
    first: u32,
    stride: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> qg: array<f32>;
@group(0) @binding(3) var<storage, read_write> x: array<f32>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = linear_workgroup(id, count) * 64u + lane;
    if (i < min(state.n_tokens, params.rows) * params.cols) {
        let column = i % params.cols;
        let head = column / params.head_dim;
        let gate = qg[i / params.cols * params.stride + params.first + column + (head + 1u) * params.head_dim];
        x[i] = x[i] * sigmoid(gate);
    }
}
