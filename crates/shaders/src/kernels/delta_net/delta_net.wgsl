// The gated delta rule, chunk by chunk. For a value head with state S and the tokens i of a chunk,
// with M, P and decays from delta_chunk:
//     R_i   = v_i - left_i S^T k_i
//     U     = M R
//     out_i = left_i S^T q_i + sum_l P_il U_l
//     S     = left_n S + sum_i rest_i k_i U_i^T
// One workgroup per (value head, 32 columns of S): columns do not depend on each other. Each of its
// 64 invocations has four columns; of the tokens it has four while it reads S, and of the rows of S
// every eighth vector while it writes.

const CHUNK = 32u;
// Vectors of four columns.
const QUADS = 8u;

struct Params {
    rows: u32,
    key_heads: u32,
    value_heads: u32,
    key_dim: u32,
    value_dim: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> y: array<vec4f>;
@group(0) @binding(3) var<storage, read> solve: array<vec4f>;
@group(0) @binding(4) var<storage, read> mixing: array<vec4f>;
@group(0) @binding(5) var<storage, read> decay: array<f32>;
@group(0) @binding(6) var<storage, read_write> s: array<vec4f>;
@group(0) @binding(7) var<storage, read_write> out: array<vec4f>;

// R, then U: [token][quad].
var<workgroup> tile: array<vec4f, CHUNK * QUADS>;

// Four rows of S from element `at` on.
fn state_rows(at: u32, stride: u32) -> mat4x4f {
    return mat4x4f(s[at], s[at + stride], s[at + 2u * stride], s[at + 3u * stride]);
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = linear_workgroup(id, count);
    // All counts of elements are in vectors of four from here on.
    let columns = params.value_dim / 4u;
    let blocks = (columns + QUADS - 1u) / QUADS;
    let head = index / blocks;
    if (head >= params.value_heads) {
        return;
    }
    let quad = lane % QUADS;
    let part = lane / QUADS;
    // A block may reach past the last column; what it computes there is not stored.
    let is_column = index % blocks * QUADS + quad < columns;
    let column = min(index % blocks * QUADS + quad, columns - 1u);
    let key_dim = params.key_dim / 4u;
    let y_cols = 2u * params.key_heads * key_dim + params.value_heads * columns;
    let query = head % params.key_heads * key_dim;
    let key = query + params.key_heads * key_dim;
    let value = 2u * params.key_heads * key_dim + head * columns + column;
    // Row 4 e of the head's state is at first_row + 4 e * columns.
    let first_row = head * params.key_dim * columns + column;

    let n_rows = min(state.n_tokens, params.rows);
    for (var first = 0u; first < n_rows; first += CHUNK) {
        let n = min(CHUNK, n_rows - first);
        let matrices = (first / CHUNK * params.value_heads + head) * CHUNK * CHUNK / 4u;
        // The four tokens of this invocation; those past the last one repeat it, and meet zeros in M.
        let i = part * 4u;
        let t = min(first + vec4u(i, i + 1u, i + 2u, i + 3u), vec4u(n_rows - 1u));
        let decay_at = t * 2u * params.value_heads + head;
        let left = vec4f(decay[decay_at.x], decay[decay_at.y], decay[decay_at.z], decay[decay_at.w]);

        var recalled = mat4x4f();
        var outputs = mat4x4f();
        if (i < n) {
            let row = t * y_cols;
            for (var e = 0u; e < key_dim; e += 1u) {
                let rows = state_rows(first_row + 4u * e * columns, columns);
                let k = row + key + e;
                let q = row + query + e;
                recalled += mat4x4f(rows * y[k.x], rows * y[k.y], rows * y[k.z], rows * y[k.w]);
                outputs += mat4x4f(rows * y[q.x], rows * y[q.y], rows * y[q.z], rows * y[q.w]);
            }
            let v = row + value;
            let at = i * QUADS + quad;
            tile[at] = y[v.x] - left.x * recalled[0];
            tile[at + QUADS] = y[v.y] - left.y * recalled[1];
            tile[at + 2u * QUADS] = y[v.z] - left.z * recalled[2];
            tile[at + 3u * QUADS] = y[v.w] - left.w * recalled[3];
        }
        workgroupBarrier();

        // Columns of M and P hold the four tokens.
        let until = min(i + 4u, n);
        var u = mat4x4f();
        if (i < n) {
            for (var l = 0u; l < until; l += 1u) {
                let m = solve[matrices + l * 8u + part];
                let r = tile[l * QUADS + quad];
                u += mat4x4f(m.x * r, m.y * r, m.z * r, m.w * r);
            }
        }
        workgroupBarrier();
        if (i < n) {
            let at = i * QUADS + quad;
            tile[at] = u[0];
            tile[at + QUADS] = u[1];
            tile[at + 2u * QUADS] = u[2];
            tile[at + 3u * QUADS] = u[3];
        }
        workgroupBarrier();

        if (i < n) {
            outputs = mat4x4f(left.x * outputs[0], left.y * outputs[1], left.z * outputs[2], left.w * outputs[3]);
            for (var l = 0u; l < until; l += 1u) {
                let p = mixing[matrices + l * 8u + part];
                let d = tile[l * QUADS + quad];
                outputs += mat4x4f(p.x * d, p.y * d, p.z * d, p.w * d);
            }
            for (var r = 0u; r < 4u && i + r < n && is_column; r += 1u) {
                out[(first + i + r) * params.value_heads * columns + head * columns + column] = outputs[r];
            }
        }

        let whole = decay[(first + n - 1u) * 2u * params.value_heads + head];
        for (var e = part; e < key_dim; e += 8u) {
            let at = first_row + 4u * e * columns;
            var rows = whole * state_rows(at, columns);
            for (var l = 0u; l < n; l += 1u) {
                let rest = decay[((first + l) * 2u + 1u) * params.value_heads + head];
                let k = y[(first + l) * y_cols + key + e];
                let d = rest * tile[l * QUADS + quad];
                rows += mat4x4f(k.x * d, k.y * d, k.z * d, k.w * d);
            }
            if (is_column) {
                s[at] = rows[0];
                s[at + columns] = rows[1];
                s[at + 2u * columns] = rows[2];
                s[at + 3u * columns] = rows[3];
            }
        }
        // The next chunk reads what all invocations have written, and writes the tile anew.
        storageBarrier();
        workgroupBarrier();
    }
}
