// Rows of the embedding matrix:
//     out[t, i] = W[tokens[t], i]
// One workgroup per token; its invocations take eight columns at a time. A shard of the matrix
// writes only the rows whose id it holds, so all shards together write each row once.

struct Params {
    rows: u32,
    cols: u32,
    row_offset: u32,
    capacity: u32,
    quants_per_row: u32,
    scales_per_row: u32,
    pad0: u32,
    pad1: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> tokens: array<u32>;
@group(0) @binding(3) var<storage, read> quants: array<u32>;
@group(0) @binding(4) var<storage, read> scales: array<u32>;
@group(0) @binding(5) var<storage, read_write> out: array<vec4f>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let t = linear_workgroup(id, count);
    if (t >= min(state.n_tokens, params.capacity)) {
        return;
    }
    // An id below the shard wraps round to a number above its rows.
    let row = tokens[t] - params.row_offset;
    if (row >= params.rows) {
        return;
    }
    for (var k = lane * 8u; k < params.cols; k += 512u) {
        let w = unpack8(row, k);
        let at = (t * params.cols + k) / 4u;
        out[at] = w.lo;
        out[at + 1u] = w.hi;
    }
}
