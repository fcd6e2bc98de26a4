// Causal attention of one step's tokens over the caches:
//     s[u] = scale * q[t, h] . k_cache[u, g],   0 <= u <= state.position + t,  g the key head of h
//     out[t, h] = sum_u e^(s[u] - max s) * v_cache[u, g] / sum_u e^(s[u] - max s), times its gate
// A query is a pair of a token and a head of the key head's group, the heads of a token in a row.
// One workgroup computes 32 queries of one key head, so that as many share what is read of the
// caches, along tiles of 64 keys. Its 64 invocations are 8 times 8: each has four queries, and of a
// tile first eight keys to score, then every eighth quad of the values to add up. Both are
// products of 4 x 4 matrices of registers, half a read for each product of quads, and two barriers
// a tile share the maxima and the weights.
// The maximum so far, `top`, only grows: the sums under an older one are scaled by e^(old - new), so
// that no exponent is positive. They wait in `out`, in elements that only their invocation touches.
// What a tile adds to a query depends on no other query, and nothing is added for keys that it does
// not see: its result has the same bits in whatever workgroup it is.

struct Params {
    rows: u32,
    context: u32,
    num_kv_heads: u32,
    // Query heads per key head.
    group: u32,
    // Elements of a head, and of a row of qkv, divided by four.
    quads: u32,
    qkv_quads: u32,
    // Each query head of qkv is followed by its gate.
    gated: u32,
    scale: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> q: array<vec4f>;
@group(0) @binding(3) var<storage, read> qkv: array<vec4f>;
@group(0) @binding(4) var<storage, read> k_cache: array<vec4f>;
@group(0) @binding(5) var<storage, read> v_cache: array<vec4f>;
@group(0) @binding(6) var<storage, read_write> out: array<vec4f>;

const QUERIES = 32u;
const KEYS = 64u;
const SLOTS = 8u;

// Below every score, and still a finite distance from each of them.
const LOWEST = -1.0e38;

// Vectors have a component for each of four queries.
// e^(s - top): key u of the tile and the four queries f at u * 8 + f.
var<workgroup> weights: array<vec4f, 512>;
// Maxima of the scores of each invocation; at the end sums of its weights.
var<workgroup> parts: array<vec4f, 64>;

// Where quad 0 of four neighbouring keys begins; keys behind the last one count as it.
fn four_rows(key: u32, last: u32, kv_head: u32) -> vec4u {
    let rows = min(vec4u(key, key + 1u, key + 2u, key + 3u), vec4u(last));
    return (rows * params.num_kv_heads + kv_head) * params.quads;
}

// Scores, a key per column, with the lowest for keys that a query does not see.
fn visible(products: mat4x4f, key: u32, n_keys: vec4u) -> mat4x4f {
    let lowest = vec4f(LOWEST);
    return mat4x4f(
        select(lowest, products[0] * params.scale, vec4u(key) < n_keys),
        select(lowest, products[1] * params.scale, vec4u(key + 1u) < n_keys),
        select(lowest, products[2] * params.scale, vec4u(key + 2u) < n_keys),
        select(lowest, products[3] * params.scale, vec4u(key + 3u) < n_keys),
    );
}

fn largest(scores: mat4x4f) -> vec4f {
    return max(max(scores[0], scores[1]), max(scores[2], scores[3]));
}

fn weigh(scores: mat4x4f, top: vec4f) -> mat4x4f {
    return mat4x4f(exp(scores[0] - top), exp(scores[1] - top), exp(scores[2] - top), exp(scores[3] - top));
}

fn sum(m: mat4x4f) -> vec4f {
    return (m[0] + m[1]) + (m[2] + m[3]);
}

// Adds a tile's sums for one query to those before.
fn carry_on(at: u32, is_first: bool, shrink: f32, sums: vec4f) {
    if (is_first) {
        out[at] = sums;
    } else {
        out[at] = out[at] * shrink + sums;
    }
}

fn finish(at: u32, gate: u32, total: f32) {
    var result = out[at] / total;
    if (params.gated != 0u) {
        let g = qkv[gate];
        result *= vec4f(sigmoid(g.x), sigmoid(g.y), sigmoid(g.z), sigmoid(g.w));
    }
    out[at] = result;
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = linear_workgroup(id, count);
    let kv_head = index % params.num_kv_heads;
    let first = index / params.num_kv_heads * QUERIES;
    let n_queries = min(state.n_tokens, params.rows) * params.group;
    if (first >= n_queries) {
        return;
    }
    let quads = params.quads;
    let four = lane / SLOTS;
    let slot = lane % SLOTS;
    // Queries too many do the work of the last one, and their results are not stored.
    let wanted = first + 4u * four + vec4u(0u, 1u, 2u, 3u);
    let last_query = min(first + QUERIES, n_queries) - 1u;
    let query = min(wanted, vec4u(last_query));
    let is_query = wanted == query;
    let token = query / params.group;
    let head = kv_head * params.group + query % params.group;
    let row = (token * (params.num_kv_heads * params.group) + head) * quads;
    let n_keys = min(state.position + token + 1u, vec4u(params.context));
    // The last key that any query of the workgroup sees.
    let last = min(state.position + last_query / params.group + 1u, params.context) - 1u;

    var top = vec4f(LOWEST);
    var weight_sum = vec4f(0.0);
    for (var tile = 0u; tile <= last; tile += KEYS) {
        let key = tile + 8u * slot;
        var near = mat4x4f();
        var far = mat4x4f();
        if (key <= last) {
            let a = four_rows(key, last, kv_head);
            let b = four_rows(key + 4u, last, kv_head);
            for (var i = 0u; i < quads; i += 1u) {
                let queries = transpose(mat4x4f(q[row.x + i], q[row.y + i], q[row.z + i], q[row.w + i]));
                near += queries * mat4x4f(k_cache[a.x + i], k_cache[a.y + i], k_cache[a.z + i], k_cache[a.w + i]);
                far += queries * mat4x4f(k_cache[b.x + i], k_cache[b.y + i], k_cache[b.z + i], k_cache[b.w + i]);
            }
        }
        near = visible(near, key, n_keys);
        far = visible(far, key + 4u, n_keys);
        parts[lane] = max(largest(near), largest(far));
        workgroupBarrier();
        var new_top = top;
        for (var s = 0u; s < SLOTS; s += 1u) {
            new_top = max(new_top, parts[four * SLOTS + s]);
        }
        // Exactly 1 for a tile that a query does not see.
        let shrink = select(exp(top - new_top), vec4f(1.0), top == new_top);
        top = new_top;
        near = weigh(near, top);
        far = weigh(far, top);
        weight_sum = weight_sum * shrink + (sum(near) + sum(far));
        let at = 8u * slot * SLOTS + four;
        weights[at] = near[0];
        weights[at + SLOTS] = near[1];
        weights[at + 2u * SLOTS] = near[2];
        weights[at + 3u * SLOTS] = near[3];
        weights[at + 4u * SLOTS] = far[0];
        weights[at + 5u * SLOTS] = far[1];
        weights[at + 6u * SLOTS] = far[2];
        weights[at + 7u * SLOTS] = far[3];
        workgroupBarrier();
        let end = min(tile + KEYS, last + 1u);
        for (var quad = slot; quad < quads; quad += SLOTS) {
            // A query per column.
            var sums = mat4x4f();
            for (var u = tile; u < end; u += 4u) {
                let v = four_rows(u, last, kv_head) + quad;
                let w = (u - tile) * SLOTS + four;
                sums += mat4x4f(v_cache[v.x], v_cache[v.y], v_cache[v.z], v_cache[v.w]) * transpose(mat4x4f(
                    weights[w],
                    weights[w + SLOTS],
                    weights[w + 2u * SLOTS],
                    weights[w + 3u * SLOTS],
                ));
            }
            let is_first = tile == 0u;
            if (is_query.x) { carry_on(row.x + quad, is_first, shrink.x, sums[0]); }
            if (is_query.y) { carry_on(row.y + quad, is_first, shrink.y, sums[1]); }
            if (is_query.z) { carry_on(row.z + quad, is_first, shrink.z, sums[2]); }
            if (is_query.w) { carry_on(row.w + quad, is_first, shrink.w, sums[3]); }
        }
    }

    parts[lane] = weight_sum;
    workgroupBarrier();
    var total = vec4f(0.0);
    for (var s = 0u; s < SLOTS; s += 1u) {
        total += parts[four * SLOTS + s];
    }
    // A head of qkv is its query and then its gate.
    let gate = token * params.qkv_quads + (2u * head + 1u) * quads;
    for (var quad = slot; quad < quads; quad += SLOTS) {
        if (is_query.x) { finish(row.x + quad, gate.x + quad, total.x); }
        if (is_query.y) { finish(row.y + quad, gate.y + quad, total.y); }
        if (is_query.z) { finish(row.z + quad, gate.z + quad, total.z); }
        if (is_query.w) { finish(row.w + quad, gate.w + quad, total.w); }
    }
}
