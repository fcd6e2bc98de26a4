// The gated delta rule, token by token. For value head j with state S [dk, dv] and key head j % Hk:
//     S = e^g S,   g = ssm_a[j] * softplus(alpha[t, j] + dt_bias[j])
//     d = sigmoid(beta[t, j]) * (v - S^T k)
//     S = S + k d^T
//     out = S^T q
// One invocation per (value head, column of S): columns do not depend on each other, so there is
// no barrier, and neighbours read neighbouring elements of a row of S. The decay is applied while
// a row is read, which leaves two reads and one write of S per token. Rows go by eight, which also
// keeps the loops of 512 tokens below what a software adapter counts (see mod.rs).

struct Params {
    rows: u32,
    key_heads: u32,
    value_heads: u32,
    key_dim: u32,
    value_dim: u32,
    // Row length of alpha and beta, and their first columns that count.
    gates_stride: u32,
    alpha_first: u32,
    beta_first: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> y: array<f32>;
@group(0) @binding(3) var<storage, read> alpha: array<f32>;
@group(0) @binding(4) var<storage, read> beta: array<f32>;
@group(0) @binding(5) var<storage, read> ssm_a: array<f32>;
@group(0) @binding(6) var<storage, read> dt_bias: array<f32>;
@group(0) @binding(7) var<storage, read_write> s: array<f32>;
@group(0) @binding(8) var<storage, read_write> out: array<f32>;

// ln(1 + e^x) = max(x, 0) + ln(1 + e), e = e^-|x|. With a = e / (2 + e), at most 1/3,
//     ln(1 + e) = 2 atanh(a) = 2 (a + a^3 / 3 + a^5 / 5 + ...)
// The first term left out is below 1e-8 of the sum. WGSL lets log be off by 2^-21 near 1, which
// would add up over the many tokens that a slow decay (small e) lasts. For x > 20 the result is x.
fn softplus(x: f32) -> f32 {
    let e = exp(-abs(x));
    let a = e / (2.0 + e);
    let z = a * a;
    let series = 1.0 + z * (1.0 / 3.0 + z * (1.0 / 5.0 + z * (1.0 / 7.0
        + z * (1.0 / 9.0 + z * (1.0 / 11.0 + z * (1.0 / 13.0 + z / 15.0))))));
    return max(x, 0.0) + 2.0 * a * series;
}

// Four rows of the column that starts at element `at`.
fn state_rows(at: u32) -> vec4f {
    let stride = params.value_dim;
    return vec4f(s[at], s[at + stride], s[at + 2u * stride], s[at + 3u * stride]);
}

fn store_rows(at: u32, rows: vec4f) {
    let stride = params.value_dim;
    s[at] = rows.x;
    s[at + stride] = rows.y;
    s[at + 2u * stride] = rows.z;
    s[at + 3u * stride] = rows.w;
}

fn inputs(at: u32) -> vec4f {
    return vec4f(y[at], y[at + 1u], y[at + 2u], y[at + 3u]);
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let column = linear_workgroup(id, count) * 64u + lane;
    let n_values = params.value_heads * params.value_dim;
    if (column >= n_values) {
        return;
    }
    let head = column / params.value_dim;
    let n_keys = params.key_heads * params.key_dim;
    let y_cols = 2u * n_keys + n_values;
    let key_offset = head % params.key_heads * params.key_dim;
    // Element (i, column) of the head's state is at first + i * value_dim.
    let first = head * params.key_dim * params.value_dim + column % params.value_dim;

    let by_eight = params.key_dim & ~7u;

    for (var t = 0u; t < min(state.n_tokens, params.rows); t += 1u) {
        let q = t * y_cols + key_offset;
        let k = q + n_keys;
        let gate = t * params.gates_stride + head;
        let decay = exp(ssm_a[head] * softplus(alpha[gate + params.alpha_first] + dt_bias[head]));
        let strength = sigmoid(beta[gate + params.beta_first]);

        var recalled = 0.0;
        for (var i = 0u; i < by_eight; i += 8u) {
            let at = first + i * params.value_dim;
            recalled += dot(state_rows(at), inputs(k + i));
            recalled += dot(state_rows(at + 4u * params.value_dim), inputs(k + i + 4u));
        }
        for (var i = by_eight; i < params.key_dim; i += 1u) {
            recalled += s[first + i * params.value_dim] * y[k + i];
        }
        let d = strength * (y[t * y_cols + 2u * n_keys + column] - decay * recalled);

        var sum = 0.0;
        for (var i = 0u; i < by_eight; i += 8u) {
            let at = first + i * params.value_dim;
            let lo = decay * state_rows(at) + inputs(k + i) * d;
            let hi = decay * state_rows(at + 4u * params.value_dim) + inputs(k + i + 4u) * d;
            store_rows(at, lo);
            store_rows(at + 4u * params.value_dim, hi);
            sum += dot(lo, inputs(q + i));
            sum += dot(hi, inputs(q + i + 4u));
        }
        for (var i = by_eight; i < params.key_dim; i += 1u) {
            let at = first + i * params.value_dim;
            let element = decay * s[at] + y[k + i] * d;
            s[at] = element;
            sum += element * y[q + i];
        }
        out[t * n_values + column] = sum;
    }
}
