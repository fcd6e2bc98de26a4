// Causal attention of one step's tokens over the 4-bit cache, which holds their own rows already:
//     out[t, h] = sum_u w[u] v[u] / sum_u w[u],   w[u] = e^(scale * q[t, h] . k[u]),   0 <= u <= state.position + t
// over the rows in the order sink, quantised, residual, times sigmoid(gate[t, h]) if there are gates.
// One workgroup per KV head and eight of the step's (token, query head of that KV head) pairs, of
// which the query heads of a token are neighbours.

struct Params {
    cache: Cache,
    rows: u32,
    num_heads: u32,
    // Elements of `qkv` from one query head to the next, and of a row.
    stride: u32,
    cols: u32,
    n_rot: u32,
    eps: f32,
    scale: f32,
    gated: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> qkv: array<f32>;
@group(0) @binding(3) var<storage, read> q_norm: array<f32>;
@group(0) @binding(4) var<storage, read> k_norm: array<f32>;
@group(0) @binding(5) var<storage, read> rope: array<f32>;
@group(0) @binding(6) var<storage, read> exact: array<f32>;
@group(0) @binding(7) var<storage, read> codes: array<u32>;
@group(0) @binding(8) var<storage, read> scales: array<u32>;
@group(0) @binding(9) var<storage, read_write> out: array<f32>;

// Sums of squares of the queries, in 16 parts each.
var<workgroup> squares: array<f32, 128>;

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) id: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = linear_workgroup(id, count);
    let head = index % params.cache.num_kv_heads;
    let first = index / params.cache.num_kv_heads * 8u;
    let position = state.position;
    if (state.n_tokens == 0u || position >= params.cache.context) {
        return;
    }
    let dim = params.cache.head_dim;
    let heads_per_kv = params.num_heads / params.cache.num_kv_heads;
    let quantised = quantised_rows(position + 1u);
    let room = min(params.cache.context, SINK + quantised + WINDOW) - position;
    let n_queries = min(min(state.n_tokens, params.rows), room) * heads_per_kv;
    if (first >= n_queries) {
        return;
    }
    let n_here = min(n_queries - first, 8u);

    if (lane / 16u < n_here) {
        let source = query_index(first + lane / 16u, head, heads_per_kv);
        var sum = 0.0;
        for (var i = lane % 16u; i < dim; i += 16u) {
            sum += qkv[source + i] * qkv[source + i];
        }
        squares[lane] = sum;
    }
    workgroupBarrier();
    for (var j = 0u; j < 8u; j += 1u) {
        var norm = 0.0;
        if (j < n_here) {
            for (var i = 0u; i < 16u; i += 1u) {
                norm += squares[j * 16u + i];
            }
            norm = 1.0 / sqrt(norm / f32(dim) + params.eps);
        }
        let source = query_index(first + j, head, heads_per_kv);
        let angles = (position + (first + j) / heads_per_kv) * params.n_rot;
        for (var i = lane; i < dim; i += LANES) {
            var element = 0.0;
            if (j < n_here) {
                element = norm_rope(source, i, false, norm, angles) * params.scale;
            }
            queries[2u * i + j / 4u][j % 4u] = element;
        }
    }
    workgroupBarrier();

    // The tokens that each query sees of the sink and the residual window.
    let pairs_a = vec4u(first) + vec4u(0u, 1u, 2u, 3u);
    let len_a = vec4u(position + 1u) + pairs_a / heads_per_kv;
    let len_b = vec4u(position + 1u) + (pairs_a + 4u) / heads_per_kv;
    let len = position + 1u + (first + n_here - 1u) / heads_per_kv;
    attend_exact(lane, head, 0u, min(len, SINK), min(len_a, vec4u(SINK)), min(len_b, vec4u(SINK)));
    for (var row = 0u; row < quantised; row += WINDOW) {
        attend_quantised(lane, head, row);
    }
    let before = SINK + quantised;
    if (len > before) {
        attend_exact(
            lane, head, SINK, len - before,
            max(len_a, vec4u(before)) - before, max(len_b, vec4u(before)) - before,
        );
    }

    fold_sums(lane);
    if (lane < dim / 2u) {
        let even = array<vec4f, 2>(even_sum.a / weight_sum.a, even_sum.b / weight_sum.b);
        let odd = array<vec4f, 2>(odd_sum.a / weight_sum.a, odd_sum.b / weight_sum.b);
        for (var j = 0u; j < n_here; j += 1u) {
            let token = (first + j) / heads_per_kv;
            let query_head = head * heads_per_kv + (first + j) % heads_per_kv;
            let at = (token * params.num_heads + query_head) * dim + 2u * lane;
            var gates = vec2f(1.0);
            if (params.gated != 0u) {
                let gate = query_index(first + j, head, heads_per_kv) + dim + 2u * lane;
                gates = vec2f(sigmoid(qkv[gate]), sigmoid(qkv[gate + 1u]));
            }
            out[at] = even[j / 4u][j % 4u] * gates.x;
            out[at + 1u] = odd[j / 4u][j % 4u] * gates.y;
        }
    }
}

// First element in `qkv` of a (token, query head) pair of a KV head.
fn query_index(pair: u32, head: u32, heads_per_kv: u32) -> u32 {
    return pair / heads_per_kv * params.cols + (head * heads_per_kv + pair % heads_per_kv) * params.stride;
}
