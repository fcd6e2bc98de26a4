// Matrix product for many tokens:
//     y[t, row_offset + o] (+)= sum_k W[o, k] x[t, k]
// One workgroup computes 32 tokens x 64 outputs. It goes along k in steps of 16: half of its
// invocations decode the weights of a step into workgroup memory, the other half copies the
// inputs, both transposed; then each invocation updates 4 tokens x 8 outputs in registers. Every
// element is one chain of additions in the order of k, whatever its tile, so the results do not
// depend on how a prompt is cut into chunks.

const TOKENS = 32u;
const OUTPUTS = 64u;
const STEP = 16u;

struct Params {
    rows: u32,
    cols: u32,
    row_offset: u32,
    y_cols: u32,
    capacity: u32,
    accumulate: u32,
    quants_per_row: u32,
    scales_per_row: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> x: array<vec4f>;
@group(0) @binding(3) var<storage, read> quants: array<u32>;
@group(0) @binding(4) var<storage, read> scales: array<u32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

// Four outputs, or four tokens, per vector; k is the slow index.
var<workgroup> w_tile: array<vec4f, 256>;
var<workgroup> x_tile: array<vec4f, 128>;

// Decodes eight columns from `k` of the four rows from `row` into vector `quad` of w_tile.
fn stage_weights(row: u32, k: u32, step_k: u32, quad: u32) {
    // A tile may reach past the last row; what it computes there is not stored.
    let last = params.rows - 1u;
    let a = unpack8(min(row, last), k);
    let b = unpack8(min(row + 1u, last), k);
    let c = unpack8(min(row + 2u, last), k);
    let d = unpack8(min(row + 3u, last), k);
    let lo = transpose(mat4x4f(a.lo, b.lo, c.lo, d.lo));
    let hi = transpose(mat4x4f(a.hi, b.hi, c.hi, d.hi));
    let at = step_k * (OUTPUTS / 4u) + quad;
    w_tile[at] = lo[0];
    w_tile[at + 16u] = lo[1];
    w_tile[at + 32u] = lo[2];
    w_tile[at + 48u] = lo[3];
    w_tile[at + 64u] = hi[0];
    w_tile[at + 80u] = hi[1];
    w_tile[at + 96u] = hi[2];
    w_tile[at + 112u] = hi[3];
}

// Copies four columns from `k` of the four tokens from `t` into vector `quad` of x_tile.
fn stage_inputs(t: u32, k: u32, step_k: u32, quad: u32) {
    let last = params.capacity - 1u;
    let rows = transpose(mat4x4f(
        x[(min(t, last) * params.cols + k) / 4u],
        x[(min(t + 1u, last) * params.cols + k) / 4u],
        x[(min(t + 2u, last) * params.cols + k) / 4u],
        x[(min(t + 3u, last) * params.cols + k) / 4u],
    ));
    let at = step_k * (TOKENS / 4u) + quad;
    x_tile[at] = rows[0];
    x_tile[at + 8u] = rows[1];
    x_tile[at + 16u] = rows[2];
    x_tile[at + 24u] = rows[3];
}

fn store(t: u32, o: u32, values: vec4f) {
    if (t >= min(state.n_tokens, params.capacity)) {
        return;
    }
    for (var i = 0u; i < 4u && o + i < params.rows; i += 1u) {
        let at = t * params.y_cols + params.row_offset + o + i;
        var value = values[i];
        if (params.accumulate != 0u) {
            value += y[at];
        }
        y[at] = value;
    }
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) index: u32,
) {
    let tile = linear_workgroup(id, count);
    let tiles_per_row = (params.rows + OUTPUTS - 1u) / OUTPUTS;
    let first_token = tile / tiles_per_row * TOKENS;
    let first_output = tile % tiles_per_row * OUTPUTS;
    if (first_token >= min(state.n_tokens, params.capacity)) {
        return;
    }
    let token_quad = index / 8u;
    let output_quad = index % 8u;

    // a: outputs 4 output_quad and the next three, b: the same 32 further on; a row per token.
    var a0 = vec4f(0.0);
    var a1 = vec4f(0.0);
    var a2 = vec4f(0.0);
    var a3 = vec4f(0.0);
    var b0 = vec4f(0.0);
    var b1 = vec4f(0.0);
    var b2 = vec4f(0.0);
    var b3 = vec4f(0.0);
    for (var k = 0u; k < params.cols; k += STEP) {
        // Rows are multiples of eight; the last step may be half a step.
        let n_k = min(STEP, params.cols - k);
        workgroupBarrier();
        if (index < 32u) {
            let step_k = index / 16u * 8u;
            if (step_k < n_k) {
                stage_weights(first_output + index % 16u * 4u, k + step_k, step_k, index % 16u);
            }
        } else {
            let step_k = (index - 32u) / 8u * 4u;
            if (step_k < n_k) {
                stage_inputs(first_token + index % 8u * 4u, k + step_k, step_k, index % 8u);
            }
        }
        workgroupBarrier();
        for (var i = 0u; i < n_k; i += 1u) {
            let inputs = x_tile[i * 8u + token_quad];
            let w0 = w_tile[i * 16u + output_quad];
            let w1 = w_tile[i * 16u + 8u + output_quad];
            a0 += w0 * inputs.x;
            a1 += w0 * inputs.y;
            a2 += w0 * inputs.z;
            a3 += w0 * inputs.w;
            b0 += w1 * inputs.x;
            b1 += w1 * inputs.y;
            b2 += w1 * inputs.z;
            b3 += w1 * inputs.w;
        }
    }

    let t = first_token + token_quad * 4u;
    let o = first_output + output_quad * 4u;
    store(t, o, a0);
    store(t + 1u, o, a1);
    store(t + 2u, o, a2);
    store(t + 3u, o, a3);
    store(t, o + 32u, b0);
    store(t + 1u, o + 32u, b1);
    store(t + 2u, o + 32u, b2);
    store(t + 3u, o + 32u, b3);
}
