// What the tokens of a chunk do to each other under the gated delta rule. For tokens i, l of one
// chunk and value head:
//     g_i = ssm_a softplus(alpha_i + dt_bias),   b_i = sigmoid(beta_i)
//     D_il = e^(g_(l+1) + ... + g_i)
//     A_il = b_i (k_i . k_l) D_il,  l < i        M = (I + A)^-1 diag(b)
//     P_il = (q_i . k_l) D_il,      l <= i
// One workgroup per (chunk, value head). First each of its 64 invocations takes 4 x 4 pairs of tokens;
// then invocation l finds column l of (I + A)^-1 by forward substitution.

const CHUNK = 32u;

struct Params {
    rows: u32,
    key_heads: u32,
    value_heads: u32,
    key_dim: u32,
    y_cols: u32,
    gates_stride: u32,
    alpha_first: u32,
    beta_first: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> y: array<vec4f>;
@group(0) @binding(3) var<storage, read> alpha: array<f32>;
@group(0) @binding(4) var<storage, read> beta: array<f32>;
@group(0) @binding(5) var<storage, read> ssm_a: array<f32>;
@group(0) @binding(6) var<storage, read> dt_bias: array<f32>;
@group(0) @binding(7) var<storage, read_write> solve: array<vec4f>;
@group(0) @binding(8) var<storage, read_write> mixing: array<vec4f>;
@group(0) @binding(9) var<storage, read_write> decay: array<f32>;

// g and b; a token that is not there decays nothing and writes nothing.
var<workgroup> log_decay: array<f32, CHUNK>;
var<workgroup> strength: array<f32, CHUNK>;
// A_il at [i][l], below the diagonal; element (i, l) of the inverse at [l][i], on it and above.
var<workgroup> matrix: array<f32, CHUNK * CHUNK>;

// D_il for i, i + 1, i + 2 and i + 3; where l is later, anything.
fn decays(i: u32, l: u32) -> vec4f {
    let to = vec4u(i, i + 1u, i + 2u, i + 3u);
    var sums = vec4f(0.0);
    for (var t = l + 1u; t <= i + 3u; t += 1u) {
        sums += select(vec4f(0.0), vec4f(log_decay[t]), to >= vec4u(t));
    }
    return exp(sums);
}

// A and P of tokens i to i + 3 with token l, from k . k and q . k.
fn relate(i: u32, l: u32, keys: vec4f, queries: vec4f, n: u32, mixing_at: u32) {
    let rows = vec4u(i, i + 1u, i + 2u, i + 3u);
    let d = decays(i, l);
    mixing[mixing_at] = select(vec4f(0.0), queries * d, (rows >= vec4u(l)) & (rows < vec4u(n)));
    for (var r = 0u; r < 4u; r += 1u) {
        if (i + r > l) {
            matrix[(i + r) * CHUNK + l] = strength[i + r] * keys[r] * d[r];
        }
    }
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = linear_workgroup(id, count);
    let head = index % params.value_heads;
    let first = index / params.value_heads * CHUNK;
    let n_rows = min(state.n_tokens, params.rows);
    if (first >= n_rows) {
        return;
    }
    let n = min(CHUNK, n_rows - first);

    if (lane < CHUNK) {
        var g = 0.0;
        var b = 0.0;
        if (lane < n) {
            let at = (first + lane) * params.gates_stride + head;
            g = ssm_a[head] * softplus(alpha[at + params.alpha_first] + dt_bias[head]);
            b = sigmoid(beta[at + params.beta_first]);
        }
        log_decay[lane] = g;
        strength[lane] = b;
    }
    workgroupBarrier();

    if (lane < n) {
        var before = 0.0;
        for (var t = 0u; t <= lane; t += 1u) {
            before += log_decay[t];
        }
        var after = 0.0;
        for (var t = lane + 1u; t < n; t += 1u) {
            after += log_decay[t];
        }
        let at = (first + lane) * 2u * params.value_heads + head;
        decay[at] = exp(before);
        decay[at + params.value_heads] = exp(after);
    }

    // This head's vectors of both results; eight to a row.
    let base = index * CHUNK * CHUNK / 4u;
    let i = lane / 8u * 4u;
    let l = lane % 8u * 4u;
    var queries = mat4x4f();
    var keys = mat4x4f();
    if (l <= i && i < n) {
        // Rows past the last token repeat it; they are masked or meet a strength of zero.
        let last = n_rows - 1u;
        let to = vec4u(i, i + 1u, i + 2u, i + 3u) + first;
        let from_rows = min(vec4u(l, l + 1u, l + 2u, l + 3u) + first, vec4u(last)) * params.y_cols;
        let to_rows = min(to, vec4u(last)) * params.y_cols;
        let query = head % params.key_heads * params.key_dim;
        let key = query + params.key_heads * params.key_dim;
        for (var e = 0u; e < params.key_dim; e += 4u) {
            let kl = (from_rows + key + e) / 4u;
            let ki = (to_rows + key + e) / 4u;
            let qi = (to_rows + query + e) / 4u;
            let earlier = mat4x4f(y[kl.x], y[kl.y], y[kl.z], y[kl.w]);
            // Row vector times matrix: the products with the four columns.
            keys += mat4x4f(y[ki.x] * earlier, y[ki.y] * earlier, y[ki.z] * earlier, y[ki.w] * earlier);
            queries += mat4x4f(y[qi.x] * earlier, y[qi.y] * earlier, y[qi.z] * earlier, y[qi.w] * earlier);
        }
        // A column per l, with a row per i.
        keys = transpose(keys);
        queries = transpose(queries);
    }
    for (var c = 0u; c < 4u; c += 1u) {
        relate(i, l + c, keys[c], queries[c], n, base + (l + c) * 8u + lane / 8u);
    }
    workgroupBarrier();

    if (lane < CHUNK) {
        matrix[lane * CHUNK + lane] = 1.0;
        for (var t = lane + 1u; t < n; t += 1u) {
            var sum = 0.0;
            for (var e = lane; e < t; e += 1u) {
                sum += matrix[t * CHUNK + e] * matrix[lane * CHUNK + e];
            }
            matrix[lane * CHUNK + t] = -sum;
        }
    }
    workgroupBarrier();

    for (var at = lane; at < CHUNK * CHUNK / 4u; at += 64u) {
        let column = at / 8u;
        let row = at % 8u * 4u;
        let rows = vec4u(row, row + 1u, row + 2u, row + 3u);
        let from_matrix = column * CHUNK + row;
        let inverse = vec4f(
            matrix[from_matrix], matrix[from_matrix + 1u], matrix[from_matrix + 2u], matrix[from_matrix + 3u]
        );
        solve[base + at] =
            select(vec4f(0.0), inverse * strength[column], (rows >= vec4u(column)) & (rows < vec4u(n)));
    }
}
