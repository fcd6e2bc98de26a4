// Appends the keys and values of one step's tokens to the 4-bit cache: keys get their head's RMS norm
// and rotation, values are copied. A step whose first token finds the residual window full
// quantises the window first; none of its later tokens may.
// One workgroup per KV head. For the norms an invocation has a row, for the rest elements.

struct Params {
    cache: Cache,
    rows: u32,
    // Elements of a row of `qkv`, and where its keys begin.
    cols: u32,
    first_key: u32,
    n_rot: u32,
    eps: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> qkv: array<f32>;
@group(0) @binding(3) var<storage, read> q_norm: array<f32>;
@group(0) @binding(4) var<storage, read> k_norm: array<f32>;
@group(0) @binding(5) var<storage, read> rope: array<f32>;
@group(0) @binding(6) var<storage, read_write> exact: array<f32>;
@group(0) @binding(7) var<storage, read_write> codes: array<u32>;
@group(0) @binding(8) var<storage, read_write> scales: array<u32>;

var<workgroup> norms: array<f32, 136>;

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) id: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let head = linear_workgroup(id, count);
    let position = state.position;
    if (head >= params.cache.num_kv_heads || state.n_tokens == 0u || position >= params.cache.context) {
        return;
    }
    let dim = params.cache.head_dim;
    let quantised = quantised_rows(position + 1u);
    let room = min(params.cache.context, SINK + quantised + WINDOW) - position;
    let n_rows = min(min(state.n_tokens, params.rows), room);
    if (finds_window_full(position)) {
        flush_window(head, quantised - WINDOW, lane);
    }
    let key = params.first_key + head * dim;
    let value = key + params.cache.num_kv_heads * dim;
    for (var row = lane; row < n_rows; row += LANES) {
        var sum = 0.0;
        for (var i = 0u; i < dim; i += 1u) {
            let x = qkv[row * params.cols + key + i];
            sum += x * x;
        }
        norms[row] = 1.0 / sqrt(sum / f32(dim) + params.eps);
    }
    workgroupBarrier();
    for (var element = lane; element < n_rows * dim; element += LANES) {
        let row = element / dim;
        let i = element % dim;
        let source = row * params.cols;
        let angles = (position + row) * params.n_rot;
        let slot = exact_slot(position + row, quantised);
        exact[exact_index(KEYS, head, slot) + i] = norm_rope(source + key, i, true, norms[row], angles);
        exact[exact_index(VALUES, head, slot) + i] = qkv[source + value + i];
    }
}
