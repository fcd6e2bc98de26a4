// Appends the step's rows to a cache: cache[state.position + t, i] = x[t, i].
// One invocation per element.

struct Params {
    cols: u32,
    rows: u32,
    context: u32,
    // The first column of x that is copied, and the length of its rows.
    first: u32,
    stride: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read_write> cache: array<f32>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = linear_workgroup(id, count) * 64u + lane;
    let room = params.context - min(state.position, params.context);
    let n_rows = min(min(state.n_tokens, params.rows), room);
    if (i < n_rows * params.cols) {
        cache[state.position * params.cols + i] = x[i / params.cols * params.stride + params.first + i % params.cols];
    }
}
