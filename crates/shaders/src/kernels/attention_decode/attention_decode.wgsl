// Causal attention of one token over the caches, split over the keys, with what precedes it: norm
// and rotation of the queries and of the new key, whose row, with the value's, joins the caches.
// One workgroup per (key head, split) serves all query heads of the key head. Split s takes the
// tiles s, s + n_splits, ... of the keys; the one that holds the new row writes and then reads it,
// and no other workgroup touches it.
//
// An invocation is (slot, head), the heads next to each other: those of one slot read the same keys
// and values in the same instant, so that memory is read once for all heads. In a tile a slot
// scores four keys; two barriers a tile share the maximum and the weights; then a slot adds up
// every so many-th quad of the values. The sums under an older maximum are scaled by e^(old - new).
// They wait in `partials`, in an element that only their invocation touches.

struct Params {
    // Positions from here on have no angles, or no row in the caches.
    context: u32,
    num_kv_heads: u32,
    // Query heads per key head; at most 64.
    group: u32,
    head_dim: u32,
    // Elements from one query head of qkv to the next.
    q_stride: u32,
    n_rot: u32,
    n_splits: u32,
    scale: f32,
    eps: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> qkv: array<f32>;
@group(0) @binding(3) var<storage, read> q_norm: array<f32>;
@group(0) @binding(4) var<storage, read> k_norm: array<f32>;
@group(0) @binding(5) var<storage, read> rope: array<f32>;
@group(0) @binding(6) var<storage, read_write> k_cache: array<vec4f>;
@group(0) @binding(7) var<storage, read_write> v_cache: array<vec4f>;
@group(0) @binding(8) var<storage, read_write> queries: array<vec4f>;
@group(0) @binding(9) var<storage, read_write> partials: array<f32>;

// Below every score, and still a finite distance from each of them.
const LOWEST = -1.0e38;

// e^(s - top) of the four keys of each slot, for each head. Before, the sums of squares of each
// invocation, of the query in x and of the new key in y.
var<workgroup> weights: array<vec4f, 64>;
// The largest score of each invocation; at the end the sum of its weights.
var<workgroup> parts: array<f32, 64>;

// Where quad 0 of four neighbouring keys begins; keys behind the last one count as it.
fn four_rows(key: u32, last: u32, kv_head: u32) -> vec4u {
    let rows = min(vec4u(key, key + 1u, key + 2u, key + 3u), vec4u(last));
    return (rows * params.num_kv_heads + kv_head) * (params.head_dim / 4u);
}

fn root_mean_square(total: f32) -> f32 {
    return sqrt(total / f32(params.head_dim) + params.eps);
}

// Quad `quad` of a head after norm and rotation.
fn norm_rope_quad(head: u32, quad: u32, is_key: bool, scale: f32) -> vec4f {
    let i = 4u * quad;
    let angles = state.position * params.n_rot;
    return vec4f(
        norm_rope(head, i, is_key, scale, angles),
        norm_rope(head, i + 1u, is_key, scale, angles),
        norm_rope(head, i + 2u, is_key, scale, angles),
        norm_rope(head, i + 3u, is_key, scale, angles),
    );
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = linear_workgroup(id, count);
    let kv_head = index / params.n_splits;
    let split = index % params.n_splits;
    if (state.n_tokens == 0u || kv_head >= params.num_kv_heads || state.position >= params.context) {
        return;
    }
    let group = params.group;
    let slots = 64u / group;
    let tile_keys = 4u * slots;
    let quads = params.head_dim / 4u;
    let last = state.position;
    let first_tile = split * tile_keys;
    let partial_cols = params.head_dim + 2u;
    let head = lane % group;
    let slot = lane / group;
    let query_head = kv_head * group + head;
    let row = query_head * params.n_splits + split;
    let result = row * partial_cols;
    if (first_tile > last) {
        if (slot == 0u) {
            partials[result + params.head_dim + 1u] = 0.0;
        }
        return;
    }
    let takes_part = slot < slots;
    let query = query_head * params.q_stride;
    let new_key = params.num_kv_heads * group * params.q_stride + kv_head * params.head_dim;
    let new_value = new_key + params.num_kv_heads * params.head_dim;
    let has_new_row = (last / tile_keys) % params.n_splits == split;

    var squares = vec4f(0.0);
    if (takes_part) {
        for (var i = slot; i < params.head_dim; i += slots) {
            let x = qkv[query + i];
            squares.x += x * x;
        }
    }
    if (has_new_row) {
        for (var i = lane; i < params.head_dim; i += 64u) {
            let x = qkv[new_key + i];
            squares.y += x * x;
        }
    }
    weights[lane] = squares;
    workgroupBarrier();
    if (takes_part) {
        var total = 0.0;
        for (var s = 0u; s < slots; s += 1u) {
            total += weights[s * group + head].x;
        }
        let scale = params.scale / root_mean_square(total);
        for (var quad = slot; quad < quads; quad += slots) {
            queries[row * quads + quad] = norm_rope_quad(query, quad, false, scale);
        }
    }
    if (has_new_row) {
        var total = 0.0;
        for (var i = 0u; i < 64u; i += 1u) {
            total += weights[i].y;
        }
        let scale = 1.0 / root_mean_square(total);
        let new_row = (last * params.num_kv_heads + kv_head) * quads;
        for (var quad = lane; quad < quads; quad += 64u) {
            k_cache[new_row + quad] = norm_rope_quad(new_key, quad, true, scale);
            let v = new_value + 4u * quad;
            v_cache[new_row + quad] = vec4f(qkv[v], qkv[v + 1u], qkv[v + 2u], qkv[v + 3u]);
        }
    }
    // Queries and the new row are read by other invocations than wrote them.
    storageBarrier();

    var top = LOWEST;
    var weight_sum = 0.0;
    for (var tile = first_tile; tile <= last; tile += params.n_splits * tile_keys) {
        let key = tile + 4u * slot;
        let keys = vec4u(key, key + 1u, key + 2u, key + 3u);
        var scores = vec4f(LOWEST);
        if (takes_part && key <= last) {
            let k = four_rows(key, last, kv_head);
            var sums = vec4f(0.0);
            for (var i = 0u; i < quads; i += 1u) {
                sums += queries[row * quads + i]
                    * mat4x4f(k_cache[k.x + i], k_cache[k.y + i], k_cache[k.z + i], k_cache[k.w + i]);
            }
            scores = select(scores, sums, keys <= vec4u(last));
        }
        parts[lane] = max(max(scores.x, scores.y), max(scores.z, scores.w));
        workgroupBarrier();
        let used_slots = min(slots, (last - tile) / 4u + 1u);
        var new_top = top;
        for (var s = 0u; s < used_slots; s += 1u) {
            new_top = max(new_top, parts[s * group + head]);
        }
        let shrink = exp(top - new_top);
        top = new_top;
        let own_weights = select(vec4f(0.0), exp(scores - top), keys <= vec4u(last));
        weights[lane] = own_weights;
        weight_sum *= shrink;
        weight_sum += (own_weights.x + own_weights.y) + (own_weights.z + own_weights.w);
        workgroupBarrier();
        if (takes_part) {
            for (var quad = slot; quad < quads; quad += slots) {
                var sums = vec4f(0.0);
                for (var s = 0u; s < used_slots; s += 1u) {
                    let v = four_rows(tile + 4u * s, last, kv_head) + quad;
                    sums += mat4x4f(v_cache[v.x], v_cache[v.y], v_cache[v.z], v_cache[v.w])
                        * weights[s * group + head];
                }
                let at = result + 4u * quad;
                if (tile > first_tile) {
                    sums += vec4f(partials[at], partials[at + 1u], partials[at + 2u], partials[at + 3u]) * shrink;
                }
                partials[at] = sums.x;
                partials[at + 1u] = sums.y;
                partials[at + 2u] = sums.z;
                partials[at + 3u] = sums.w;
            }
        }
    }
    parts[lane] = weight_sum;
    workgroupBarrier();
    if (slot == 0u) {
        var total = 0.0;
        for (var s = 0u; s < slots; s += 1u) {
            total += parts[s * group + head];
        }
        partials[result + params.head_dim] = top;
        partials[result + params.head_dim + 1u] = total;
    }
}
