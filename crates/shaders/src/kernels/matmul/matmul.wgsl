// Matrix product for many tokens:
//     y[t, row_offset + o] (+)= sum_k W[o, k] x[t, k]
// One workgroup computes TOKENS tokens x 64 outputs; TOKENS is a multiple of 8 up to 64 and is
// defined where the files are joined. It goes along k in steps of 32: half of its invocations
// decode the weights of a step into workgroup memory, each a run of 16 of four rows, while the
// other half copies the inputs; then each invocation updates TOKENS / 8 tokens x 8 outputs in
// registers. Every element is one chain of additions in the order of k, whatever its tile, so the
// results do not depend on how a prompt is cut into chunks.

const OUTPUTS = 64u;
const STEP = 32u;

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

// [k][output / 4]: four outputs per vector.
var<workgroup> w_tile: array<vec4f, STEP * OUTPUTS / 4u>;
// [token][k / 4]: four columns per vector. Those of a token are permuted by its number, so that
// invocations that read the same columns of eight tokens find them in different banks.
var<workgroup> x_tile: array<vec4f, TOKENS * STEP / 4u>;

// Stores four columns of four outputs.
fn store_weights(at: u32, columns: mat4x4f) {
    w_tile[at] = columns[0];
    w_tile[at + 16u] = columns[1];
    w_tile[at + 32u] = columns[2];
    w_tile[at + 48u] = columns[3];
}

// Decodes 16 columns from `k` of the four rows from `row` into the vectors from `at`.
fn stage_weights(row: u32, k: u32, at: u32) {
    // A tile may reach past the last row; what it computes there is not stored.
    let last = params.rows - 1u;
    let a = unpack16(min(row, last), k);
    let b = unpack16(min(row + 1u, last), k);
    let c = unpack16(min(row + 2u, last), k);
    let d = unpack16(min(row + 3u, last), k);
    store_weights(at, transpose(mat4x4f(a[0], b[0], c[0], d[0])));
    store_weights(at + 64u, transpose(mat4x4f(a[1], b[1], c[1], d[1])));
    store_weights(at + 128u, transpose(mat4x4f(a[2], b[2], c[2], d[2])));
    store_weights(at + 192u, transpose(mat4x4f(a[3], b[3], c[3], d[3])));
}

// Adds four columns to the sums of four outputs, in order.
fn advance(sums: vec4f, w: mat4x4f, inputs: vec4f) -> vec4f {
    return sums + w[0] * inputs.x + w[1] * inputs.y + w[2] * inputs.z + w[3] * inputs.w;
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
    let n_tokens = min(state.n_tokens, params.capacity);
    if (first_token >= n_tokens) {
        return;
    }
    // This invocation has tokens `token`, `token + 8` and so on, and of the outputs the vectors
    // `quad` (sums a) and `quad + 8` (sums b).
    let token = index / 8u;
    let quad = index % 8u;
    var a0 = vec4f(0.0);
    var a1 = vec4f(0.0);
    var a2 = vec4f(0.0);
    var a3 = vec4f(0.0);
    var a4 = vec4f(0.0);
    var a5 = vec4f(0.0);
    var a6 = vec4f(0.0);
    var a7 = vec4f(0.0);
    var b0 = vec4f(0.0);
    var b1 = vec4f(0.0);
    var b2 = vec4f(0.0);
    var b3 = vec4f(0.0);
    var b4 = vec4f(0.0);
    var b5 = vec4f(0.0);
    var b6 = vec4f(0.0);
    var b7 = vec4f(0.0);
    for (var k = 0u; k < params.cols; k += STEP) {
        // Rows are multiples of eight; the last step may be a part of one.
        let n_k = min(STEP, params.cols - k);
        workgroupBarrier();
        if (index < 32u) {
            let run = index / 16u * 16u;
            if (run < n_k) {
                stage_weights(first_output + index % 16u * 4u, k + run, run * 16u + index % 16u);
            }
        } else {
            let column = index % 8u;
            if (column * 4u < n_k) {
                for (var t = (index - 32u) / 8u; t < TOKENS; t += 4u) {
                    let row = min(first_token + t, n_tokens - 1u);
                    x_tile[t * 8u + (column ^ (t & 7u))] = x[(row * params.cols + k) / 4u + column];
                }
            }
        }
        workgroupBarrier();
        for (var i = 0u; i < n_k / 4u; i += 1u) {
            let w = i * 64u + quad;
            let a = mat4x4f(w_tile[w], w_tile[w + 16u], w_tile[w + 32u], w_tile[w + 48u]);
            let b = mat4x4f(w_tile[w + 8u], w_tile[w + 24u], w_tile[w + 40u], w_tile[w + 56u]);
            let at = token * 8u + (i ^ token);
            let first = x_tile[at];
            a0 = advance(a0, a, first);
            b0 = advance(b0, b, first);
            if (TOKENS > 8u) {
                let inputs = x_tile[at + 64u];
                a1 = advance(a1, a, inputs);
                b1 = advance(b1, b, inputs);
            }
            if (TOKENS > 16u) {
                let inputs = x_tile[at + 128u];
                a2 = advance(a2, a, inputs);
                b2 = advance(b2, b, inputs);
            }
            if (TOKENS > 24u) {
                let inputs = x_tile[at + 192u];
                a3 = advance(a3, a, inputs);
                b3 = advance(b3, b, inputs);
            }
            if (TOKENS > 32u) {
                let inputs = x_tile[at + 256u];
                a4 = advance(a4, a, inputs);
                b4 = advance(b4, b, inputs);
            }
            if (TOKENS > 40u) {
                let inputs = x_tile[at + 320u];
                a5 = advance(a5, a, inputs);
                b5 = advance(b5, b, inputs);
            }
            if (TOKENS > 48u) {
                let inputs = x_tile[at + 384u];
                a6 = advance(a6, a, inputs);
                b6 = advance(b6, b, inputs);
            }
            if (TOKENS > 56u) {
                let inputs = x_tile[at + 448u];
                a7 = advance(a7, a, inputs);
                b7 = advance(b7, b, inputs);
            }
        }
    }

    let t = first_token + token;
    let o = first_output + quad * 4u;
    store(t, o, a0);
    store(t, o + 32u, b0);
    if (TOKENS > 8u) {
        store(t + 8u, o, a1);
        store(t + 8u, o + 32u, b1);
    }
    if (TOKENS > 16u) {
        store(t + 16u, o, a2);
        store(t + 16u, o + 32u, b2);
    }
    if (TOKENS > 24u) {
        store(t + 24u, o, a3);
        store(t + 24u, o + 32u, b3);
    }
    if (TOKENS > 32u) {
        store(t + 32u, o, a4);
        store(t + 32u, o + 32u, b4);
    }
    if (TOKENS > 40u) {
        store(t + 40u, o, a5);
        store(t + 40u, o + 32u, b5);
    }
    if (TOKENS > 48u) {
        store(t + 48u, o, a6);
        store(t + 48u, o + 32u, b6);
    }
    if (TOKENS > 56u) {
        store(t + 56u, o, a7);
        store(t + 56u, o + 32u, b7);
    }
}
