// Subgroup variant: a subgroup of any width computes ROWS sums. An invocation takes the runs of
// eight columns that follow each other at the width of the subgroup, which it reads once for all
// rows; the subgroup adds up. There is no barrier and no workgroup memory. A workgroup has enough
// subgroups for its sums at the widest that the device may choose; with narrower ones some idle. A
// subgroup is taken for a run of invocations, which WGSL does not promise: where that does not hold the
// known answer shows it.

var<private> totals: array<f32, ROWS>;
var<private> total_of_squares: f32;

fn total(sum: u32) -> f32 {
    return totals[sum % ROWS];
}

fn total_square() -> f32 {
    return total_of_squares;
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) index: u32,
    @builtin(subgroup_size) subgroup_size: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let workgroup = linear_workgroup(id, count);
    let first_of_workgroup = workgroup * params.sums_per_workgroup;
    if (state.n_tokens == 0u || first_of_workgroup >= params.rows) {
        return;
    }
    let width = min(subgroup_size, 64u);
    let first_of_subgroup = index / width * ROWS;
    let first = first_of_workgroup + first_of_subgroup;
    let has_work = first_of_subgroup < params.sums_per_workgroup;
    let cols = select(0u, params.cols, has_work);
    var rows = array<u32, ROWS>();
    for (var r = 0u; r < ROWS; r += 1u) {
        rows[r] = matrix_row(min(first + r, params.rows - 1u));
    }
    var sums = array<vec4f, ROWS>();
    var squares = vec4f(0.0);
    for (var k = lane * 8u; k < cols; k += width * 8u) {
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
        totals[r] = subgroupAdd((sum.x + sum.y) + (sum.z + sum.w));
    }
    if (NORM) {
        total_of_squares = subgroupAdd((squares.x + squares.y) + (squares.z + squares.w));
    }
    if (has_work && lane < ROWS / SUMS_PER_OUTPUT) {
        store(first, lane);
    }
}
