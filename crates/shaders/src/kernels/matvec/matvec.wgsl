// Matrix times vector, for one token:
//     y[row_offset + o] (+)= sum_k W[o, k] x[k]
// One workgroup computes 4 rows with 16 invocations each; an invocation takes every 16th group of
// eight columns, and the first one of a row adds the 16 partial sums.

const ROWS = 4u;
const LANES = 16u;

struct Params {
    rows: u32,
    cols: u32,
    row_offset: u32,
    accumulate: u32,
    quants_per_row: u32,
    scales_per_row: u32,
    pad0: u32,
    pad1: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> x: array<vec4f>;
@group(0) @binding(3) var<storage, read> quants: array<u32>;
@group(0) @binding(4) var<storage, read> scales: array<u32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

var<workgroup> partial: array<f32, 64>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) index: u32,
) {
    let first_row = linear_workgroup(id, count) * ROWS;
    if (state.n_tokens == 0u || first_row >= params.rows) {
        return;
    }
    let o = first_row + index / LANES;
    let lane = index % LANES;
    var sum = vec4f(0.0);
    if (o < params.rows) {
        for (var k = lane * 8u; k < params.cols; k += LANES * 8u) {
            let w = unpack8(o, k);
            sum += w.lo * x[k / 4u];
            sum += w.hi * x[k / 4u + 1u];
        }
    }
    partial[index] = (sum.x + sum.y) + (sum.z + sum.w);
    workgroupBarrier();
    if (lane != 0u || o >= params.rows) {
        return;
    }
    var total = 0.0;
    for (var i = 0u; i < LANES; i += 1u) {
        total += partial[index + i];
    }
    let at = params.row_offset + o;
    if (params.accumulate != 0u) {
        total += y[at];
    }
    y[at] = total;
}
