// Causal attention of one step's tokens over the caches:
//     s[u] = scale * q[t, h] . k_cache[u, g],   0 <= u <= state.position + t,  g the key head of h
//     out[t, h] = sum_u e^(s[u] - max s) * v_cache[u, g] / sum_u e^(s[u] - max s)
// One workgroup per (token, query head). It walks the keys in tiles of 256 with two barriers each;
// a tile is four keys per invocation, which makes barriers rare (they dominate on software
// adapters) and keeps the scores in one vec4. The maximum so far, `top`, only grows: what was
// added under an older maximum is scaled by e^(old - new), so that no exponent is positive.
// For the values an invocation owns four neighbouring dimensions; when a head has fewer than 256,
// the invocations left over form further splits, which share the keys of the tile among them.

struct Params {
    rows: u32,
    context: u32,
    num_heads: u32,
    num_kv_heads: u32,
    // Elements of a head, divided by four; at most 64.
    quads: u32,
    scale: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> q: array<vec4f>;
@group(0) @binding(3) var<storage, read> k_cache: array<vec4f>;
@group(0) @binding(4) var<storage, read> v_cache: array<vec4f>;
@group(0) @binding(5) var<storage, read_write> out: array<vec4f>;

// Below every score, and still a finite distance from each of them.
const LOWEST = -1.0e38;

// The largest score of each invocation; at the end the sum of its weights. With fewer than 64 keys
// only the first so many invocations have any.
var<workgroup> lane_parts: array<f32, 64>;
// e^(s - top) of the tile's keys.
var<workgroup> weights: array<f32, 256>;
var<workgroup> split_sums: array<vec4f, 64>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = linear_workgroup(id, count);
    let token = index / params.num_heads;
    let head = index % params.num_heads;
    if (token >= min(state.n_tokens, params.rows)) {
        return;
    }
    let quads = params.quads;
    let n_keys = min(state.position + token + 1u, params.context);
    let query = index * quads;
    let kv_stride = params.num_kv_heads * quads;
    let kv_offset = head / (params.num_heads / params.num_kv_heads) * quads;
    let n_splits = 64u / quads;
    let split = lane / quads;
    let quad = lane % quads;

    var top = LOWEST;
    var weight_sum = 0.0;
    var value_sum = vec4f(0.0);
    for (var tile = 0u; tile < n_keys; tile += 256u) {
        let end = min(tile + 256u, n_keys);
        var scores = vec4f(LOWEST);
        for (var j = 0u; j < 4u; j += 1u) {
            let u = tile + j * 64u + lane;
            if (u < end) {
                let key = u * kv_stride + kv_offset;
                var products = vec4f(0.0);
                for (var i = 0u; i < quads; i += 1u) {
                    products += q[query + i] * k_cache[key + i];
                }
                scores[j] = ((products.x + products.y) + (products.z + products.w)) * params.scale;
            }
        }
        lane_parts[lane] = max(max(scores.x, scores.y), max(scores.z, scores.w));
        workgroupBarrier();
        var new_top = top;
        for (var i = 0u; i < min(end - tile, 64u); i += 1u) {
            new_top = max(new_top, lane_parts[i]);
        }
        let shrink = exp(top - new_top);
        top = new_top;
        weight_sum *= shrink;
        value_sum *= shrink;
        for (var j = 0u; j < 4u; j += 1u) {
            if (tile + j * 64u + lane < end) {
                let w = exp(scores[j] - top);
                weights[j * 64u + lane] = w;
                weight_sum += w;
            }
        }
        workgroupBarrier();
        if (split < n_splits) {
            for (var u = tile + split; u < end; u += n_splits) {
                value_sum += weights[u - tile] * v_cache[u * kv_stride + kv_offset + quad];
            }
        }
    }

    lane_parts[lane] = weight_sum;
    split_sums[lane] = value_sum;
    workgroupBarrier();
    if (lane < quads) {
        var total = 0.0;
        for (var i = 0u; i < min(n_keys, 64u); i += 1u) {
            total += lane_parts[i];
        }
        var sum = vec4f(0.0);
        for (var s = 0u; s < n_splits; s += 1u) {
            sum += split_sums[s * quads + lane];
        }
        out[query + lane] = sum / total;
    }
}
