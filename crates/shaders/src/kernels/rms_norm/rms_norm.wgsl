// Root-mean-square norm (Zhang and Sennrich 2019, arXiv:1910.07467):
//     out[t, i] = x[t, i] * weight[i] / sqrt(mean_i(x[t, i]^2) + eps)
// One workgroup per row; its 64 invocations stride over the columns and share one sum.

struct Params {
    cols: u32,
    rows: u32,
    eps: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> weight: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = linear_workgroup(id, count);
    if (row >= min(state.n_tokens, params.rows)) {
        return;
    }
    let start = row * params.cols;

    var sum = 0.0;
    for (var i = lane; i < params.cols; i += 64u) {
        let v = x[start + i];
        sum += v * v;
    }
    let total = workgroup_sum(lane, sum);
    let scale = 1.0 / sqrt(total / f32(params.cols) + params.eps);
    for (var i = lane; i < params.cols; i += 64u) {
        out[start + i] = x[start + i] * scale * weight[i];
    }
}
