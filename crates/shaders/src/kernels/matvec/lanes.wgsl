// Plain variant: 64 invocations form groups of 16, and a group computes ROWS sums. An invocation
// takes every 16th run of eight columns, which it reads once for all rows of its group; the 16
// partial sums of a row are added at the end.

const LANES = 16u;
const GROUPS = 4u;
const SUMS_PER_WORKGROUP = GROUPS * ROWS;

var<workgroup> partial_sums: array<f32, SUMS_PER_WORKGROUP * LANES>;
var<workgroup> partial_squares: array<f32, LANES>;

fn total(sum: u32) -> f32 {
    var result = 0.0;
    for (var i = 0u; i < LANES; i += 1u) {
        result += partial_sums[sum * LANES + i];
    }
    return result;
}

fn total_square() -> f32 {
    var result = 0.0;
    for (var i = 0u; i < LANES; i += 1u) {
        result += partial_squares[i];
    }
    return result;
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) index: u32,
) {
    let first = linear_workgroup(id, count) * SUMS_PER_WORKGROUP;
    if (state.n_tokens == 0u || first >= params.rows) {
        return;
    }
    let lane = index % LANES;
    let first_of_group = index / LANES * ROWS;
    // Sums past the last row are computed from it and not stored.
    var rows = array<u32, ROWS>();
    for (var r = 0u; r < ROWS; r += 1u) {
        rows[r] = matrix_row(min(first + first_of_group + r, params.rows - 1u));
    }
    var sums = array<vec4f, ROWS>();
    var squares = vec4f(0.0);
    for (var k = lane * 8u; k < params.cols; k += LANES * 8u) {
        let a = input(k / 4u);
        let b = input(k / 4u + 1u);
        if (NORM) {
            squares += a * a + b * b;
        }
        let weighted_a = a * gain(k / 4u);
        let weighted_b = b * gain(k / 4u + 1u);
        for (var r = 0u; r < ROWS; r += 1u) {
            let w = unpack8(rows[r], k);
            sums[r] += w.lo * weighted_a;
            sums[r] += w.hi * weighted_b;
        }
    }
    for (var r = 0u; r < ROWS; r += 1u) {
        let sum = sums[r];
        partial_sums[(first_of_group + r) * LANES + lane] = (sum.x + sum.y) + (sum.z + sum.w);
    }
    if (NORM && index < LANES) {
        partial_squares[lane] = (squares.x + squares.y) + (squares.z + squares.w);
    }
    workgroupBarrier();
    if (index < SUMS_PER_WORKGROUP / SUMS_PER_OUTPUT) {
        store(first, index);
    }
}
