// Puts the splits of one token's attention together: over the splits of a head that have keys (l > 0)
//     top    = max m
//     out[i] = sum e^(m - top) * O[i] / sum e^(m - top) * l, times the sigmoid of its gate
// One invocation per element of the result. A row of partials holds the elements of O, m and l.

struct Params {
    num_heads: u32,
    head_dim: u32,
    n_splits: u32,
    // Each query head of qkv is followed by its gate.
    gated: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> partials: array<f32>;
@group(0) @binding(3) var<storage, read> qkv: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

// Below every score, and still a finite distance from each of them.
const LOWEST = -1.0e38;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = linear_workgroup(id, count) * 64u + lane;
    let head = index / params.head_dim;
    let i = index % params.head_dim;
    if (state.n_tokens == 0u || head >= params.num_heads) {
        return;
    }
    let cols = params.head_dim + 2u;
    let begin = head * params.n_splits * cols;
    let end = begin + params.n_splits * cols;
    var top = LOWEST;
    for (var row = begin; row < end; row += cols) {
        if (partials[row + params.head_dim + 1u] != 0.0) {
            top = max(top, partials[row + params.head_dim]);
        }
    }
    var sum = 0.0;
    var weight_sum = 0.0;
    for (var row = begin; row < end; row += cols) {
        let l = partials[row + params.head_dim + 1u];
        if (l != 0.0) {
            let shrink = exp(partials[row + params.head_dim] - top);
            sum += shrink * partials[row + i];
            weight_sum += shrink * l;
        }
    }
    var result = sum / weight_sum;
    if (params.gated != 0u) {
        // A head of qkv is its query and then its gate.
        result *= sigmoid(qkv[(2u * head + 1u) * params.head_dim + i]);
    }
    out[index] = result;
}
